"""What the page draws, without a browser."""

from __future__ import annotations

import html
import re
import time
from dataclasses import replace
from datetime import date, datetime, timedelta

import pytest

from hierchat.chat.frames import Figures, Frame, Verdict
from hierchat.chat.levels import LeftOut
from hierchat.chat.plan import LevelView, PlanView
from hierchat.config import GenerationSettings
from hierchat.store import Conversation, Message
from hierchat.ui import actions, sampling, sidebar, sources, status
from hierchat.ui.figures import details, figures_line
from hierchat.ui.markdown import shown
from hierchat.ui.messages import history, user_message
from hierchat.ui.plan import plan_picture
from hierchat.ui.versus import verdict_line
from tests.ui.fake_service import HostStatus

FIGURES = Figures(
    tokens=1214,
    seconds=3.5,
    first_token_seconds=0.21,
    tokens_per_second=61.04,
    tokens_per_forward=2.4,
    acceptance_rate=0.5,
    acceptance={"history": 0.43, "context": 0.62, "statistics": 0.2},
    draft_ms=0.114,
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
    for part in ("61.0 tok/s", "2.31×", "1,214 tokens", "first after 0.2 s", "context 31 %", "corpus 6 %"):  # noqa: RUF001
        assert part in line
    assert "≈" not in line


def test_estimated_baseline_says_so() -> None:
    line = figures_line(replace(FIGURES, baseline="estimated"))
    assert "≈2.31" in visible(line)
    assert "Estimated" in line


def test_no_baseline_shows_a_dash_with_its_reason() -> None:
    line = figures_line(replace(FIGURES, baseline=None, baseline_tokens_per_second=None, speedup=None))
    assert "\N{EN DASH}" in visible(line)
    assert "has not been measured" in line
    assert "\N{MULTIPLICATION SIGN}" not in line


def test_figures_without_tokens_show_no_numbers() -> None:
    assert (
        visible(figures_line(Figures(), "stopped before the first word")) == "stopped before the first word"
    )


def test_details_name_every_measured_figure() -> None:
    text = visible(details(FIGURES))
    assert "Tokens per forward 2.40" in text
    assert "Plain decoding 26.4 tok/s, measured in this reply" in text
    assert "Draft time per step 0.11 ms" in text
    assert "22 %, 43 % of its drafts accepted" in text
    assert re.search(r"From model 41 %(?! of|,)", text)


def test_spans_are_escaped_and_keep_every_character() -> None:
    spans = [("context", "<b>&\n  "), ("target", "\tx</div>"), ("tiny <model>", '"')]
    marked = sources.coloured(spans)
    body = re.search(r'<div class="hc-spans">(.*?)</div><ul', marked, re.S)
    assert body
    assert html.unescape(re.sub(r"</?span[^>]*>", "", body[1])) == "".join(text for _, text in spans)
    assert "<b>" not in marked
    assert "tiny &lt;model&gt;" in marked


def _contrast(one: str, other: str) -> float:
    def luminance(colour: str) -> float:
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("source", [*sources.STYLES, "SmolLM2 tiny"])
def test_source_colours_stand_out_in_both_themes(source: str) -> None:
    style = sources.style_of(source)
    assert _contrast(style.line_light, "#ffffff") >= 3
    assert _contrast(style.line_dark, "#17171b") >= 3
    assert f"--{style.slug}-line:" in sources.css()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<img src=x onerror=alert(1)>", "&lt;img src=x onerror=alert(1)>"),
        ("![x](http://evil/?q)", "&#33;[x](http://evil/?q)"),
        ("use `a < b` or <i>", "use `a < b` or &lt;i>"),
        ("```html\n<b>![x](y)\n```\n<b>", "```html\n<b>![x](y)\n```\n&lt;b>"),
        ("~~~\n```\n<b>\n~~~\n<b>", "~~~\n```\n<b>\n~~~\n&lt;b>"),
        ("- ```c\n  #include <x>\n  ```\n<b>", "- ```c\n  #include <x>\n  ```\n&lt;b>"),
        ("````\n```\n<b>\n````", "````\n```\n<b>\n````"),
    ],
)
def test_markdown_shows_html_as_text_and_leaves_code_alone(text: str, expected: str) -> None:
    assert shown(text) == expected


@pytest.mark.parametrize(
    ("days", "heading"), [(0, "Today"), (1, "Yesterday"), (2, "Earlier"), (400, "Earlier")]
)
def test_conversations_are_grouped_by_local_day(days: int, heading: str) -> None:
    today = date(2026, 3, 1)
    noon = datetime(2026, 3, 1, 12) - timedelta(days=days)
    assert sidebar.day_of(noon.timestamp(), today) == heading


def test_conversation_list_escapes_titles_and_marks_the_open_one() -> None:
    now = time.time()
    drawn = sidebar.conversation_list([Conversation(7, '<i>"x"', now, now, "<u>")], 7, date.today())
    assert "<i>" not in drawn.replace("<i class", "")
    assert "<u>" not in drawn
    assert 'aria-current="page"' in drawn
    assert "Nothing found" in sidebar.conversation_list([], None, date.today(), "x")


def test_buttons_carry_the_key_and_escape_their_text() -> None:
    drawn = actions.button("hc_edit", "Edit", id=3, text='"><script>')
    assert actions.KEY in drawn
    assert "<script>" not in drawn
    assert "__KEY__" not in actions.script()


def test_user_messages_are_shown_as_typed() -> None:
    assert "**x** &lt;b&gt;" in user_message("**x** <b>").content[0].value


def test_history_shows_siblings_state_and_no_system_prompt(fresh) -> None:
    path = [
        Message(1, 1, None, "system", "be kind", "complete", 0, (1,)),
        Message(2, 1, 1, "user", "hi", "complete", 0, (2,)),
        Message(3, 1, 2, "assistant", "    indented", "stopped", 0, (3, 4)),
    ]
    fresh.figures = lambda user, message: None
    drawn = history(fresh, 1, path)
    assert [m.role for m in drawn] == ["user", "assistant"]
    assert drawn[1].content[0].text == "    indented"
    assert "1/2" in drawn[1].content[1].value
    assert "stopped" in drawn[1].content[1].value


def test_sources_of_a_model_that_is_not_loaded_say_why(fresh) -> None:
    path = [Message(3, 1, None, "assistant", "words", "complete", 0, (3,))]
    drawn = history(fresh, 1, path, marked={3})
    assert drawn[0].content[0].text == "words"
    assert "only while the model" in drawn[0].content[1].value


def test_settings_survive_the_panel() -> None:
    settings = GenerationSettings(temperature=0.8, top_k=40, stop=("a", "b"), seed=9, max_new_tokens=12)
    assert sampling.settings_of(sampling.values_of(settings)) == settings


def test_wrong_settings_are_named() -> None:
    values = sampling.values_of(GenerationSettings())
    values[sampling.FIELDS.index("max_new_tokens")] = 0
    with pytest.raises(sampling.SettingsError, match="max new tokens"):
        sampling.settings_of(values)


@pytest.mark.parametrize(
    ("host", "sentence"),
    [
        (HostStatus("m", "downloading", 41_000_000, 93_000_000), "Downloading m: 41 of 93 MB"),
        (HostStatus("m", "converting", 3, 210), "Converting m: 3 of 210"),
        (HostStatus("m", "loading"), "Loading m…"),
        (HostStatus("m", "failed", message="No room."), "No room."),
    ],
)
def test_waits_say_what_they_wait_for(host: HostStatus, sentence: str) -> None:
    assert status.host_sentence(host) == sentence
    assert sentence in visible(status.host_line(host))


@pytest.mark.parametrize(
    ("exact", "words", "why"),
    [
        (True, "identical by construction", "same bits"),
        (False, "equal up to numerical ties", "last bits depend"),
    ],
)
def test_the_self_test_s_result_is_said(exact: bool, words: str, why: str) -> None:
    host = HostStatus("m", "ready", exact=exact)
    assert status.host_sentence(host) == f"m is ready. Replies with drafts are {words}."
    assert status.host_line(host) == ""  # a quiet page
    assert visible(status.model_proof(host)) == f"With drafts and without: {words}"
    verdict = verdict_line(Verdict(True, 9, None, 2.0, "Identical, 9 of 9 tokens.", exact))
    assert visible(verdict) == f"Identical, 9 of 9 tokens. {words}"
    assert why in verdict


def test_no_result_is_said_where_none_is_known() -> None:
    assert status.host_sentence(HostStatus("m", "ready", exact=None)) == "m is ready."
    assert status.model_proof(HostStatus("m", "loading")) == ""
    assert "hc-proof" not in verdict_line(Verdict(True, 9, None, 2.0, "Identical."))


def test_a_difference_of_the_unpadded_side_is_explained() -> None:
    verdict = verdict_line(Verdict(False, 3, 0.001, 2.0, "First difference at token 4.", True))
    assert visible(verdict) == "First difference at token 4. padded: identical by construction"
    assert "without padding" in verdict


def test_reading_shows_tokens() -> None:
    line = visible(status.frame_line(Frame("reading", prompt_read=300, prompt_tokens=1200)))
    assert line == "Reading the prompt: 300 of 1,200 tokens"


def test_the_plan_from_the_target_down() -> None:
    assert visible(plan_picture(PLAN)) == (
        "Plan smollm2-135m verifies smollm2-135m:blocks blocks of 12 databases as much as pays "
        "5.4 ms a token expected, 5.6 measured Left out tiny & small not on this machine; "
        "`python -m hierchat models get tiny` fetches it"
    )


def test_a_plan_that_was_not_followed_yet_and_leaves_nothing_out() -> None:
    shown = visible(plan_picture(replace(PLAN, measured_ms=None, left_out=(), retrieval=False)))
    assert shown.endswith("5.4 ms a token expected")
    assert "databases" not in shown
    assert plan_picture(None) == ""
