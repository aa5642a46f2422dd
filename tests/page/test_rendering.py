"""What the page draws, without a browser."""

import html
import re
import time
from dataclasses import replace
from datetime import date, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from hierchat.chat.conversations import ConversationList, own_sampling, reply_settings
from hierchat.chat.frames import Figures, Verdict
from hierchat.chat.statistics import SourceRun
from hierchat.config import MOST_TOKENS, GenerationSettings, Reasoning
from hierchat.language import spoken
from hierchat.page import chat_settings, conversation, sidebar, status, templates
from hierchat.page.conversation import (
    GrowingReply,
    ShownMessage,
    marked,
    thread,
    user_message,
    verdict_line,
)
from hierchat.page.figures import details, figures_line, foot_line
from hierchat.page.markdown.drawing import render
from hierchat.page.templates import Sentence
from hierchat.reasoning import join_reasoning
from hierchat.store.records import AttachmentHead, Conversation, Message, NewTurn
from tests.testing.fake_service import SlotStatus
from tests.testing.visitor import visible

SETTINGS = GenerationSettings(temperature=0.7, top_p=0.9, stop=("END",)).model_dump(mode="json")
FIGURES = Figures(
    tokens=1214, seconds=3.5, first_token_seconds=0.21, tokens_per_second=61.04, tokens_per_forward=2.4,
    acceptance_rate=0.5, acceptance={"history": 0.43, "context": 0.62, "statistics": 0.2}, forwards=506,
    draft_ms=0.114, forward_ms=24.1, verify_ms=0.21, prompt_tokens=1200, prompt_read=300, read_seconds=0.5,
    total_seconds=23.0, waited_seconds=17.0, finish="stop", stop_string="END", seed=7, plan=(("tiny:blocks", 6),),
    written=NewTurn("SmolLM2 135M", "", SETTINGS, 7, True), speedup=2.312, baseline_tokens_per_second=26.4,
    baseline="measured", shares={"target": 0.41, "history": 0.22, "context": 0.31, "statistics": 0.06},
)  # fmt: skip


THOUGHT = "The user wants a **short** greeting.\n\n- No name is known.\n- So none is used."
ANSWER = "Good morning! What can I do for you?"
THOUGHTFUL = join_reasoning(THOUGHT, ANSWER)


FASTER = "2.3\N{MULTIPLICATION SIGN} faster than without drafts"
SHARES = " this chat 31 % your earlier chats 22 % other texts 6 % the model itself 41 %"
LEAST: dict[str, Any] = {"shares": {}, "waited_seconds": 0.0}


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({}, f"{FASTER} · 1,214 tokens in 23 s{SHARES}"),
        # Without a baseline tokens a second, from Send on; for few tokens only the time.
        ({**LEAST, "tokens": 18}, "18 tokens in 23 s"),
        ({**LEAST, "baseline": None, "speedup": None}, "52.8 tok/s · 1,214 tokens in 23 s"),
        # Nothing was drafted: that is no slowdown.
        ({**LEAST, "speedup": 1.0, "acceptance_rate": None}, "52.8 tok/s · 1,214 tokens in 23 s"),
        ({**LEAST, "speedup": 0.5}, "2.0\N{MULTIPLICATION SIGN} slower than without drafts · 1,214 tokens in 23 s"),
        ({**LEAST, "speedup": 0.97}, "as fast as without drafts · 1,214 tokens in 23 s"),
    ],
)  # fmt: skip
def test_the_line_of_figures(changed: dict[str, Any], line: str) -> None:
    figures = replace(FIGURES, **changed)
    assert visible(figures_line(figures)) == line
    drafted = figures.acceptance_rate is not None
    poor = drafted and "without drafts" not in line and figures.speedup is not None
    assert ("Speed-up" in visible(details(figures))) is (drafted and figures.speedup is not None)
    assert ("too little measured to rely on" in visible(details(figures))) is poor


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({}, "2.3\N{MULTIPLICATION SIGN} faster stopped m"),
        ({"speedup": 0.5, "shares": {}}, "2.0\N{MULTIPLICATION SIGN} slower stopped m"),
        # How long it took, if no baseline was measured or a decimal shows no difference.
        ({"baseline": None, "shares": {"target": 0.2, "context": 0.8}}, "23 s stopped m"),
        ({"speedup": 1.01, "shares": {}}, "23 s stopped m"),
        ({"tokens": 0, "shares": {}}, "stopped m"),
    ],
)  # fmt: skip
def test_the_line_under_a_reply_has_one_figure(changed: dict[str, Any], line: str) -> None:
    drawn = foot_line(replace(FIGURES, **changed), "stopped", "m")
    assert visible(drawn).replace("· ", "") == line
    assert "hc-bar" not in drawn
    assert "hc-share" not in drawn


def test_marked_words_are_escaped_and_keep_every_character() -> None:
    text = '<b>&\n\n  x</div>" *y*'
    runs = [
        SourceRun(text[:4], "context"),
        SourceRun(text[4:12], "tiny <model>"),
        SourceRun(text[12:], "target"),
    ]
    drawn = str(marked(runs, text))
    bare = re.sub(r'<span class="hc-run [^>]*>(.*?)</span>', r"\1", drawn.split("<ul")[0], flags=re.S)
    assert html.unescape(bare) == html.unescape(f'<div class="hc-text hc-marked">{render(text)}</div>')
    assert "tiny &lt;model&gt;" in drawn
    runs = [SourceRun(THOUGHTFUL[at : at + 7], "context") for at in range(0, len(THOUGHTFUL), 7)]
    shown = str(marked(runs, THOUGHTFUL, 4.2, 7))
    fold, answer = shown.split("</details>")
    assert "data-run=" in fold
    assert re.sub(r"<[^>]*>", "", answer).startswith(ANSWER)
    assert re.sub(r"<[^>]*>", "", shown).count("Good morning!") == 1


def test_conversations_are_grouped_by_local_day() -> None:
    headings = {
        -1: "Today", 0: "Today", 1: "Yesterday", 2: "Last 7 days", 7: "Last 7 days", 8: "Last 30 days",
        30: "Last 30 days", 31: "Jan", 60: "Dec 2025", 400: "Jan 2025",
    }  # fmt: skip
    noon = datetime(2026, 3, 1, 12)
    days = [sidebar.day_of((noon - timedelta(days=ago)).timestamp(), noon.date()) for ago in headings]
    assert days == [*headings.values()]


def listed(*chats: Conversation, more: bool = False, archived: int = 0) -> ConversationList:
    return ConversationList(list(chats), more, archived, [], frozenset())


def test_the_list_has_headings_marks_what_was_found_and_escapes_all() -> None:
    now = time.time()

    def drawn(*chats: Conversation, query: str = "", more: bool = False) -> str:
        return sidebar.conversation_list(listed(*chats, archived=3, more=more), 2, date.today(), query)

    chat = Conversation(2, '<i>"x"', now, now, snippet="\x02<b>\x03 & more\x03a\x02b\x02c\x03d\x02")
    whole = drawn(Conversation(1, "a", now, now, pinned=True), chat)
    assert re.findall("<h2>(.*?)</h2>", whole) == ["Pinned", "Today"]
    assert "Archived (3)" in whole
    assert "<i>" not in whole
    assert whole.count('aria-current="page"') == 1
    assert "<mark>&lt;b&gt;</mark> &amp; moreab<mark>c</mark>d</small>" in whole
    found = drawn(chat, Conversation(3, "c", now, now, archived=True), query="word")
    assert re.findall("<h2>(.*?)</h2>", found) == ["Today", "Archived"]
    assert "Archived (3)" not in found
    assert ("hc_more" in whole, "hc_more" in drawn(more=True)) == (False, True)
    assert "Nothing found" in drawn(query="x")


def test_buttons_carry_the_key_and_escape_their_text() -> None:
    drawn = templates.button("hc_edit", "Edit", id=3, text='"><script>')
    assert templates.KEY in drawn
    assert "<script>" not in drawn
    assert "__KEY__" not in templates.script()
    assert 'data-text="a&#13;\nb"' in templates.button("hc_copy", "Copy", text="a\r\nb")
    assert "**x** &lt;b&gt;" in user_message("**x** <b>")


def test_a_sentence_of_a_template_escapes_its_values_and_writes_numbers_in_its_language() -> None:
    with spoken("de"):
        said = Sentence("<b>{n:,}</b> {name} {end}").format(n=1234, name="<i>'", end=Markup("<hr>"))
    assert said == "<b>1.234</b> &lt;i&gt;&#39; <hr>"


def test_a_file_that_was_sent_has_its_name_apart_from_its_size() -> None:
    """Else a line from right to left puts the name between the number and its unit."""
    drawn = str(conversation.files([AttachmentHead(1, "a<b>.md", 9)]))
    assert "<bdi>a&lt;b&gt;.md</bdi> · 9 bytes</button>" in drawn
    assert 'aria-label="a&lt;b&gt;.md · 9 bytes. Show the text of a&lt;b&gt;.md"' in drawn


@pytest.mark.parametrize("reasoning", ["", "off", "high"])
def test_settings_survive_the_panel(reasoning: Reasoning) -> None:
    settings = GenerationSettings(
        temperature=0.8, top_k=40, stop=("a", "b"), seed=9, max_new_tokens=12, reasoning=reasoning
    )
    own = own_sampling(settings)
    assert (own["seed"], own.get("reasoning", "")) == (None, reasoning)
    for known in (own, own | {"seed": 9}, own | {"end_loops": False}):
        assert chat_settings.sampling_of(chat_settings.values_of(known)) == known
    assert reply_settings(own | {"seed": 9}) == settings.model_copy(update={"end_loops": True})
    assert len({reply_settings(own).seed for _ in range(8)}) == 8  # a new one each time


@given(st.lists(st.text(st.sampled_from("a\\nt\n\t\r, "), min_size=1), max_size=4))
def test_every_stop_string_survives_the_panel(stop: list[str]) -> None:
    known = own_sampling(GenerationSettings()) | {"stop": stop}
    assert chat_settings.sampling_of(chat_settings.values_of(known)) == known


@pytest.mark.parametrize(
    ("field", "value", "label"),
    [
        ("max_new_tokens", 0, "Longest reply"),
        ("max_new_tokens", MOST_TOKENS + 1, "Longest reply"),
        ("temperature", None, "Temperature"),
    ],
)
def test_a_wrong_setting_is_named_by_its_label(field: str, value: Any, label: str) -> None:
    values = chat_settings.values_of({})
    values[chat_settings.FIELDS.index(field)] = value
    with pytest.raises(chat_settings.InvalidSettings, match=label):
        chat_settings.sampling_of(values)


GUEST = "A night in the **guest flat** costs `45 euros`."
DOGS = "Dogs need the written permission of the board [2]."


def cited(reply: str, runs: list[SourceRun] | None = None) -> str:
    """Draw a reply to a question with two passages."""
    texts = {
        1: "A night in the guest flat costs 45 euros.",
        2: "Dogs need the written permission of the board.",
    }
    heads = tuple(AttachmentHead(10 + number, f"house.md, {number}", 9, number) for number in texts)
    asked = Message(2, 1, None, "user", "hi", "complete", 0, (2,), attachments=heads)
    path = [
        ShownMessage(asked, passages=texts),
        ShownMessage(Message(3, 1, 2, "assistant", reply, "complete", 0, (3,)), FIGURES, runs),
    ]
    return str(thread(path, SlotStatus("", "none")))


def test_a_sentence_that_rests_on_a_passage_has_its_number_once() -> None:
    drawn = cited(f"{GUEST}\n\nAnts are small insects. {DOGS}")
    numbers = re.findall(r'<button[^>]*class="[^"]*hc-cite( hc-rests)?"[^>]*>(\d)</button>', drawn)
    assert numbers == [(" hc-rests", "1"), ("", "2")]
    assert re.search(r"45 euros</code>\.<button", drawn)  # outside of the code, after the full stop
    assert "\0" not in drawn
    assert "hc-rests" not in cited("Ants are small insects.")
    assert re.search(r"euros</code><button", cited(GUEST.removesuffix(".")))


def test_numbers_stay_where_words_are_marked_by_source() -> None:
    text = f"{GUEST} Ants are small insects."
    runs = [SourceRun(text[begin : begin + 7], "context") for begin in range(0, len(text), 7)]
    drawn = cited(text, runs)
    assert drawn.count("hc-rests") == 1
    assert "hc-marked" in drawn
    assert (
        "".join(re.sub(r"<[^>]*>", "", drawn).split()).count("Anightintheguestflatcosts45euros.1Antsaresmall")
        == 1
    )


def test_passages_are_below_the_reply() -> None:
    drawn = cited(GUEST)
    assert drawn.index("2 passages, 18 tokens") > drawn.index("guest flat") > drawn.index("hc-user")
    assert re.findall(r">\[(\d)\] house", drawn) == ["1", "2"]  # named ones are not folded, too


@pytest.mark.parametrize(
    ("state", "finish", "text", "note", "offered"),
    [
        ("complete", "length", "words", "cut at the limit, after 1,214 tokens", True),
        ("complete", "context", "words", "cut here: the context window is full", False),
        ("complete", "loop", "words", "ended: it had come to repeat itself", False),
        ("complete", "end", "words", "", False),
        ("stopped", "stopped", "words", "stopped", True),
        ("stopped", "stopped", "", "stopped before the first word", False),
        ("interrupted", None, "words", "interrupted", True),
        ("writing", None, "words", "still being written", False),
    ],
)
def test_a_reply_that_was_cut_says_so_and_offers_to_continue(
    state: str, finish: str | None, text: str, note: str, offered: bool
) -> None:
    path = [
        ShownMessage(Message(2, 1, None, "user", "hi", "complete", 0, (2,))),
        ShownMessage(Message(3, 1, 2, "assistant", text, state, 0, (3,)), replace(FIGURES, finish=finish)),
    ]
    drawn = thread(path, SlotStatus("", "none"))
    assert f'<span class="hc-note">{note}</span>' in drawn or not note
    assert ('data-act="hc_continue"' in drawn) is offered
    asked_on = [*path, ShownMessage(Message(4, 1, 3, "user", "more", "complete", 0, (4,)))]
    assert 'data-act="hc_continue"' not in thread(asked_on, SlotStatus("", "none"))  # only at the end


def test_the_same_words_are_claimed_as_far_as_the_self_test_found() -> None:
    for exact, words in ((True, "the same words, proved"), (False, "the same words but for near ties")):
        slot = SlotStatus("m", "ready", exact=exact)
        assert status.slot_sentence(slot) == f"m is ready. Replies with drafts have {words}."
        assert words in visible(status.model_proof(slot))
        assert words in visible(verdict_line(Verdict(True, 2.0, "Identical.", exact)))
    assert status.slot_sentence(SlotStatus("m", "ready", exact=None)) == "m is ready."
    assert status.model_proof(SlotStatus("m", "loading")) == ""
    assert "hc-proof" not in verdict_line(Verdict(True, 2.0, "Identical."))
    unpadded = verdict_line(Verdict(False, 2.0, "First difference at token 4.", True))
    assert "without padding" in unpadded


def test_a_thought_is_folded_above_the_answer() -> None:
    shown = conversation.drawn(THOUGHTFUL, 4.2, 7)
    fold, answer = shown.split("</details>")
    assert "<strong>short</strong>" in fold
    assert ANSWER in answer
    assert "think&gt;" not in shown
    assert "<summary>Thoughts</summary>" in conversation.drawn(THOUGHTFUL, None, 7)
    for seconds, told in ((0.2, "1 second"), (59.4, "59 seconds"), (125.0, "2 minutes")):
        assert f"<summary>Thought for {told}</summary>" in conversation.drawn(THOUGHTFUL, seconds, 7)
    for plain in (ANSWER, "<think>\n\n</think>\n\n" + ANSWER):
        assert "details" not in conversation.drawn(plain, None, 7)
    growing = GrowingReply()
    assert "<summary>Thinking…</summary>" in growing.render("<think>", None, 7)
    assert "The user wants" in growing.render("<think>\nThe user wants", 1.0, 7)
    assert growing.render(THOUGHTFUL, 4.2, 7, ended=True) == shown


def test_nothing_in_a_thought_can_press_a_button() -> None:
    thought = f"</div></details>{templates.button('hc_delete', 'x')}"
    shown = conversation.drawn(join_reasoning(thought, ANSWER), None, '"><b>')
    assert "<button" not in shown
    assert shown.count("</details>") == 1
    assert "<b>" not in shown
