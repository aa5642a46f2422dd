"""Draw the user's own texts in the settings: which draft, and a way to add a file or folder."""

import shutil
from collections.abc import Callable
from functools import partial
from typing import Any

import gradio as gr

from hierchat.chat.service import ChatService
from hierchat.chat.wording import tokens
from hierchat.language import _, error_words, plural
from hierchat.models.cache import gigabytes
from hierchat.models.progress import ModelError
from hierchat.page import status
from hierchat.page.event_data import MOST_FILES, PageEvent
from hierchat.page.guard import OwnerOnly, PageEvents, require_owner
from hierchat.page.page_sessions import Session
from hierchat.page.panels.panel import PanelPart, still
from hierchat.page.templates import Macros
from hierchat.runtime.user_documents import Addition, UserDocument
from hierchat.texts.text_files import KNOWN, CorpusError

Act = Callable[["PageEvent"], str | None]
"""What a button does to the texts of that name; the sentence to say, where the list does not tell it."""


class DocumentsPart(PanelPart):
    """Part for the user's own texts. Only the owner names files of this machine, and sees which texts there are."""

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
            "hc_texts_add": lambda event: self._texts.add(event.text),
            "hc_texts_files": self._add_files,
            "hc_texts_again": lambda event: self._texts.add_again(event.text),
            "hc_texts_stop": lambda event: self._texts.stop(),
            "hc_texts_removed": self._remove,
        }
        for name, act in acts.items():
            page.on(name, partial(self._answer, act), outputs=self.outputs)
        page.on(self._timer.tick, lambda event: self.show(event.session), outputs=self.outputs)

    def show(self, session: Session, said: str = "") -> dict[Any, Any]:
        """Draw this part of the page; other users than the owner get nothing. The timer runs only during work."""
        texts, owner = self._texts, self._service.users.is_owner(session.user)
        shown = {
            self._said: said,
            self._timer: gr.Timer(active=owner and texts.busy),
        }
        if not owner:
            return dict.fromkeys([self._list, self._form, self._state], "") | shown
        return shown | {
            self._list: listing(texts.rows(), texts.model),
            self._form: _drawn.adding(),
            self._state: progress(texts.addition),
        }

    def _answer(self, act: Act, event: PageEvent) -> dict[Any, Any]:
        try:
            require_owner(self._service, event.user)
            said = act(event)
        except (CorpusError, ModelError, OwnerOnly) as error:
            return self.show(event.session, status.error(str(error)))
        return self.show(event.session, status.notice(said) if said else "")

    def _add_files(self, event: PageEvent) -> None:
        folder = event.folder_of_files()
        try:
            self._texts.add_files(folder, event.text)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def _remove(self, event: PageEvent) -> str:
        self._texts.remove(event.text)
        return _("{name} drafts no more.").format(name=event.text)


def _facts(row: UserDocument, model: str) -> list[str]:
    facts = [tokens(row.tokens)] if row.tokens else [_("not read to the end")]
    facts += [gigabytes(row.size), _("from {places}").format(places=", ".join(row.sources))]
    if row.trouble:
        facts.append(error_words(row.trouble))
    elif row.drafts:
        facts.append(_("drafts for {model}").format(model=model))
    elif model:
        made = _(", but for {models}").format(models=", ".join(row.models)) if row.models else ""
        facts.append(_("not for {model}{made}").format(model=model, made=made))
    return facts


def _added(now: Addition) -> str:
    return plural(
        "{name}: {n:,} token. Replies use it from now on.",
        "{name}: {n:,} tokens. Replies use them from now on.",
        now.tokens, name=now.name,
    )  # fmt: skip


_drawn = Macros(
    "documents.html", KNOWN=KNOWN, MOST_FILES=MOST_FILES, gigabytes=gigabytes, facts_of=_facts, added=_added,
)  # fmt: skip
listing, progress = _drawn.listing, _drawn.progress
