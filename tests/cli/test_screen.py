"""Replies on standard output."""

import io

from hierchat.chat.frames import Figures, Frame
from hierchat.cli.screen import TerminalScreen, figures_line, record


def shown(frames: list[str]) -> list[str]:
    """What stands on standard output behind each frame and behind the end."""
    out = io.StringIO()
    screen, seen = TerminalScreen(out), []
    for number, text in enumerate(frames, 1):
        screen.show(Frame("done" if number == len(frames) else "writing", text=text))
        seen.append(out.getvalue())
    screen.end()
    return [*seen, out.getvalue()]


def test_text_comes_as_it_is_written() -> None:
    assert shown(["a", "a *b", "a *b*"]) == ["a", "a *b", "a *b*", "a *b*\n"]
    assert shown(["a\n"]) == ["a\n", "a\n"]
    assert shown([""]) == ["", ""]


def test_a_speed_up_that_was_not_measured_is_not_told() -> None:
    figures = Figures(tokens=200, total_seconds=6.25, speedup=2.5, baseline="estimated", finish="length")
    assert figures_line(figures) == "32.0 tok/s · 200 tokens in 6.2 s · cut at the longest reply allowed"
    assert record(Frame("done", figures=figures), "m", None)["figures"]["speedup"] is None
    brief = Figures(tokens=1, seconds=0.5, tokens_per_second=2.0, finish="end")
    assert figures_line(brief) == "1 token in 0.5 s"
    assert figures_line(Figures()) == ""
