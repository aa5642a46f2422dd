"""A reply in progress as HTML, from its latest state: the same for every page that shows it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from hierchat.chat.frames import Arm, CompareFrame, Frame
from hierchat.chat.in_progress import ReplyInProgress, State, places_ahead
from hierchat.language import _
from hierchat.ui import status, thread
from hierchat.ui.figures import figures_line
from hierchat.ui.thought import GrowingReply

if TYPE_CHECKING:
    from hierchat.chat.service import ChatService
    from hierchat.runtime.host import ModelHost


def line(reply: ReplyInProgress, host: ModelHost) -> str:
    """What it does: waits, reads the prompt, or its figures so far. Nothing for a comparison: its columns say it."""
    if (state := reply.latest) is None:
        return status.waiting(_("Waiting for the model…"))
    if (ahead := places_ahead(state)) is not None:
        return status.waiting_line(ahead, host)
    if isinstance(state, CompareFrame):
        return ""
    note = status.notice(state.notice) if state.notice else ""
    if state.phase == "reading":
        return note + status.reading_line(state)
    return note + figures_line(state.figures, status.undrafted(host.status))


def above(
    service: ChatService,
    reply: ReplyInProgress,
    marked: Collection[int],
    shown: Collection[int],
    most: int,
) -> str:
    """The last `most` messages above it, its question at their end."""
    path = []
    if reply.below is not None:
        path = service.store.messages(reply.user_id, reply.conversation_id, reply.below, most + 1)
    drawn = thread.thread(service, reply.user_id, path, marked, shown, most, replying=True)
    return drawn + (thread.user_message(reply.text, files=thread.files(reply.files)) if reply.asks else "")


def growing(state: State | None, reply: ReplyInProgress, words: GrowingReply) -> str:
    """Its text so far; `words` keeps what is drawn from one state to the next."""
    if isinstance(state, Frame) and state.phase in ("writing", "done"):
        return thread.growing(state.text, words, state.figures.thought_seconds, state.message_id)
    return thread.growing(reply.resumed, words) if reply.resumed else ""


def arms(state: State | None) -> Mapping[Arm, Frame]:
    """Both sides of a comparison so far."""
    return state.arms if isinstance(state, CompareFrame) else {}


def context(state: State | None) -> str:
    """How full the context window is; empty where that is not known yet."""
    frame = state.arms.get("second") if isinstance(state, CompareFrame) else state
    return status.context_line(frame) if frame else ""


def remark(reply: ReplyInProgress) -> str:
    """What is to be said when it has ended, where it wrote something."""
    if not isinstance(state := reply.latest, Frame):
        return ""
    if state.finish == "error":
        return status.error(state.notice or _("The reply could not be finished."))
    return status.notice(state.notice) if state.notice else ""
