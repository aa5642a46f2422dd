"""Draw Compare: the form that chooses the pair, both sides while they are written, and the verdict."""

from hierchat.chat import comparison
from hierchat.chat.frames import Frame
from hierchat.language import _
from hierchat.page import status
from hierchat.page.conversation import GrowingReply, below_message
from hierchat.page.figures import figures_line
from hierchat.page.templates import Macros


def line(pair: comparison.Pair) -> str:
    """Draw what a pair compares in a few words."""
    named = comparison.names(pair)
    return _drawn.against(named["first"], named["second"])


def column(frame: Frame | None, words: GrowingReply) -> tuple[str, str]:
    """Draw name and text of one side, and its figures."""
    if frame is None:
        return "", status.waiting(_("Not started yet"))
    name = _drawn.arm(frame.name)
    if frame.phase == "waiting":
        return name, status.waiting(frame.notice or _("Not started yet"))
    if frame.phase == "reading":
        return name, status.reading_line(frame)
    seconds, done = frame.figures.thought_seconds, frame.phase == "done"
    text = name + below_message(words.render(frame.text, seconds, frame.name, ended=done))
    if frame.finish == "error":
        return text, status.error(frame.notice or _("This side failed."))
    return text, figures_line(frame.figures, _("stopped") if frame.finish == "stopped" else "")


_drawn = Macros("compare.html", USUAL=comparison.USUAL)
verdict_line, asked, form = _drawn.verdict_line, _drawn.asked, _drawn.form
