"""Texts of one's own in the settings: which draft, and a way to add a file or folder, after a look at what it holds."""

from __future__ import annotations

import html
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import gradio as gr

from hierchat.chat.wording import tokens
from hierchat.language import _, error_words, later, plural
from hierchat.models.cache import gigabytes
from hierchat.models.progress import ModelError
from hierchat.page import status
from hierchat.page.buttons import button
from hierchat.page.documents_form import NAMED, form
from hierchat.page.guard import OwnerOnly, require_owner
from hierchat.page.panels.panel import PanelPart, still
from hierchat.texts.text_files import CorpusError

if TYPE_CHECKING:
    from hierchat.chat.service import ChatService
    from hierchat.models.progress import Progress
    from hierchat.page.event_data import PageEvent
    from hierchat.page.guard import PageEvents
    from hierchat.page.page_sessions import Session
    from hierchat.runtime.drafters import Gain
    from hierchat.runtime.user_documents import Addition, LastReplies, UserDocument
    from hierchat.texts.previews import Preview

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
    "looking": later("Checking {name}…"),
    "sorting": later("Sorting {name}…"),
    "stopping": later("Stopping…"),
}
Act = Callable[["PageEvent"], str | None]
"""What a button does to the texts of that name; the sentence to say, where the list does not tell it."""


class DocumentsPart(PanelPart):
    """Texts of one's own. Only the owner names files of this machine, and sees which texts there are."""

    def __init__(self, service: ChatService) -> None:
        super().__init__(service)
        self._texts = service.texts

    def build(self) -> None:
        self._said = gr.HTML("", elem_id="hc-texts-said")
        self._list = still("hc-texts")
        self._form = still("hc-texts-form")
        self._state = still("hc-texts-state")
        """How far it is."""
        self._timer = gr.Timer(1.0, active=False)
        self.outputs = [self._said, self._list, self._form, self._state, self._timer]

    def wire(self, page: PageEvents) -> None:
        acts: dict[str, Act] = {
            "hc_texts_look": lambda event: self._texts.look(event.text, self._written_for(event)),
            "hc_texts_files": self._look_at_files,
            "hc_texts_add": lambda event: self._texts.add(),
            "hc_texts_again": lambda event: self._texts.add_again(event.text),
            "hc_texts_watch": lambda event: self._texts.watch(event.text),
            "hc_texts_stop": lambda event: self._texts.stop(),
            "hc_texts_remove": self._ask,
            "hc_texts_removed": self._remove,
            "hc_texts_keep": lambda event: None,
        }
        for name, act in acts.items():
            page.on(name, self._answering(act), outputs=self.outputs)

        def tick(event: PageEvent) -> dict[Any, Any]:
            return self.show(event.session)

        page.on(self._timer.tick, tick, outputs=self.outputs)

    def show(self, session: Session, said: str = "", removing: str = "") -> dict[Any, Any]:
        """Draw the part, for the owner alone; the timer rests if nothing is done. `removing`: what is asked about."""
        texts, owner = self._texts, self._service.users.is_owner(session.user)
        shown = {
            self._said: said,
            self._timer: gr.Timer(active=owner and (texts.busy or texts.shipped is not None)),
        }
        if not owner:
            return dict.fromkeys([self._list, self._form, self._state], "") | shown
        return shown | {
            self._list: listing(texts.rows(), texts.model, removing) + shipping(texts.shipped),
            self._form: form("hc_texts", _("Inspect"), _(_HOW)),
            self._state: progress(texts.addition) if texts.addition else "",
        }

    def _answering(self, act: Act) -> Callable[..., dict[Any, Any]]:
        def answer(event: PageEvent) -> dict[Any, Any]:
            session = event.session
            session.removing = ""
            try:
                require_owner(self._service, session.user)
                said = act(event)
            except (CorpusError, ModelError, OwnerOnly) as error:
                return self.show(session, status.error(str(error)))
            return self.show(session, status.notice(said) if said else "", session.removing)

        return answer

    def _look_at_files(self, event: PageEvent) -> None:
        """Look at the files that came in."""
        folder = event.folder_of_files()
        try:
            self._texts.look_at_files(folder, event.text, self._written_for(event))
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def _written_for(self, event: PageEvent) -> LastReplies:
        return partial(self._service.last_replies, event.user)

    def _ask(self, event: PageEvent) -> None:
        event.session.removing = event.text

    def _remove(self, event: PageEvent) -> str:
        self._texts.remove(event.text)
        return _("{name} drafts no more.").format(name=event.text)


def listing(rows: Sequence[UserDocument], model: str, removing: str) -> str:
    """The texts that there are. `removing`: about which is asked."""
    entries = "".join(_entry(row, model, row.name == removing) for row in rows)
    there = f'<ul class="hc-rows hc-texts">{entries}</ul>' if rows else ""
    return f'<h3>{_("Documents")}</h3><p class="hc-quiet">{_(_ABOUT)}</p>{there}'


def shipping(reading: Progress | None) -> str:
    """Draw how the texts that ship are read, on their way to the loaded model; it needs no words once it drafts."""
    if reading is None:
        return ""
    bar = status.progress_bar(reading.done, reading.total) if reading.total else ""
    said = _(
        "The phrases that come with hierchat are being read for this model, once. You can chat meanwhile."
    )
    return f'<div class="hc-wait" role="status">{said}{bar}</div>'


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
        unusual = status.folded(_("What was not read as usual"), now.unread, len(now.unread), NAMED)
        return status.notice(told) + unusual
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
    said, add = _("Nothing in it can be read as text."), ""
    if found.files:
        said = f"{_files(found.files)}, {gigabytes(found.size)}"
        if found.tokens:
            two_digits = round(found.tokens, -max(len(str(found.tokens)) - 2, 0))
            said += _(", roughly {tokens:,} tokens").format(tokens=two_digits)
        if found.closed:
            closed = _("; how much text {files} of them hold is seen when they are read")
            said += closed.format(files=_files(found.closed))
        said += "."
        label = _("Add {name}").format(name=name)
        add = button("hc_texts_add", _("Add"), css="hc-strong", aria_label=label)
    left = _left_out(found.left_out)
    holds = _("What {name} holds").format(name=name)
    cancel = button("hc_texts_stop", _("Cancel"), css="hc-bordered")
    unseen = status.folded(_("What cannot be looked into"), found.passed_over, len(found.passed_over), NAMED)
    return (
        f'<div class="hc-texts-looked" role="group" aria-label="{html.escape(holds)}">'
        f"<p><b>{html.escape(name)}</b>: {said}</p>{_brings(brings)}{left}"
        f"{unseen}{_buttons(add + cancel)}</div>"
    )


def _brings(gain: Gain | None) -> str:
    """Say what a document would have done for the last replies."""
    if gain is None:
        return ""
    share = gain.after / gain.before - 1
    said = plural(
        "Tried on your last reply: it would not have come faster with these texts.",
        "Tried on your last {n} replies: they would not have come faster with these texts.",
        gain.replies,
    )
    if share >= _WORTH_TELLING:
        said = plural(
            "Tried on your last reply: {after:.2f} tokens at a time in place of {before:.2f}, {share:.0%} more.",
            "Tried on your last {n} replies: {after:.2f} tokens at a time in place of {before:.2f}, {share:.0%} more.",
            gain.replies, after=gain.after, before=gain.before, share=share,
        )  # fmt: skip
    return f'<p class="hc-texts-gain">{html.escape(said)}</p>'


def _left_out(left: Mapping[str, int]) -> str:
    if not left:
        return ""
    kinds = [f"{count:,} {what if count > 1 else what.replace('files', 'file').replace('folders', 'folder')}"
             for what, count in list(left.items())[:NAMED]]  # fmt: skip
    more = _(" and {n} other kinds").format(n=len(left) - NAMED) if len(left) > NAMED else ""
    said = _("Left out: {kinds}{more}.").format(kinds=", ".join(kinds), more=more)
    return f'<p class="hc-quiet">{html.escape(said)}</p>'


def _entry(row: UserDocument, model: str, asked: bool) -> str:
    name = html.escape(row.name)
    facts = [tokens(row.tokens)] if row.tokens else [_("not read to the end")]
    facts += [gigabytes(row.size), _("from {places}").format(places=", ".join(row.sources))]
    if row.trouble:
        facts.append(error_words(row.trouble))
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
        return f"<li>{said}{status.confirmation(ask, f'{ask} {own}{frees}', _buttons(remove + keep))}</li>"

    def act(name: str, label: str, about: str = "") -> str:
        about = about or f"{label}: {row.name}"
        return button(name, label, text=row.name, css="hc-bordered", aria_label=about)

    acts = ""
    if row.possible:
        acts += act("hc_texts_again", _("Read for {model}, too").format(model=model))
    if row.watched or (row.drafts and row.watchable):
        acts += act("hc_texts_watch", _("Stop watching") if row.watched else _("Watch for changes"))
    acts += act("hc_texts_remove", _("Remove"), _("Remove {name}").format(name=row.name))
    return f"<li>{said}{_buttons(acts)}</li>"


def _buttons(buttons: str) -> str:
    return f'<div class="hc-texts-acts">{buttons}</div>' if buttons else ""


def _files(count: int) -> str:
    return plural("{n:,} file", "{n:,} files", count)
