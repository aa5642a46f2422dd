"""Import and export chats on the page: the panel, and what its buttons and those of a chat's menu do."""

import time
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import gradio as gr

from hierchat.access.files import files
from hierchat.language import _, plural
from hierchat.page import status
from hierchat.page.buttons import KEY
from hierchat.page.event_data import PageEvent
from hierchat.page.guard import PageEvents
from hierchat.page.panels.panel import PanelPart
from hierchat.page.templates import Macros
from hierchat.texts.importing import KNOWN

T = TypeVar("T")
_drawn = Macros("transfer.html", KNOWN_EXPORTS=KNOWN)
SHOW_SECONDS = 0.25
"""Between two looks at how far it is."""
MOST_FILES = 200
_ENOUGH_TOKENS = 1_000
"""So many must have been written here before it is said which part of them earlier chats drafted."""


class TransferPart(PanelPart):
    """Part that imports and exports chats."""

    def build(self) -> None:
        gr.HTML(_drawn.transfer(), elem_id="hc-transfer")
        self._state = gr.HTML("", elem_id="hc-transfer-state")
        self._out = gr.HTML("", elem_id="hc-out")
        """Where a finished export can be fetched: the page does that at once."""
        self.outputs = [self._state, self._out]

    def wire(self, page: PageEvents) -> None:
        self._views = page.views
        page.on("hc_import", self.bring_in, trigger_mode="multiple")
        page.on("hc_import_stop", self.stop, outputs=[page.parts.live])
        page.on("hc_export", self.bring_out, outputs=self.outputs, trigger_mode="multiple")

    def bring_in(self, event: PageEvent) -> Iterator[dict[Any, Any]]:
        session, user, state, data = event.session, event.user, self._state, self._service.data
        with event.files(MOST_FILES) as paths:
            importing = data.importing(user, paths)
            session.importing = importing.stop
            for _step in _now_and_then(importing):
                yield {state: _drawn.importing(importing)}
        data.imported(user, importing)
        yield {state: status.waiting(_("Reading them…"))} | self._views.chats(session)
        worth = ""
        if importing.stop.is_set():
            worth = _("Cancelled. What was imported stays, and the same file goes on from there.")
        elif importing.messages:
            tokens: int | None = None
            for tokens in _now_and_then(self._service.read_in(user)):
                reading = _("Reading them: {tokens:,} tokens can draft so far").format(tokens=tokens)
                yield {state: status.waiting(reading)}
            worth = self._worth(user, tokens)
        yield {state: _drawn.outcome(importing, worth)} | self._views.chats(session)

    def stop(self, event: PageEvent) -> None:
        """Stop this page's import, which then says how far it came."""
        event.session.importing.set()

    def bring_out(self, event: PageEvent) -> Iterator[dict[Any, Any]]:
        """Export one chat, all for 0, or a project with its own, as a file that the page downloads."""
        user, wanted, markdown = event.user, event.id, event.text == "markdown"
        project = wanted if event.text == "project" else None
        if project:
            wanted, name = 0, f"{self._service.projects.get(user, project).name.replace('/', ' ')}.json"
        elif not wanted:
            name = "hierchat chats.zip" if markdown else "hierchat chats.json"
        else:
            title = self._service.chats.get(user, wanted).title or "Chat"
            name = "chat" if markdown else f"{title.replace('/', ' ')}.json"
        place = files.place(name)
        total, written = self._service.data.exporting(
            user, place, markdown=markdown, chat=wanted or None, project=project
        )
        count = 0
        try:
            for count in _now_and_then(written):
                if not wanted:
                    yield {self._state: _drawn.progress(_("Exporting chats"), count, count, total)}
            (path,) = place.iterdir() if place.is_dir() else [place]
            if path != place:  # out of its folder
                path = path.rename(place.parent / path.name)
            ticket = files.hold(path, event.session.name)
        except BaseException:
            files.remove(place)
            raise
        link = f'<a href="transfer/out/{ticket}" data-key="{KEY}"></a>'
        told = status.notice(_("{count} exported.").format(count=plural("{n:,} chat", "{n:,} chats", count)))
        yield {self._out: link} | ({} if wanted else {self._state: told})

    def _worth(self, user: int, tokens: int | None) -> str:
        """Say how many tokens of imported chats can draft. `tokens`: None while no model is loaded here."""
        if tokens is None:
            return _("What they say drafts as soon as a model is loaded.")
        said = _(
            "What they say drafts from the next reply on: {tokens:,} tokens of your chats can draft for {name}."
        ).format(tokens=tokens, name=self._service.model_status.name)
        totals = self._service.data.totals(user)
        history = totals.accepted_by_source.get("history", 0)
        if totals.tokens >= _ENOUGH_TOKENS and history:
            said += _(" So far {share:.0%} of the tokens written here came from earlier chats.").format(
                share=history / totals.tokens
            )
        return said


def _now_and_then(steps: Iterable[T]) -> Iterator[T]:
    """Run through all steps; yield one as often as a reader can follow, and the last."""
    shown = time.monotonic()
    left: list[T] = []
    for one in steps:
        left = [one]
        if time.monotonic() - shown >= SHOW_SECONDS:
            shown = time.monotonic()
            yield left.pop()
    yield from left
