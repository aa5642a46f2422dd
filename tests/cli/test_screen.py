"""Replies on standard output."""

import io

import pytest
from rich.console import Console

from hierchat.chat.frames import Figures, Frame
from hierchat.cli.screen import MarkdownScreen, PlainScreen, figures_line, record
from hierchat.reasoning import join_reasoning

REPLY = """# A title

Some *text* with `code`, a [link](http://somewhere.net/place) and <b>bold</b>.

- first
- second

| fruit | count |
|-------|------:|
| apple | 12    |

Last words."""
SHOWN = (
    "A title",
    "link (http://somewhere.net/place) and",
    "<b>bold</b>.",
    " • second",
    " apple     12",
    "Last words.",
)


def drawn(text: str, step: int, height: int = 40) -> str:
    """What stays on the screen of a reply that grew by so many characters at a time."""
    out = io.StringIO()
    screen = MarkdownScreen(Console(file=out, force_terminal=False, width=60, height=height))
    for end in range(step, len(text), step):
        screen.show(Frame("writing", text=text[:end]))
    screen.show(Frame("done", text=text))
    screen.end()
    return out.getvalue()


@pytest.mark.parametrize("step", [1, 50, 10_000])
def test_a_reply_is_drawn_once_however_it_grows(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hierchat.cli.screen._REST", 0.0)
    lines = [line.rstrip() for line in drawn(REPLY, step, height=4).splitlines()]
    assert all(sum(line.endswith(part) for line in lines) == 1 for part in SHOWN)


def plain(frames: list[str]) -> list[str]:
    """What stands on standard output behind each frame and behind the end."""
    out = io.StringIO()
    screen, seen = PlainScreen(out), []
    for number, text in enumerate(frames, 1):
        screen.show(Frame("done" if number == len(frames) else "writing", text=text))
        seen.append(out.getvalue())
    screen.end()
    return [*seen, out.getvalue()]


def test_plain_text_comes_as_it_is_written() -> None:
    assert plain(["a", "a *b", "a *b*"]) == ["a", "a *b", "a *b*", "a *b*\n"]
    assert plain(["a\n"]) == ["a\n", "a\n"]
    assert plain([""]) == ["", ""]


def test_a_speed_up_that_was_not_measured_is_not_told() -> None:
    figures = Figures(tokens=200, total_seconds=6.25, speedup=2.5, baseline="estimated", finish="length")
    assert figures_line(figures) == "32.0 tok/s · 200 tokens in 6.2 s · cut at the longest reply allowed"
    assert record(Frame("done", figures=figures), "m", None)["figures"]["speedup"] is None
    brief = Figures(tokens=1, seconds=0.5, tokens_per_second=2.0, finish="end")
    assert figures_line(brief) == "1 token in 0.5 s"
    assert figures_line(Figures()) == ""


def test_a_thought_is_quoted_above_the_answer() -> None:
    out = io.StringIO()
    screen = MarkdownScreen(Console(file=out, force_terminal=False, width=60, height=30))
    text = join_reasoning("It asks.\n\nSo I say yes.", "Yes.")
    for end in (len("<think>"), 20, len(text)):
        screen.show(Frame("writing", text[:end]))
    screen.show(Frame("done", text))
    screen.end()
    lines = [line.strip() for line in out.getvalue().splitlines() if line.strip()]
    assert lines[-1] == "Yes."
    assert "▌ It asks." in lines
    assert "think>" not in out.getvalue()
