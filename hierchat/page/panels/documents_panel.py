"""Draw the user's own texts in the settings: which draft, and a way to add a file or folder."""

import shutil
from collections.abc import Callable
from functools import partial
from typing import Any

import gradio as gr

from hierchat.chat.service import ChatService
from hierchat.language import _
from hierchat.models.cache import gigabytes
from hierchat.models.progress import ModelError
from hierchat.page import status
from hierchat.page.event_data import MOST_FILES, PageEvent
from hierchat.page.guard import OwnerOnly, PageEvents, require_owner
from hierchat.page.page_sessions import Session
from hierchat.page.panels.panel import PanelPart, still
from hierchat.page.templates import Macros
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


_drawn = Macros("documents.html", KNOWN=KNOWN, MOST_FILES=MOST_FILES, gigabytes=gigabytes)
listing, progress = _drawn.listing, _drawn.progress
