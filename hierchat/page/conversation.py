"""Stored messages as HTML, oldest first. They are for the eye only: the store is the truth."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hierchat.chat.comparison import CompareFrame
from hierchat.chat.frames import Arm, Figures, Frame
from hierchat.chat.in_progress import ReplyInProgress, State, places_ahead
from hierchat.language import _, later, plural
from hierchat.page import figures as figures_view
from hierchat.page import status
from hierchat.page.buttons import button
from hierchat.page.charts import size
from hierchat.page.markdown import in_pieces
from hierchat.page.page_sessions import PASTED
from hierchat.page.reply_text import GrowingReply, below_message, drawn, fold, message_heading
from hierchat.page.reply_text import marked as marked_words
from hierchat.page.status import notice, undrafted
from hierchat.reasoning import split_reasoning

if TYPE_CHECKING:
    from hierchat.chat.origins import SourceRun
    from hierchat.page.page_sessions import Attached, Session
    from hierchat.runtime.model_slot import SlotStatus
    from hierchat.store import Attachment, AttachmentHead
    from hierchat.store.records import Message

_CROSS = "\N{MULTIPLICATION SIGN}"
_BACK = "\N{SINGLE LEFT-POINTING ANGLE QUOTATION MARK}"
_FORTH = "\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}"
_LOAD = later("Load {model} to see where its words came from.")
_GONE = later(
    "{model} wrote this and is not on this machine: fetch it under Models to see where its words came from."
)
_CHANGED = later(
    "Where the words came from is not known: {model} was changed since, or a server computes it that does not tell."
)
_CITED = re.compile(
    r"(?P<markup><(code|pre|a|math|button)\b.*?</\2>|<[^>]*>)|\[\d{1,6}(?:, ?\d{1,6})*\]", re.DOTALL
)
_DIGITS = re.compile(r"\d+")
_NOTES = {
    "stopped": later("stopped"),
    "interrupted": later("interrupted"),
    "writing": later("still being written"),
}
_SUMMARISE = later(
    "The model writes a summary of the oldest turns, which it sees in their place. They stay in the chat."
)
_LOOPED = later("ended: it had come to repeat itself")
_FULL = later("cut here: the context window is full")


@dataclass(frozen=True, slots=True)
class ShownMessage:
    """A stored message with what is drawn of it beside its text."""

    message: Message
    figures: Figures | None = None
    runs: list[SourceRun] | None = None
    """Where its words came from; None where that is not to be shown."""
    files: Mapping[int, Attachment] = field(default_factory=dict)
    """Those whose text is shown, by id."""
    budget: int = 0
    """Tokens that passages of documents may have."""


def user_message(text: str, actions: str = "", id: int = 0, files: str = "") -> str:
    """Draw what the user typed, as typed: no Markdown, white space kept. Without actions their place stays free."""
    return (
        f'<article class="hc-turn" aria-label="{_("You")}" data-message="{id}">{message_heading(_("You"))}{files}'
        f'<div class="hc-user" dir="auto">{in_pieces(text)}</div>'
        f'<div class="hc-actions hc-mine">{actions}</div></article>'
    )


def files(heads: Iterable[Attachment | AttachmentHead], shown: Mapping[int, Attachment] | None = None) -> str:
    """Draw files that were sent; those in `shown`, by id, with their text. What is not stored yet cannot be shown."""
    sent = "".join(
        _file(head, (shown or {}).get(getattr(head, "id", 0))) for head in heads if not head.number
    )
    return sent and f'<div class="hc-sent">{sent}</div>'


def _file(head: Attachment | AttachmentHead, shown: Attachment | None) -> str:
    label = f"[{head.number}] {head.name}" if head.number else f"{shown_name(head.name)} · {size(head.size)}"
    id = getattr(head, "id", 0)
    if not id:
        return f'<span class="hc-chip hc-chip-name">{html.escape(label)}</span>'
    name = (_("Hide the text of {name}") if shown else _("Show the text of {name}")).format(name=head.name)
    chip = button("hc_attachment", label, id=id, css="hc-chip", aria_expanded="true" if shown else "false",
                  title=name, aria_label=f"{label}. {name}")  # fmt: skip
    if shown is None:
        return chip
    region = f'role="region" aria-label="{html.escape(_("Text of {name}").format(name=head.name))}"'
    return f'{chip}<pre class="hc-file" dir="auto" tabindex="0" {region}>{in_pieces(shown.text)}</pre>'


def _passages(shown: ShownMessage) -> str:
    """Draw the passages of documents that went with a question, folded."""
    found = [head for head in shown.message.attachments if head.number]
    if not found:
        return ""
    label = plural(
        "{n} passage, {used:,} of {budget:,} tokens", "{n} passages, {used:,} of {budget:,} tokens",
        len(found), used=sum(head.size for head in found), budget=shown.budget,
    )  # fmt: skip
    inside = "".join(_file(head, shown.files.get(head.id)) for head in found)
    return fold(f'<div class="hc-sent">{inside}</div>', label, f"passages-{shown.message.id}")


def _cited(reply: str, passages: Mapping[int, AttachmentHead], files: Mapping[int, Attachment]) -> str:
    """Draw a reply's numbers of passages as buttons that open them, and below it those that it names."""
    named: dict[int, AttachmentHead] = {}

    def opener(found: re.Match[str]) -> str:
        head = passages.get(int(found[0]))
        if head is None:
            return found[0]
        named[head.id] = head
        return button(
            "hc_attachment", found[0], id=head.id, css="hc-cite", title=head.name, aria_label=head.name
        )

    def piece(found: re.Match[str]) -> str:
        return found[0] if found["markup"] else _DIGITS.sub(opener, found[0])

    drawn = _CITED.sub(piece, reply) if passages else reply
    below = "".join(_file(head, files.get(head.id)) for _number, head in sorted(named.items()))
    return drawn + (f'<div class="hc-sent hc-cited">{below}</div>' if below else "")


def growing(text: str, words: GrowingReply, seconds: float | None = None, id: int | None = None) -> str:
    """Draw a growing reply. `words` keeps what was drawn of it before, `seconds`: how long it has thought."""
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
    back, forth = step(place - 1, _BACK, _("Previous version")), step(place + 1, _FORTH, _("Next version"))
    return f'<span class="hc-branches">{back}{count}{forth}</span>'


def _user(shown: ShownMessage, unanswered: bool) -> str:
    message = shown.message
    # As where hierchat ended while it waited, or its page was gone when it was stopped.
    note = f'<span class="hc-unanswered">{_("Not answered")}</span>' if unanswered else ""
    again = button("hc_again", _("Answer"), id=message.id) if unanswered else ""
    edit = button("hc_edit", _("Edit"), id=message.id, title=_("Edit"))
    copy = button("hc_copy", _("Copy"), text=message.text, title=_("Copy"))
    attached = files(message.attachments, shown.files) + _passages(shown)
    return user_message(message.text, f"{_siblings(message)}{note}{again}{edit}{copy}", message.id, attached)


def _note(message: Message, figures: Figures) -> str:
    """Say how a reply ended, where it did not come to its end by itself."""
    if message.state in _NOTES:
        note = _(_NOTES[message.state])
        return note if message.text else _("{note} before the first word").format(note=note)
    if figures.finish == "length":
        return _("cut at the limit, after {n:,} tokens").format(n=figures.tokens)
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


def _footer(shown: ShownMessage, question: int | None, last: bool, plain: str, model: str) -> str:
    """Draw what stands below a reply. `question`: the user's message above it; an imported chat may begin with a reply.
    `plain`: why its model writes without drafts; `model`: that is to be named."""
    message, figures = shown.message, shown.figures
    known = figures or Figures()
    note = _("edited by you") if message.edited else _note(message, known) or plain
    buttons = [
        _siblings(message),
        button("hc_continue", _("Continue"), id=message.id) if last and _cut(message, known) else "",
        "" if message.edited else button("hc_sources", _("Sources"), id=message.id, title=_("Sources"),
                                         aria_pressed="false" if shown.runs is None else "true"),
        button("hc_again", _("Again"), id=question, title=_("Regenerate: another reply")) if question else "",
        _same_seed(message, known, question),
        button("hc_edit_reply", _("Edit"), id=message.id, title=_("Edit")) if message.text else "",
        button("hc_copy", _("Copy"), text=split_reasoning(message.text).answer or message.text, title=_("Copy")),
        button("hc_fork", _("Fork"), id=message.id, title=_("Continue in a new chat from here"),
               aria_label=_("Fork: continue in a new chat")),
    ]  # fmt: skip
    if figures or message.model:
        inside = f'<div class="hc-all-facts">{figures_view.details(figures, message.model)}</div>'
        buttons.append(
            f'<details class="hc-details"><summary title="{_("Details")}">{_("Details")}</summary>{inside}</details>'
        )
    line = figures_view.figures_line(known, note, model)
    actions = f'<div class="hc-actions">{"".join(buttons)}</div>'
    return f'<div class="hc-foot" data-message="{message.id}">{line}{actions}</div>'


def _body(shown: ShownMessage, no_runs: str) -> str:
    """Draw the text of a reply, its words marked by source if it has runs; else `no_runs` says why not."""
    message, seconds = shown.message, (shown.figures or Figures()).thought_seconds
    if shown.runs and "".join(run.text for run in shown.runs).startswith(message.text):
        return marked_words(shown.runs, message.text, seconds, message.id)
    return _text(drawn(message.text, seconds, message.id)) + no_runs if message.text else ""


def _summary(message: Message) -> str:
    """Draw what stands in the prompt in place of a message and all above it."""
    edit = button("hc_edit_summary", _("Edit"), id=message.id, text=message.summary, title=_("Edit"))
    undo = button(
        "hc_undo_summary", _("Undo"), id=message.id, title=_("The model sees the turns themselves again")
    )
    said = f'<p class="hc-quiet">{_("In place of all above, the model sees this summary:")}</p>'
    inside = (
        f'{said}{_text(drawn(message.summary, None, message.id))}<div class="hc-actions">{edit}{undo}</div>'
    )
    name = _("Summary")
    return f'<article class="hc-turn hc-summary" aria-label="{name}" data-message="{message.id}">{inside}</article>'


def _rest(act: str, label: str) -> str:
    """The way to messages that are not drawn."""
    return f'<div class="hc-rest">{button(act, label)}</div>'


def _no_runs(figures: Figures | None, present: SlotStatus, here: Collection[str]) -> str:
    """Why a reply's runs cannot be shown, and the button that loads its model where that helps, as HTML."""
    if figures is None or figures.written is None:
        return notice(_("Where the words came from is known only of replies that were written here."))
    model = figures.written.model
    if model == present.name:
        return notice((_(_CHANGED) if present.phase == "ready" else _(_LOAD)).format(model=model))
    if model not in here:
        return notice(_(_GONE).format(model=model))
    name = _("Load {model}").format(model=model)
    load = button("hc_sources_load", _("Load"), text=model, css="hc-strong", aria_label=name)
    return f'<div class="hc-notice">{html.escape(_(_LOAD).format(model=model))} {load}</div>'


def thread(
    path: Sequence[ShownMessage],
    present: SlotStatus,
    here: Collection[str] = (),
    *,
    earlier: bool = False,
    ends: bool = True,
    replying: bool = False,
) -> str:
    """Draw a conversation's path. `here`: models on this machine; `earlier`: there are messages above, not `ends`:
    below; `replying`: a reply to its end is written."""
    result = [_rest("hc_earlier", _("Show earlier messages"))] if earlier else []
    question: int | None = None
    model = ""
    passages: dict[int, AttachmentHead] = {}
    opened: dict[int, Attachment] = {}
    for place, shown in enumerate(path):
        message, last = shown.message, ends and place == len(path) - 1
        if message.role == "user":
            question = message.id
            passages |= {head.number: head for head in message.attachments if head.number}
            opened |= shown.files
            result.append(_user(shown, last and not replying))
        else:
            plain = undrafted(present) if message.model == present.name else ""
            named = message.model if message.model != model else ""
            no_runs = _no_runs(shown.figures, present, here) if shown.runs is not None else ""
            body = _cited(_body(shown, no_runs), passages, opened)
            result.append(_turn(body + _footer(shown, question, last, plain, named)))
            model = message.model or model
        result.append(_summary(message) if message.summary else "")
    if not ends:
        result.append(_rest("hc_latest", _("Go to the latest messages")))
    return "".join(result)


def line(reply: ReplyInProgress, present: SlotStatus, *, loaded: bool) -> str:
    """Say what a reply does: wait, read the prompt, or its figures; empty for a comparison, which says it itself."""
    if (state := reply.latest) is None:
        return status.waiting(_("Waiting for the model…"))
    if (ahead := places_ahead(state)) is not None:
        return status.waiting_line(ahead, present, loaded=loaded)
    if isinstance(state, CompareFrame):
        return ""
    note = status.notice(state.notice) if state.notice else ""
    if state.phase == "reading":
        return note + status.reading_line(state)
    return note + figures_view.figures_line(state.figures, status.undrafted(present))


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
    summarise = button("hc_summarise", _("Summarise"), css="hc-strong", title=_(_SUMMARISE))
    return status.notice(state.notice, summarise if state.outgrown else "") if state.notice else ""


def tray(session: Session, queued: Sequence[ReplyInProgress]) -> str:
    """Draw files and, of those `queued`, waiting messages of the open chat. The page keeps the files of all chats."""
    files = "".join(map(_chip, session.files))
    waiting = "".join(_waiting(one) for one in queued if one.conversation_id == (session.conversation or 0))
    next_name, files_name = _("Messages that will be sent next"), _("Attached files")
    lists = f'<ol class="hc-next" aria-label="{next_name}">{waiting}</ol>' if waiting else ""
    lists += (
        f'<ul class="hc-files" aria-label="{files_name}" aria-live="polite">{files}</ul>' if files else ""
    )
    held = [
        {"chat": chat, "key": file.key, "name": file.name}
        for chat, many in list(session.attached.items())
        for file in many
        if file.file
    ]
    state, known = html.escape(json.dumps({"files": held})), "yes" if session.restored else ""
    return f'<div class="hc-tray" data-state="{state}" data-known="{known}">{lists}</div>'


def _chip(file: Attached) -> str:
    name = html.escape(shown_name(file.name))
    if file.file is None:
        return (
            f'<li class="hc-chip" data-file="{file.key}" data-reading><span class="hc-chip-name">{name}</span>'
            f"{_fact(_('being read…'))}</li>"
        )
    facts = size(file.file.size)
    if file.tokens is not None:
        counted = _("{size} · more than {tokens:,} tokens") if file.more else _("{size} · {tokens:,} tokens")
        facts = counted.format(size=facts, tokens=file.tokens)
    inline = button("hc_inline", _("Insert as text"), text=file.key) if file.pasted else ""
    label = _("Remove {name}").format(name=file.name)
    away = button("hc_detach", _CROSS, text=file.key, aria_label=label, title=_("Remove"))
    return (
        f'<li class="hc-chip" data-file="{file.key}"><span class="hc-chip-name" title="{name}">{name}</span>'
        f"{_fact(facts)}{inline}{away}</li>"
    )


def _waiting(one: ReplyInProgress) -> str:
    title, number = html.escape(one.title), str(one.number)
    label = _("Edit “{title}”, which will be sent next").format(title=one.title)
    edit = button("hc_next_edit", _("Edit"), text=number, aria_label=label)
    label = _("Do not send “{title}”").format(title=one.title)
    away = button("hc_next_cancel", _CROSS, text=number, title=_("Do not send"), aria_label=label)
    said = f'{_fact(_("Will be sent next:"))}<span class="hc-chip-name" dir="auto">{title}</span>'
    return f'<li class="hc-chip">{said}{edit}{away}</li>'


def _fact(text: str) -> str:
    return f'<span class="hc-chip-fact">{text}</span>'


def shown_name(name: str) -> str:
    """The name of a file for the eye: of pasted text, which has none of its own, in the reader's language."""
    return _(PASTED) if name == PASTED else name
