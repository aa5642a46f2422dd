"""Texts of one's own in the settings: which draft, and a way to add a file or folder, after a look at what it holds."""

from __future__ import annotations

import html
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gradio as gr

from hierchat.access.files import files
from hierchat.chat.wording import tokens
from hierchat.language import _, later, plural
from hierchat.models.cache import gigabytes
from hierchat.models.progress import ModelError
from hierchat.page import status
from hierchat.page.buttons import button
from hierchat.page.guard import OwnerOnly, require_owner
from hierchat.page.panels.panel import QUIET, SessionOf
from hierchat.store import LOCAL_USER
from hierchat.texts.text_files import KNOWN, CorpusError

if TYPE_CHECKING:
    from hierchat.chat.service import ChatService
    from hierchat.models.progress import Progress
    from hierchat.page.page_sessions import Session
    from hierchat.runtime.drafters import Gain
    from hierchat.runtime.user_documents import Addition, LastReplies, UserDocument
    from hierchat.texts.previews import Preview

MOST_FILES = 1_000
"""That are sent at once; a folder that holds more is read where it lies."""
_NAMED = 20
"""Files, or kinds of them, that are named at most."""
_WORTH_TELLING = 0.01
"""More tokens a forward, as a share."""
_ABOUT = later(
    "Notes, code, PDF files, exported chats: where a reply says what stands there, it comes faster. They are kept on "
    "this machine, as a copy."
)
_HOW = later(
    "The path of a file or folder on this machine; or drop files or a folder here. Nothing is added before you have "
    "seen what it holds."
)
_DOING = {
    "looking": later("Looking at {name}…"),
    "sorting": later("Sorting {name}…"),
    "stopping": later("Stopping…"),
}
Act = Callable[[str, "Session", int], str | None]
"""What a button of this user does to the texts of that name; the sentence to say, where the list does not tell it."""


@dataclass(frozen=True, slots=True)
class DocumentsComponents:
    """Hold the components of the part for documents."""

    said: Any
    list: Any
    form: Any
    state: Any
    """How far it is."""
    timer: Any

    @property
    def outputs(self) -> list[Any]:
        """Return the components that change."""
        return [self.said, self.list, self.form, self.state, self.timer]


def build() -> DocumentsComponents:
    """The components, inside the Blocks context that is open."""
    said = gr.HTML("", elem_id="hc-texts-said")
    rows = gr.HTML("", elem_id="hc-texts", apply_default_css=False, js_on_load=None)
    form = gr.HTML("", elem_id="hc-texts-form", apply_default_css=False, js_on_load=None)
    state = gr.HTML("", elem_id="hc-texts-state", apply_default_css=False, js_on_load=None)
    return DocumentsComponents(said, rows, form, state, gr.Timer(1.0, active=False))


class UserDocumentsHandlers:
    """The handlers. Only the owner names files of this machine, and sees which texts there are."""

    def __init__(self, service: ChatService, panel: DocumentsComponents) -> None:
        self._texts = service.texts
        self._last_replies = service.last_replies
        self._service = service
        self._panel = panel

    @property
    def outputs(self) -> list[Any]:
        """The components that `drawn` changes."""
        return self._panel.outputs

    def wire(self, bus: Any, session_of: SessionOf, live: Any) -> None:
        """Join them to their buttons."""
        outputs = [*self._panel.outputs, live]
        acts: dict[str, Act] = {
            "hc_texts_look": lambda text, session, user: self._texts.look(text, self._written_for(user)),
            "hc_texts_add": lambda text, session, user: self._texts.add(),
            "hc_texts_again": lambda text, session, user: self._texts.add_again(text),
            "hc_texts_watch": self._watch,
            "hc_texts_stop": lambda text, session, user: self._texts.stop(),
            "hc_texts_remove": self._ask,
            "hc_texts_removed": self._remove,
            "hc_texts_keep": lambda text, session, user: None,
        }
        for name, act in acts.items():
            getattr(bus, name)(self._answering(act, session_of), None, outputs, **QUIET)

        def sent(event: gr.EventData, request: gr.Request) -> dict[Any, Any]:
            tickets, owner = event._data["tickets"], request.username or LOCAL_USER
            with ExitStack() as done:
                held = []
                for ticket in tickets[:MOST_FILES] if isinstance(tickets, list) else []:
                    held.append(files.take(str(ticket), owner))
                    done.callback(files.remove, held[-1])
                return self._answering(
                    lambda text, session, user: self._look_at(held, text, user), session_of
                )(event, request)

        def tick(request: gr.Request) -> dict[Any, Any]:
            return self.drawn(session_of(request)[1])

        bus.hc_texts_files(sent, None, outputs, **QUIET)
        self._panel.timer.tick(tick, None, outputs, **QUIET)

    def drawn(self, user_id: int, said: str = "", removing: str = "") -> dict[Any, Any]:
        """Draw the part as it is now; the timer rests where nothing is being done. `removing`: about which is asked.
        Nothing for others than the owner."""
        texts, panel, owner = self._texts, self._panel, self._service.users.is_owner(user_id)
        return {
            panel.said: said,
            panel.list: (listing(texts.rows(), texts.model, removing) + shipping(texts.shipped))
            if owner
            else "",
            panel.form: form() if owner else "",
            panel.state: progress(texts.addition) if owner and texts.addition else "",
            panel.timer: gr.Timer(active=owner and (texts.busy or texts.shipped is not None)),
        }

    def _answering(self, act: Act, session_of: SessionOf) -> Callable[..., dict[Any, Any]]:
        def answer(event: gr.EventData, request: gr.Request) -> dict[Any, Any]:
            session, user = session_of(request)
            session.removing = ""
            try:
                require_owner(self._service, user)
                said = act(str(event._data["text"]), session, user)
            except (CorpusError, ModelError, OwnerOnly) as error:
                return self.drawn(user, status.error(str(error)))
            return self.drawn(user, status.notice(said) if said else "", session.removing)

        return answer

    def _look_at(self, held: Iterable[Path], name: str, user: int) -> None:
        """Move files into one folder, each under a name of its own, and look at them."""
        folder = files.place("texts").parent
        try:
            for path in held:
                path.rename(_unused(folder / path.name))
            self._texts.look_at_files(folder, name, self._written_for(user))
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def _written_for(self, user: int) -> LastReplies:
        return partial(self._last_replies, user)

    def _watch(self, name: str, session: Session, user: int) -> None:
        self._texts.watch(name)

    def _ask(self, name: str, session: Session, user: int) -> None:
        session.removing = name

    def _remove(self, name: str, session: Session, user: int) -> str:
        self._texts.remove(name)
        return _("{name} drafts no more.").format(name=name)


def listing(rows: Sequence[UserDocument], model: str, removing: str) -> str:
    """The texts that there are. `removing`: about which is asked."""
    entries = "".join(_entry(row, model, row.name == removing) for row in rows)
    there = f'<ul class="hc-rows hc-texts">{entries}</ul>' if rows else ""
    return f'<h3>{_("Texts of your own")}</h3><p class="hc-quiet">{_(_ABOUT)}</p>{there}'


def shipping(reading: Progress | None) -> str:
    """Draw how the texts that ship are read, on their way to the loaded model; it needs no words once it drafts."""
    if reading is None:
        return ""
    bar = status.progress_bar(reading.done, reading.total) if reading.total else ""
    said = _(
        "The phrases that come with hierchat are being read for this model, once. You can chat meanwhile."
    )
    return f'<div class="hc-wait" role="status">{said}{bar}</div>'


def form() -> str:
    """Draw the form where files are named or dropped; its script is own_texts.js."""
    known = html.escape(" ".join(sorted(KNOWN)))
    return (
        f'<div class="hc-texts-drop" role="group" aria-label="{_("Add texts")}" data-known="{known}" '
        f'data-most="{MOST_FILES}">'
        f'<div class="hc-add"><input type="text" id="hc-texts-path" aria-label="{_("Path of a file or folder")}" '
        'placeholder="~/notes" autocomplete="off" spellcheck="false">'
        f"{button('hc_texts_path', _('Look'), css='hc-strong')}"
        f"{button('hc_texts_choose', _('Choose texts…'), css='hc-bordered')}</div>"
        f'<p class="hc-quiet">{_(_HOW)}</p><p class="hc-quiet hc-texts-sending" role="status"></p></div>'
    )


def progress(now: Addition) -> str:
    """Draw what is being added, or how that ended."""
    if now.phase == "failed":
        return status.error(now.message)
    if now.phase == "done":
        told = plural(
            "{name}: {n:,} token. It drafts from the next reply on.",
            "{name}: {n:,} tokens. They draft from the next reply on.",
            now.tokens,
            name=now.name,
        )
        return status.notice(told) + _details(_("What was not read as usual"), now.unread)
    if now.phase == "looked" and now.preview:
        return _looked(now.name, now.preview, now.gain)
    stop = button("hc_texts_stop", _("Stop"), css="hc-bordered") if now.phase != "stopping" else ""
    if now.phase == "reading" and now.total:
        said = _("Reading {name}: {done} of {total}").format(
            name=html.escape(now.name), done=gigabytes(now.done), total=gigabytes(now.total)
        )
        bar = status.progress_bar(now.done, now.total)
        return f'<div class="hc-wait">{said}{bar}</div>{_buttons(stop)}'
    said = _(_DOING.get(now.phase, later("Reading {name}…"))).format(name=now.name)
    return status.waiting(said) + _buttons(stop)


def _looked(name: str, found: Preview, brings: Gain | None) -> str:
    """Draw what was found, and the choice to add it."""
    if not found.files:
        said = _("Nothing in it can be read as text.")
    else:
        said = f"{_files(found.files)}, {gigabytes(found.size)}"
        said += _(", roughly {tokens:,} tokens").format(tokens=_rounded(found.tokens)) if found.tokens else ""
        said += (
            _("; how much text {files} of them hold is seen when they are read").format(
                files=_files(found.closed)
            )
            if found.closed
            else ""
        )
        said += "."
    left = _left_out(found.left_out)
    add = (
        button("hc_texts_add", _("Add"), css="hc-strong", aria_label=_("Add {name}").format(name=name))
        if found.files
        else ""
    )
    holds = _("What {name} holds").format(name=name)
    cancel = button("hc_texts_stop", _("Cancel"), css="hc-bordered")
    return (
        f'<div class="hc-texts-looked" role="group" aria-label="{html.escape(holds)}">'
        f"<p><b>{html.escape(name)}</b>: {said}</p>{_brings(brings)}{left}"
        f"{_details(_('What cannot be looked into'), found.passed_over)}{_buttons(add + cancel)}</div>"
    )


def _brings(gain: Gain | None) -> str:
    """Say what a document would have done for the last replies."""
    if gain is None:
        return ""
    share = gain.after / gain.before - 1
    said = (
        plural(
            "Tried on your last reply: {after:.2f} tokens at a time in place of {before:.2f}, {share:.0%} more.",
            "Tried on your last {n} replies: {after:.2f} tokens at a time in place of {before:.2f}, {share:.0%} more.",
            gain.replies,
            after=gain.after,
            before=gain.before,
            share=share,
        )
        if share >= _WORTH_TELLING
        else plural(
            "Tried on your last reply: it would not have come faster with these texts.",
            "Tried on your last {n} replies: they would not have come faster with these texts.",
            gain.replies,
        )
    )
    return f'<p class="hc-texts-gain">{html.escape(said)}</p>'


def _left_out(left: Mapping[str, int]) -> str:
    if not left:
        return ""
    kinds = [f"{count:,} {what if count > 1 else what.replace('files', 'file').replace('folders', 'folder')}"
             for what, count in list(left.items())[:_NAMED]]  # fmt: skip
    more = _(" and {n} other kinds").format(n=len(left) - _NAMED) if len(left) > _NAMED else ""
    said = _("Left out: {kinds}{more}.").format(kinds=", ".join(kinds), more=more)
    return f'<p class="hc-quiet">{html.escape(said)}</p>'


def _entry(row: UserDocument, model: str, asked: bool) -> str:
    name = html.escape(row.name)
    facts = [tokens(row.tokens)] if row.tokens else [_("not read to the end")]
    facts += [gigabytes(row.size), _("from {places}").format(places=", ".join(row.sources))]
    if row.trouble:
        facts.append(row.trouble)
    elif row.drafts:
        facts.append(_("drafts for {model}").format(model=model))
        facts += [_("changes are read within a minute")] if row.watched else []
    elif model:
        made = _(", but for {models}").format(models=", ".join(row.models)) if row.models else ""
        facts.append(_("not for {model}{made}").format(model=model, made=made))
    said = f"<b>{name}</b> <span>{html.escape(' · '.join(facts))}</span>"
    if asked:
        remove = button("hc_texts_removed", _("Remove"), text=row.name, css="hc-danger hc-bordered")
        keep = button("hc_texts_keep", _("Keep"), text=row.name, css="hc-bordered")
        ask = _("Remove {name}?").format(name=name)
        frees = _("It frees {size}.").format(size=gigabytes(row.size))
        own = _("Your own files stay where they are. ") if not row.sources[0].endswith("/files") else ""
        return (
            f'<li>{said}<div class="hc-ask-remove" role="group" aria-label="{ask}">'
            f"<p>{ask} {own}{frees}</p>{_buttons(remove + keep)}</div></li>"
        )
    acts = ""
    if row.possible:
        label = _("Read for {model}, too").format(model=model)
        acts += button(
            "hc_texts_again", label, text=row.name, css="hc-bordered", aria_label=f"{label}: {row.name}"
        )
    if row.watched or (row.drafts and row.watchable):
        label = _("Stop watching") if row.watched else _("Watch for changes")
        acts += button(
            "hc_texts_watch", label, text=row.name, css="hc-bordered", aria_label=f"{label}: {row.name}"
        )
    acts += button(
        "hc_texts_remove",
        _("Remove"),
        text=row.name,
        css="hc-bordered",
        aria_label=_("Remove {name}").format(name=row.name),
    )
    return f"<li>{said}{_buttons(acts)}</li>"


def _details(title: str, lines: Sequence[str]) -> str:
    if not lines:
        return ""
    named = "".join(f"<li>{html.escape(line)}</li>" for line in lines[:_NAMED])
    more = f"<li>{_('and {n:,} more').format(n=len(lines) - _NAMED)}</li>" if len(lines) > _NAMED else ""
    return f"<details><summary>{title}</summary><ul>{named}{more}</ul></details>"


def _buttons(buttons: str) -> str:
    return f'<div class="hc-texts-acts">{buttons}</div>' if buttons else ""


def _files(count: int) -> str:
    return plural("{n:,} file", "{n:,} files", count)


def _rounded(count: int) -> int:
    """Round an estimate to two digits."""
    digits = max(len(str(count)) - 2, 0)
    return round(count, -digits)


def _unused(path: Path) -> Path:
    """This path, or with a number where there is a file already."""
    names = (path, *(path.with_stem(f"{path.stem} ({number})") for number in range(2, MOST_FILES + 2)))
    return next(one for one in names if not one.exists())
