"""What the page draws, without a browser."""

from __future__ import annotations

import html
import re
import time
from dataclasses import replace
from datetime import date, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hierchat.chat.comparison import Verdict
from hierchat.chat.conversations import ConversationList
from hierchat.chat.frames import Figures, Frame, Written
from hierchat.chat.origins import SourceRun
from hierchat.chat.settings import own_sampling, reply_settings, time_words
from hierchat.chat.statistics import LevelView, PlanView
from hierchat.config import GenerationSettings, Reasoning
from hierchat.page import buttons, chat_settings, figures, sidebar, status
from hierchat.page.comparison_view import verdict_line
from hierchat.page.conversation import ShownMessage, thread, user_message
from hierchat.page.figures import details, figures_line, plan_picture
from hierchat.page.markdown import render
from hierchat.page.reply_text import below_message, marked, said
from hierchat.page.sidebar import moment
from hierchat.runtime.levels import LeftOut
from hierchat.store import Conversation, Message, Origin, Totals, Whereabouts
from tests.page.colours import contrast
from tests.testing.fake_service import SlotStatus

FIGURES = Figures(
    tokens=1214,
    seconds=3.5,
    first_token_seconds=0.21,
    tokens_per_second=61.04,
    tokens_per_forward=2.4,
    acceptance_rate=0.5,
    acceptance={"history": 0.43, "context": 0.62, "statistics": 0.2},
    forwards=506,
    draft_ms=0.114,
    forward_ms=24.1,
    verify_ms=0.21,
    prompt_tokens=1200,
    prompt_read=300,
    read_seconds=0.5,
    total_seconds=23.0,
    waited_seconds=17.0,
    finish="stop",
    stop_string="END",
    seed=7,
    plan=(("tiny:blocks", 6),),
    written=Written(
        "SmolLM2 135M",
        7,
        GenerationSettings(temperature=0.7, top_p=0.9, stop=("END",)).model_dump(mode="json"),
        True,
    ),
    speedup=2.312,
    baseline_tokens_per_second=26.4,
    baseline="measured",
    shares={"target": 0.41, "history": 0.22, "context": 0.31, "statistics": 0.06},
)


PLAN = PlanView(
    levels=(LevelView("smollm2-135m:blocks", 12), LevelView("smollm2-135m", None)),
    retrieval=True,
    expected_ms=5.43,
    measured_ms=5.61,
    left_out=(
        LeftOut("tiny & small", "not on this machine; `python -m hierchat models get tiny` fetches it"),
    ),
)


def visible(markup: str) -> str:
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", markup))).strip()


def test_figures_line_says_speed_speedup_length_and_shares() -> None:
    line = visible(figures_line(FIGURES))
    assert line == (
        "2.3\N{MULTIPLICATION SIGN} faster than without drafts · 1,214 tokens in 23 s · waited 17 s for other replies "
        "this chat 31 % your earlier chats 22 % phrases and files 6 % the model itself 41 %"
    )


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"waited_seconds": 0.4}, []),
        ({"waited_seconds": None, "loading_seconds": 12.0}, ["waited 12 s for the model to load"]),
        (
            {"waited_seconds": 2.0, "read_seconds": 8.31},
            ["waited 2.0 s for other replies", "read the prompt for 8.3 s"],
        ),
    ],
)
def test_the_line_says_where_a_second_or_more_went_before_writing(
    changed: dict[str, Any], said: list[str]
) -> None:
    assert time_words(replace(FIGURES, **changed)) == ["1,214 tokens in 23 s", *said]


@pytest.mark.parametrize(
    "poor", [{"tokens": 18}, {"baseline": "estimated"}, {"baseline": None, "speedup": None}], ids=str
)
def test_without_a_baseline_the_line_says_tokens_a_second_from_send_on_and_for_few_only_the_time(
    poor: dict[str, Any],
) -> None:
    figures = replace(FIGURES, shares={}, waited_seconds=0.0, **poor)
    speed = "52.8 tok/s · " if figures.tokens > 63 else ""
    assert visible(figures_line(figures)) == f"{speed}{figures.tokens:,} tokens in 23 s"
    told = visible(details(figures))
    assert "While writing 61.0 tok/s" in told
    assert ("too little measured to rely on" in told) is (figures.speedup is not None)


def test_headings_of_a_reply_come_below_its_message_and_skip_no_level() -> None:
    drawn = below_message(render("### low\n# high\n###### lowest\n## two\n\ntext `<h1>`"))
    assert re.findall(r'<h(\d) aria-level="(\d)"', drawn) == [("3", "3"), ("1", "3"), ("6", "4"), ("2", "4")]
    assert "&lt;h1&gt;" in drawn


@pytest.mark.parametrize(
    ("speedup", "said"),
    [
        (0.5, "2.0\N{MULTIPLICATION SIGN} slower than without drafts"),
        (0.92, "1.1\N{MULTIPLICATION SIGN} slower than without drafts"),
        (0.97, "as fast as without drafts"),
        (1.04, "as fast as without drafts"),
        (1.3, "1.3\N{MULTIPLICATION SIGN} faster than without drafts"),
    ],
)
def test_a_slowdown_is_told_as_plainly_as_a_speed_up(speedup: float, said: str) -> None:
    line = figures_line(replace(FIGURES, speedup=speedup))
    assert visible(line).startswith(said)
    assert line.count("hc-speedup") == 1


def test_a_reply_for_which_nothing_was_drafted_is_not_told_against_itself() -> None:
    plain = replace(FIGURES, speedup=1.0, acceptance_rate=None, shares={"target": 1.0}, waited_seconds=0.0)
    assert visible(figures_line(plain)) == "52.8 tok/s · 1,214 tokens in 23 s"


def test_figures_without_tokens_show_no_numbers() -> None:
    assert (
        visible(figures_line(Figures(), "stopped before the first word")) == "stopped before the first word"
    )


def test_details_name_every_measured_figure() -> None:
    text = visible(details(FIGURES))
    assert "Speed-up 2.3\N{MULTIPLICATION SIGN} faster than without drafts" in text
    assert "Time 23 s from Send on, waited 17 s for other replies, wrote for 5.5 s" in text
    assert "Speed 52.8 tok/s tokens (pieces of words) a second, from Send on" in text
    assert "While writing 61.0 tok/s without waiting and reading the prompt" in text
    assert "Tokens per run (T) 2.40 without drafts it is always 1" in text
    assert "Without drafts 26.4 tok/s, measured in this reply" in text
    assert "Time per run drafting 0.11 ms, the model 24.10 ms, checking drafts 0.21 ms" in text
    assert "Reading the prompt 300 of 1,200 tokens read at 600 tok/s; 900 were known already" in text
    assert "22 %, 43 % of its drafts accepted" in text
    assert re.search(r"The model itself 41 %(?! of|,)", text)
    assert "Stop reason the stop string “END”" in text
    assert "Drafts on" in text
    assert "Draft models tiny in lower precision (6 tokens ahead)" in text
    assert "Seed 7" in text
    assert "Sampling Temperature 0.7, Top-p 0.9, Stop strings “END”" in text


def test_what_an_old_reply_does_not_tell_is_a_dash() -> None:
    text = visible(details(Figures(tokens=3, seconds=1.0, tokens_per_second=3.0)))
    assert "Time 1.0 s of reading the prompt and writing" in text
    for name in ("Without drafts", "Speed-up", "First token after", "Reading the prompt", "Tokens per run (T)",
                 "Time per run", "Stop reason", "Draft models"):  # fmt: skip
        assert f"{name} \N{EN DASH}" in text


@pytest.mark.parametrize(
    ("run", "sentence"),
    [
        (SourceRun("a", "target"), "Written by the model itself: no draft had it."),
        (SourceRun("a", "history"), "From your earlier chats."),
        (
            SourceRun("a", "big:blocks", 3, Origin(chance=0.5)),
            "From draft model big in lower precision. Each token was expected to be right with a chance of 50 %.",
        ),
        (
            SourceRun("a", "context", 1, Origin("context", 3, 0.999, place=2)),
            "From this chat, earlier in this reply. The 3 tokens before it are the same there. "
            "Expected to be right with a chance of over 99 %.",
        ),
        (
            SourceRun("a", "context", 1, Origin("context", 1, place=-2)),
            "From this chat, earlier in the conversation. The token before it is the same there.",
        ),
        (
            SourceRun("a", "history", 1, Origin("history", 32, None, 5), Whereabouts(1, "Oslo", "assistant")),
            "From an earlier reply in “Oslo”. The 32 tokens or more before it are the same there. Click to go there.",
        ),
        (
            SourceRun("a", "history", 1, Origin("prompts", 2, None, 5)),
            "From an earlier message of yours in a chat that was deleted meanwhile. "
            "The 2 tokens before it are the same there.",
        ),
        (
            SourceRun("a", "history", 1, Origin("successors", 2)),
            "From your earlier chats: what this model found likely there after the same two tokens.",
        ),
        (
            SourceRun("a", "context", 1, Origin("successors", 1)),
            "What this model finds likely after the same token, which stands in this chat.",
        ),
        (
            SourceRun("a", "statistics", 1, Origin("corpus", 2, corpus="notes.md (corpus mine)")),
            "From your files: notes.md (corpus mine). The 2 tokens before it are the same there.",
        ),
    ],
)
def test_a_run_says_where_it_came_from(run: SourceRun, sentence: str) -> None:
    assert said(run) == sentence


def test_marked_words_are_escaped_and_keep_every_character() -> None:
    text = '<b>&\n\n  x</div>" *y*'
    runs = [
        SourceRun(text[:4], "context"),
        SourceRun(text[4:12], "tiny <model>"),
        SourceRun(text[12:], "target"),
    ]
    drawn = marked(runs, text)
    bare = re.sub(r'<span class="hc-run [^>]*>(.*?)</span>', r"\1", drawn.split("<ul")[0], flags=re.S)
    assert html.unescape(bare) == html.unescape(f'<div class="hc-text hc-marked">{render(text)}</div>')
    assert "tiny &lt;model&gt;" in drawn


@pytest.mark.parametrize("source", [*figures.STYLES, "SmolLM2 tiny"])
def test_source_colours_stand_out_in_both_themes(source: str) -> None:
    style = figures.style_of(source)
    assert contrast(style.line_light, "#ffffff") >= 3
    assert contrast(style.line_dark, "#17171b") >= 3
    assert f"--{style.slug}-line:" in figures.css()


@pytest.mark.parametrize(
    ("days", "heading"),
    [
        (-1, "Today"),
        (0, "Today"),
        (1, "Yesterday"),
        (2, "Last 7 days"),
        (7, "Last 7 days"),
        (8, "Last 30 days"),
        (30, "Last 30 days"),
        (31, "January"),
        (60, "December 2025"),
        (400, "January 2025"),
    ],
)
def test_conversations_are_grouped_by_local_day(days: int, heading: str) -> None:
    today = date(2026, 3, 1)
    noon = datetime(2026, 3, 1, 12) - timedelta(days=days)
    assert sidebar.day_of(noon.timestamp(), today) == heading


def listed(*chats: Conversation, more: bool = False, archived: int = 0) -> ConversationList:
    return ConversationList(list(chats), more, archived, [], Totals(0, 0, None, 0, 0, {}), frozenset())


@pytest.mark.parametrize(
    ("text", "drawn"),
    [
        ("\x02<b>\x03 & more", "<mark>&lt;b&gt;</mark> &amp; more"),
        ("\x03a\x02b\x02c\x03d\x02", "ab<mark>c</mark>d"),
    ],
)
def test_what_was_found_is_marked_whatever_the_text_holds(text: str, drawn: str) -> None:
    chat = Conversation(7, "t", 0, 0, snippet=text)
    assert f">{drawn}</small>" in sidebar.conversation_list(listed(chat), None, date.today(), "b")


def test_pinned_ones_have_a_heading_of_their_own_and_archived_ones_a_way_to_them() -> None:
    now = time.time()
    chats = [Conversation(1, "a", now, now, pinned=True), Conversation(2, "b", now, now)]
    drawn = sidebar.conversation_list(listed(*chats, archived=3), None, date.today())
    assert re.findall("<h2>(.*?)</h2>", drawn) == ["Pinned", "Today"]
    assert "Archived (3)" in drawn
    found = [Conversation(2, "b", now, now), Conversation(3, "c", now, now, archived=True)]
    drawn = sidebar.conversation_list(listed(*found, archived=3), None, date.today(), "word")
    assert re.findall("<h2>(.*?)</h2>", drawn) == ["Today", "Archived"]
    assert "Archived (3)" not in drawn


def test_conversation_list_escapes_titles_and_marks_the_open_one() -> None:
    now = time.time()
    chat = Conversation(7, '<i>"x"', now, now, snippet="<u>")
    drawn = sidebar.conversation_list(listed(chat), 7, date.today())
    assert "<i>" not in drawn.replace("<i class", "")
    assert "<u>" not in drawn
    assert 'aria-current="page"' in drawn
    assert "hc_more" not in drawn
    assert "hc_more" in sidebar.conversation_list(listed(more=True), None, date.today())
    assert "Nothing found" in sidebar.conversation_list(listed(), None, date.today(), "x")


def test_buttons_carry_the_key_and_escape_their_text() -> None:
    drawn = buttons.button("hc_edit", "Edit", id=3, text='"><script>')
    assert buttons.KEY in drawn
    assert "<script>" not in drawn
    assert "__KEY__" not in buttons.script()


def test_user_messages_are_shown_as_typed() -> None:
    assert "**x** &lt;b&gt;" in user_message("**x** <b>")


def test_the_thread_shows_siblings_and_state() -> None:
    path = [
        Message(2, 1, 1, "user", "hi", "complete", 0, (2,)),
        Message(3, 1, 2, "assistant", "one <b>", "stopped", 0, (3, 4)),
    ]
    drawn = thread([ShownMessage(message) for message in path], SlotStatus())
    assert drawn.index("hi") < drawn.index("one &lt;b&gt;")
    assert "1/2" in drawn
    assert "stopped" in drawn


@pytest.mark.parametrize(
    ("writer", "said"),
    [
        ("Qwen3 0.6B", "Load Qwen3 0.6B to see where its words came from. Load"),
        ("Gone 1B", "Gone 1B wrote this and is not on this machine: fetch it under Models"),
        ("SmolLM2 135M", "Where the words came from is not known: SmolLM2 135M was changed since"),
        ("", "Where the words came from is known only of replies that were written here."),
    ],
)
def test_where_sources_cannot_be_shown_it_says_what_would_show_them(writer: str, said: str) -> None:
    message = Message(3, 1, None, "assistant", "words", "complete", 0, (3,))
    written = Written(writer, 7, {}, True) if writer else None
    shown = ShownMessage(message, replace(FIGURES, written=written), [])
    drawn = thread([shown], SlotStatus("SmolLM2 135M", "ready"), ["SmolLM2 135M", "Qwen3 0.6B"])
    assert f"words {said}" in visible(drawn)
    assert ("hc_sources_load" in drawn) is said.startswith("Load")


def test_chats_of_one_name_and_forks_are_told_apart_by_the_time_of_their_last_message() -> None:
    now = datetime.now().replace(hour=14, minute=32)
    titles = ["Sort a list", "Sort a list (2)", "sort a list", "Other"]
    at = [now, now - timedelta(minutes=3), now - timedelta(days=40), now]
    chats = [
        Conversation(n, title, 0, when.timestamp())
        for n, (title, when) in enumerate(zip(titles, at, strict=True))
    ]
    drawn = sidebar.conversation_list(listed(*chats), None, now.date())
    assert re.findall(r'"hc-when" aria-hidden="true">([^<]+)<', drawn) == [
        "14:32",
        "14:29",
        moment(at[2].timestamp()),
    ]
    assert f'title="Other\nLast message: {moment(now.timestamp())}"' in drawn


def test_settings_survive_the_panel() -> None:
    settings = GenerationSettings(temperature=0.8, top_k=40, stop=("a", "b"), seed=9, max_new_tokens=12)
    own = own_sampling(settings)
    assert own["seed"] is None
    for known in (own, own | {"seed": 9}):
        assert chat_settings.sampling_of(chat_settings.values_of(known)) == known
    assert reply_settings(own | {"seed": 9}) == settings.model_copy(update={"end_loops": True})
    on = own | {"end_loops": False}
    assert chat_settings.sampling_of(chat_settings.values_of(on)) == on


@pytest.mark.parametrize("reasoning", ["", "off", "high"])
def test_how_much_it_thinks_survives_the_panel(reasoning: Reasoning) -> None:
    known = own_sampling(GenerationSettings(reasoning=reasoning))
    assert known.get("reasoning", "") == reasoning
    assert chat_settings.sampling_of(chat_settings.values_of(known)) == known
    assert reply_settings(known).reasoning == reasoning


def test_a_reply_without_a_seed_gets_a_new_one() -> None:
    own = own_sampling(GenerationSettings())
    assert len({reply_settings(own).seed for _ in range(8)}) == 8


@pytest.mark.parametrize(
    ("typed", "stop"),
    [("", []), ("\\n\\n\nEND\n", ["\n\n", "END"]), ("a, b\n\\\\n\n\\t\\x", ["a, b", "\\n", "\t\\x"])],
)
def test_stop_strings_stand_one_a_line(typed: str, stop: list[str]) -> None:
    values = chat_settings.values_of(own_sampling(GenerationSettings()))
    values[chat_settings.FIELDS.index("stop")] = typed
    assert chat_settings.sampling_of(values)["stop"] == stop


@given(st.lists(st.text(st.sampled_from("a\\nt\n\t\r, "), min_size=1), max_size=4))
def test_every_stop_string_survives_the_panel(stop: list[str]) -> None:
    known = own_sampling(GenerationSettings()) | {"stop": stop}
    assert chat_settings.sampling_of(chat_settings.values_of(known)) == known


def test_the_details_say_why_a_reply_ended_and_with_which_seed() -> None:
    figures = Figures(tokens=9, finish="stop", stop_string="\n<end>", seed=7)
    facts = visible(details(figures))
    assert "Stop reason the stop string “\\n<end>”" in facts
    assert "Seed 7" in facts
    assert "Seed \N{EN DASH}" in visible(details(Figures(tokens=9)))


def test_wrong_settings_are_named() -> None:
    values = chat_settings.values_of(own_sampling(GenerationSettings()))
    values[chat_settings.FIELDS.index("max_new_tokens")] = 0
    with pytest.raises(chat_settings.InvalidSettings, match=r"^Longest reply must be at least 1 token\."):
        chat_settings.sampling_of(values)


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("max_new_tokens", -5, "Longest reply must be at least 1 token."),
        ("max_new_tokens", 2e7, "Longest reply must be at most 1,000,000 tokens."),
        ("max_new_tokens", 1.5, "Longest reply must be a whole number."),
        ("max_new_tokens", None, "Longest reply is empty."),
        ("seed", -1, "Seed must be at least 0."),
        ("seed", 0.5, "Seed must be a whole number."),
        ("seed", "x", "Seed must be a number."),
        ("temperature", None, "Temperature is empty."),
        ("temperature", 99, "Temperature must be at most 10."),
        ("top_p", 0, "Top-p must be more than 0."),
    ],
)
def test_a_wrong_setting_is_a_sentence_with_its_label(field: str, value: Any, sentence: str) -> None:
    values = chat_settings.values_of({})
    values[chat_settings.FIELDS.index(field)] = value
    with pytest.raises(chat_settings.InvalidSettings) as raised:
        chat_settings.sampling_of(values)
    assert str(raised.value).startswith(sentence)
    assert str(raised.value).endswith("in Chat settings.")


@pytest.mark.parametrize(
    ("state", "finish", "text", "note", "offered"),
    [
        ("complete", "length", "words", "cut at the limit, after 1,214 tokens", True),
        ("complete", "context", "words", "cut here: the context window is full", False),
        ("complete", "loop", "words", "ended: it had come to repeat itself", False),
        ("complete", "end", "words", "", False),
        ("complete", None, "words", "", False),
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
    drawn = thread(path, SlotStatus())
    assert f'<span class="hc-note">{note}</span>' in drawn or not note
    assert ('data-act="hc_continue"' in drawn) is offered
    asked_on = [*path, ShownMessage(Message(4, 1, 3, "user", "more", "complete", 0, (4,)))]
    assert 'data-act="hc_continue"' not in thread(asked_on, SlotStatus())  # only at the end


@pytest.mark.parametrize(
    ("slot", "sentence"),
    [
        (SlotStatus("m", "downloading", 41_000_000, 93_000_000), "Downloading m: 41 of 93 MB"),
        (SlotStatus("m", "converting", 3, 210), "Converting m: 3 of 210"),
        (SlotStatus("m", "loading"), "Loading m…"),
        (SlotStatus("m", "failed", message="No room."), "No room."),
    ],
)
def test_waits_say_what_they_wait_for(slot: SlotStatus, sentence: str) -> None:
    assert status.slot_sentence(slot) == sentence
    assert sentence in visible(status.slot_line(slot))


@pytest.mark.parametrize(
    ("exact", "words", "why"),
    [
        (True, "the same words, proved", "same bits"),
        (False, "the same words but for near ties", "last bits of"),
    ],
)
def test_the_self_test_s_result_is_said(exact: bool, words: str, why: str) -> None:
    slot = SlotStatus("m", "ready", exact=exact)
    assert status.slot_sentence(slot) == f"m is ready. Replies with drafts have {words}."
    assert status.slot_line(slot) == ""  # a quiet page
    assert visible(status.model_proof(slot)) == f"With drafts and without: {words}"
    verdict = verdict_line(Verdict(True, 9, None, 2.0, "Identical, 9 of 9 tokens.", exact))
    assert visible(verdict) == f"Identical, 9 of 9 tokens. {words}"
    assert why in verdict


def test_no_result_is_said_where_none_is_known() -> None:
    assert status.slot_sentence(SlotStatus("m", "ready", exact=None)) == "m is ready."
    assert status.model_proof(SlotStatus("m", "loading")) == ""
    assert "hc-proof" not in verdict_line(Verdict(True, 9, None, 2.0, "Identical."))


def test_a_difference_of_the_unpadded_side_is_explained() -> None:
    verdict = verdict_line(Verdict(False, 3, 0.001, 2.0, "First difference at token 4.", True))
    assert (
        visible(verdict)
        == "First difference at token 4. where both are computed alike, the same words, proved"
    )
    assert "without padding" in verdict


def test_reading_shows_tokens() -> None:
    line = visible(status.reading_line(Frame("reading", prompt_read=300, prompt_tokens=1200)))
    assert line == "Reading the prompt: 300 of 1,200 tokens"


def test_the_plan_from_the_target_down() -> None:
    assert visible(plan_picture(PLAN)) == (
        "What drafts smollm2-135m writes, and checks every draft smollm2-135m in lower precision 12 tokens ahead "
        "earlier texts as many tokens ahead as save time "
        "5.4 ms a token expected, 5.6 measured What does not, and why tiny & small not on this machine; "
        "`python -m hierchat models get tiny` fetches it"
    )


def test_a_plan_that_was_not_followed_yet_and_leaves_nothing_out() -> None:
    shown = visible(plan_picture(replace(PLAN, measured_ms=None, left_out=(), retrieval=False)))
    assert shown.endswith("5.4 ms a token expected")
    assert "earlier texts" not in shown
    assert plan_picture(None) == ""
