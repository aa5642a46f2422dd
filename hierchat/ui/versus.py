"""Both sides of a comparison while they are written."""

from __future__ import annotations

import html

from hierchat.chat.comparison import ARMS
from hierchat.chat.frames import Arm, CompareFrame, Frame
from hierchat.language import _
from hierchat.ui import status
from hierchat.ui.actions import button
from hierchat.ui.comparisons.result import drawn, verdict_line
from hierchat.ui.figures import figures_line
from hierchat.ui.outline import below_message
from hierchat.ui.thought import GrowingReply


def words() -> dict[Arm, GrowingReply]:
    """Texts of both arms, as they will grow."""
    return {arm: GrowingReply() for arm in ARMS}


def column(frame: Frame | None, words: GrowingReply) -> tuple[str, str]:
    """Name and text, and figures, of one arm."""
    if frame is None:
        return "", status.waiting(_("Not started yet"))
    name = f'<div class="hc-arm" role="heading" aria-level="2">{html.escape(frame.name)}</div>'
    if frame.phase == "waiting":
        return name, status.waiting(frame.notice or _("Not started yet"))
    if frame.phase == "reading":
        return name, status.reading_line(frame)
    seconds, done = frame.figures.thought_seconds, frame.phase == "done"
    text = name + below_message(words.render(frame.text, seconds, frame.name, ended=done))
    if frame.finish == "error":
        return text, status.error(frame.notice or _("This side failed."))
    return text, figures_line(frame.figures, _("stopped") if frame.finish == "stopped" else "")


def ended(last: CompareFrame | None) -> tuple[str, str]:
    """Verdict and result of a comparison that has ended; empty where it did not come to them."""
    if last is None or last.verdict is None:
        return "", ""
    kept = button("hc_panel", _("All comparisons"), text="comparisons", css="hc-plain")
    result = drawn(last.result, kept if last.result.id else "") if last.result else ""
    return verdict_line(last.verdict), result


def asked(text: str, files: str = "") -> str:
    """The prompt of a comparison; `files` as HTML."""
    return f'<div class="hc-asked">{files}<div class="hc-user" dir="auto">{html.escape(text)}</div></div>'
