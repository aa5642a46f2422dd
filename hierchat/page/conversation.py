"""Stored messages as HTML, oldest first. They are for the eye only: the store is the truth."""

from __future__ import annotations

import html
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from hierchat.chat.comparison import CompareFrame
from hierchat.chat.frames import Arm, Figures, Frame
from hierchat.chat.in_progress import ReplyInProgress, State, places_ahead
from hierchat.language import _, later
from hierchat.page import figures as figures_view
from hierchat.page import status
from hierchat.page.buttons import button
from hierchat.page.markdown import in_pieces
from hierchat.page.reply_text import GrowingReply, below_message, drawn, message_heading
from hierchat.page.reply_text import marked as marked_words
from hierchat.page.status import notice, undrafted
from hierchat.page.unsent import shown_name, size
from hierchat.reasoning import split_reasoning

if TYPE_CHECKING:
    from hierchat.chat.origins import SourceRun
    from hierchat.chat.service import ChatService
    from hierchat.store import Attachment, AttachmentHead
    from hierchat.store.records import Message


_BACK, _FORTH = (
    "\N{SINGLE LEFT-POINTING ANGLE QUOTATION MARK}",
    "\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}",
)
_IMPORTED = later("Where the words came from is known only of replies that were written here.")
_LOAD = later("Load {model} to see where its words came from.")
_GONE = later(
    "{model} wrote this and is not on this machine: fetch it under Models to see where its words came from."
)
_CHANGED = later(
    "Where the words came from is not known: {model} was changed since, or a server computes it that does not tell."
)
_NOTES = {
    "stopped": later("stopped"),
    "interrupted": later("interrupted"),
    "writing": later("still being written"),
}
_EDITED = later("edited by you")
_CUT = later("cut at the limit, after {n:,} tokens")
_LOOPED = later("ended: it had come to repeat itself")
_FULL = later("cut here: the context window is full")


def user_message(text: str, actions: str = "", id: int = 0, files: str = "") -> str:
    """Draw what the user typed, as typed: no Markdown, white space kept. Without actions their place stays free."""
    return (
        f'<article class="hc-turn" aria-label="{_("You")}" data-message="{id}">{message_heading(_("You"))}{files}'
        f'<div class="hc-user" dir="auto">{in_pieces(text)}</div>'
        f'<div class="hc-actions hc-mine">{actions}</div></article>'
    )


def files(heads: Iterable[Attachment | AttachmentHead], shown: Mapping[int, Attachment] | None = None) -> str:
    """Files that were sent, by name and size; those in `shown`, by id, with their text. What is not stored yet cannot
    be shown."""
    sent = "".join(_file(head, (shown or {}).get(getattr(head, "id", 0))) for head in heads)
    return sent and f'<div class="hc-sent">{sent}</div>'


def _file(head: Attachment | AttachmentHead, shown: Attachment | None) -> str:
    label = f"{shown_name(head.name)} · {size(head.size)}"
    id = getattr(head, "id", 0)
    if not id:
        return f'<span class="hc-chip hc-chip-name">{html.escape(label)}</span>'
    name = (_("Hide the text of {name}") if shown else _("Show the text of {name}")).format(name=head.name)
    chip = button("hc_attachment", label, id=id, css="hc-chip", aria_expanded="true" if shown else "false",
                  title=name, aria_label=f"{label}. {name}")  # fmt: skip
    if shown is None:
        return chip
    label = html.escape(_("Text of {name}").format(name=head.name))
    text = in_pieces(shown.text)
    return (
        f'{chip}<pre class="hc-file" dir="auto" tabindex="0" role="region" aria-label="{label}">{text}</pre>'
    )


def growing(text: str, words: GrowingReply, seconds: float | None = None, id: int | None = None) -> str:
    """A reply while it is written; `words` keeps what is drawn from one frame to the next, `seconds`: how long it has
    thought."""
    return _turn(_text(words.render(text, seconds, id)) if text else "…")


def _turn(inside: str) -> str:
    who = _("Reply")
    return f'<article class="hc-turn hc-reply" aria-label="{who}">{message_heading(who)}{inside}</article>'


def _text(inside: str) -> str:
    return f'<div class="hc-text">{below_message(inside)}</div>'


def _siblings(message: Message) -> str:
    if len(message.siblings) < 2:
        return ""
    place = message.siblings.index(message.id)

    def step(to: int, label: str, name: str) -> str:
        if 0 <= to < len(message.siblings):
            return button("hc_branch", label, id=message.siblings[to], aria_label=name)
        return button("hc_branch", label, disabled="", aria_label=name)

    count = f'<span class="hc-figure">{place + 1}/{len(message.siblings)}</span>'
    inside = (
        step(place - 1, _BACK, _("Previous version")) + count + step(place + 1, _FORTH, _("Next version"))
    )
    return f'<span class="hc-branches">{inside}</span>'


def _user(message: Message, unanswered: bool, shown: Mapping[int, Attachment]) -> str:
    # As where hierchat ended while it waited, or its page was gone when it was stopped.
    note = f'<span class="hc-unanswered">{_("Not answered")}</span>' if unanswered else ""
    again = button("hc_again", _("Answer"), id=message.id) if unanswered else ""
    edit = button("hc_edit", _("Edit"), id=message.id)
    copy = button("hc_copy", _("Copy"), text=message.text)
    attached = files(message.attachments, shown)
    return user_message(message.text, f"{_siblings(message)}{note}{again}{edit}{copy}", message.id, attached)


def _note(message: Message, figures: Figures) -> str:
    """Say how a reply ended, where it did not come to its end by itself."""
    if message.state in _NOTES:
        note = _(_NOTES[message.state])
        return note if message.text else _("{note} before the first word").format(note=note)
    if figures.finish == "length":
        return _(_CUT).format(n=figures.tokens)
    return _({"context": _FULL, "loop": _LOOPED}.get(figures.finish or "", ""))


def _cut(message: Message, figures: Figures) -> bool:
    """Return whether the reply could go on."""
    ended = message.state == "complete" and figures.finish != "length"
    return bool(message.text) and not ended and message.state != "writing" and figures.finish != "context"


def _same_seed(message: Message, figures: Figures, question: int | None) -> str:
    """Draw the button that repeats a seed; not for a greedy reply, for which Again writes the same words."""
    if figures.seed is None or question is None:
        return ""
    title = _("The same words, if the settings are the same (seed {seed})").format(seed=figures.seed)
    return button("hc_again", _("Same seed"), id=question, text=str(message.id), title=title)


def _reply(
    message: Message,
    figures: Figures | None,
    runs: list[SourceRun] | None,
    question: int | None,
    last: bool,
    named: bool = True,
    plain: str = "",
    no_runs: str = "",
) -> str:
    """`question`: the user's message above it; an imported chat may begin with a reply. `named`: the line below it says
    which model wrote it. `plain`: why that writes without drafts; `no_runs`: why no runs can be shown, as HTML."""
    known = figures or Figures()
    note = _(_EDITED) if message.edited else _note(message, known) or plain
    buttons = [
        _siblings(message),
        button("hc_continue", _("Continue"), id=message.id) if last and _cut(message, known) else "",
        "" if message.edited else button("hc_sources", _("Sources"), id=message.id,
                                         aria_pressed="false" if runs is None else "true"),
        button("hc_again", _("Again"), id=question, title=_("Another reply")) if question else "",
        _same_seed(message, known, question),
        button("hc_edit_reply", _("Edit"), id=message.id) if message.text else "",
        button("hc_copy", _("Copy"), text=split_reasoning(message.text).answer or message.text),
        button("hc_fork", _("Fork"), id=message.id, title=_("Continue in a new chat from here"),
               aria_label=_("Fork: continue in a new chat")),
    ]  # fmt: skip
    facts = (
        f'<details class="hc-details"><summary>{_("Details")}</summary>'
        f'<div class="hc-all-facts">{figures_view.details(figures, message.model)}</div></details>'
        if figures or message.model
        else ""
    )
    line = figures_view.figures_line(known, note, message.model if named else "")
    footer = (
        f'<div class="hc-foot" data-message="{message.id}">{line}'
        f'<div class="hc-actions">{"".join(buttons)}{facts}</div></div>'
    )
    if runs and "".join(run.text for run in runs).startswith(message.text):
        body = marked_words(runs, message.text, known.thought_seconds, message.id)
    elif message.text:
        body = _text(drawn(message.text, known.thought_seconds, message.id)) + no_runs
    else:
        body = ""
    return _turn(body + footer)


def _rest(act: str, label: str) -> str:
    """The way to messages that are not drawn."""
    return f'<div class="hc-rest">{button(act, label)}</div>'


def _no_runs(service: ChatService, figures: Figures | None) -> str:
    """Why a reply's runs cannot be shown, and the button that loads its model where that helps, as HTML."""
    if figures is None or figures.written is None:
        return notice(_(_IMPORTED))
    model, present = figures.written.model, service.model_status
    if model == present.name:
        return notice((_(_CHANGED) if present.phase == "ready" else _(_LOAD)).format(model=model))
    if model not in service.models.names:
        return notice(_(_GONE).format(model=model))
    name = _("Load {model}").format(model=model)
    load = button("hc_sources_load", _("Load"), text=model, css="hc-strong", aria_label=name)
    return f'<div class="hc-notice">{html.escape(_(_LOAD).format(model=model))} {load}</div>'


def thread(
    service: ChatService,
    user_id: int,
    messages: Iterable[Message],
    marked: Collection[int] = (),
    shown: Collection[int] = (),
    most: int | None = None,
    *,
    ends: bool = True,
    replying: bool = False,
) -> str:
    """A conversation's current path, its last `most` messages; replies in `marked` show their tokens by source, files
    in `shown` their text. `ends`: whether `messages` go up to its end; `replying`: a reply to its end is written."""
    path = [message for message in messages if message.role != "system"]
    earlier = most is not None and len(path) > most
    if most is not None and earlier:
        path = path[-most:]
        if path[0].role != "user":  # its question stands above
            path = path[1:]
    present = service.model_status
    result = []
    question: int | None = None
    model = ""
    if earlier:
        result.append(_rest("hc_earlier", _("Show earlier messages")))
    for place, message in enumerate(path):
        last = ends and place == len(path) - 1
        if message.role == "user":
            question = message.id
            open_files = {
                file.id: service.chats.attachment(user_id, file.id)
                for file in message.attachments
                if file.id in shown
            }
            result.append(_user(message, last and not replying, open_files))
        else:
            runs = service.runs(user_id, message.id) if message.id in marked else None
            figures = service.figures(user_id, message.id)
            named = message.model != model
            plain = undrafted(present) if message.model == present.name else ""
            no_runs = _no_runs(service, figures) if runs is not None else ""
            result.append(_reply(message, figures, runs, question, last, named, plain, no_runs))
            model = message.model or model
    if not ends:
        result.append(_rest("hc_latest", _("Go to the latest messages")))
    return "".join(result)


# A reply in progress as HTML, from its latest state: the same for every page that shows it.


def line(reply: ReplyInProgress, service: ChatService) -> str:
    """Say what a reply does: wait, read the prompt, or its figures so far; empty for a comparison, whose columns say
    it."""
    if (state := reply.latest) is None:
        return status.waiting(_("Waiting for the model…"))
    if (ahead := places_ahead(state)) is not None:
        return status.waiting_line(ahead, service.model_status, loaded=service.served is not None)
    if isinstance(state, CompareFrame):
        return ""
    note = status.notice(state.notice) if state.notice else ""
    if state.phase == "reading":
        return note + status.reading_line(state)
    return note + figures_view.figures_line(state.figures, status.undrafted(service.model_status))


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
        path = service.chats.messages(reply.user_id, reply.conversation_id, reply.below, most + 1)
    drawn = thread(service, reply.user_id, path, marked, shown, most, replying=True)
    return drawn + (user_message(reply.text, files=files(reply.files)) if reply.asks else "")


def growing_reply(state: State | None, reply: ReplyInProgress, words: GrowingReply) -> str:
    """Draw the text of a reply so far; `words` keeps what is drawn from one state to the next."""
    if isinstance(state, Frame) and state.phase in ("writing", "done"):
        return growing(state.text, words, state.figures.thought_seconds, state.message_id)
    return growing(reply.resumed, words) if reply.resumed else ""


def arms(state: State | None) -> Mapping[Arm, Frame]:
    """Both sides of a comparison so far."""
    return state.arms if isinstance(state, CompareFrame) else {}


def context(state: State | None) -> str:
    """Say how full the context window is; empty where that is not known yet."""
    frame = state.arms.get("second") if isinstance(state, CompareFrame) else state
    return status.context_line(frame) if frame else ""


def remark(reply: ReplyInProgress) -> str:
    """Return what is to be said of a reply that has ended, where it wrote something."""
    if not isinstance(state := reply.latest, Frame):
        return ""
    if state.finish == "error":
        return status.error(state.notice or _("The reply could not be finished."))
    return status.notice(state.notice) if state.notice else ""
