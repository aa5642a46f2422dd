"""Wrap every handler: whatever goes wrong becomes a sentence, and the page stays usable. What was drawn
of a conversation that is not on the screen any more is drawn anew: handlers of one page run beside each other."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from copy import copy
from typing import TYPE_CHECKING, Any

import gradio as gr
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from hierchat import logs
from hierchat.language import (
    ENGLISH,
    _,
    catalogues,
    chosen,
    current,
    each_spoken,
    name_of,
    spoken,
    translated,
)
from hierchat.page import status
from hierchat.page.chat_settings import InvalidSettings
from hierchat.page.components import Components
from hierchat.page.event_data import values
from hierchat.page.page_sessions import Stale
from hierchat.page.panels.panel import SessionOf
from hierchat.page.views import Update, Views
from hierchat.store import NotFound

if TYPE_CHECKING:
    from hierchat.chat.service import ChatService

log = logging.getLogger(__name__)
SETTINGS = "settings"
"""What a remark is about, until settings are right again."""


class Guard:
    """Covers all handlers of a page at once, so that none can be forgotten."""

    def __init__(self, parts: Components, views: Views, session_of: SessionOf) -> None:
        self._parts = parts
        self._views = views
        self._session_of = session_of

    def cover(self, app: gr.Blocks) -> None:
        """Wrap every function that the page calls."""
        for function in app.fns.values():
            if function.fn is not None:
                function.fn = self._around(function.fn, list(function.inputs), list(function.outputs))

    def _around(
        self, handler: Callable[..., Any], inputs: list[Any], outputs: list[Any]
    ) -> Callable[..., Any]:
        if inspect.isgeneratorfunction(handler):

            @functools.wraps(handler)
            def yielding(*args: Any) -> Generator[Update, None, None]:
                language = _language(args)
                try:
                    with closing(handler(*values(args, inputs))) as updates:
                        latest = (self._latest(update, args, outputs) for update in updates)
                        yield from each_spoken(language, latest)
                except Exception as error:
                    with spoken(language):
                        mended = self._mended(error, args, outputs)
                    yield mended

            return yielding

        @functools.wraps(handler)
        def returning(*args: Any) -> Any:
            with spoken(_language(args)):
                try:
                    return self._latest(handler(*values(args, inputs)), args, outputs)
                except Exception as error:
                    mended = self._mended(error, args, outputs)
                    return mended if outputs else None

        return returning

    def _latest(self, update: Any, args: tuple[Any, ...], outputs: list[Any]) -> Any:
        """An update that shows what is on the screen by now."""
        request = _request(args)
        if request is None or not isinstance(update, dict) or self._parts.bus not in update:
            return update
        return _within(outputs, self._views.latest(*self._session_of(request), update))

    def _mended(self, error: Exception, args: tuple[Any, ...], outputs: list[Any]) -> Update:
        """Return what the page shows after an error, as far as this handler reaches."""
        return _within(outputs, {self._parts.live: gr.skip()} | self._update(error, args))

    def _update(self, error: Exception, args: tuple[Any, ...]) -> Update:
        if isinstance(error, Stale):
            return {self._parts.live: status.stale(str(error))}
        sentence = status.error(logs.error_message(error))
        request = _request(args)
        if request is None:
            return {self._parts.live: sentence}
        try:
            session, user = self._session_of(request)
            if isinstance(error, NotFound):
                return self._views.missing(session, user, kept=bool(session.unsent))
            about = SETTINGS if isinstance(error, InvalidSettings) else ""
            return self._views.busy(session, user) | self._views.tell(session, user, sentence, about)
        except Exception as another:
            log.debug("the page could not be drawn anew: %s", type(another).__name__)
            return {self._parts.live: sentence}


def _request(args: tuple[Any, ...]) -> gr.Request | None:
    return next((arg for arg in args if isinstance(arg, gr.Request)), None)


def _language(args: tuple[Any, ...]) -> str:
    """Return the language of a request. A test may ask without a browser."""
    headers = getattr(_request(args), "headers", None)
    return chosen(headers) if headers else ENGLISH


def _within(outputs: list[Any], update: Update) -> Update:
    known = {component._id for component in outputs}
    return {component: value for component, value in update.items() if component._id in known}


# An answer of the page costs what it changes, and not what it could change.


class ChangedOutputsOnly(gr.Blocks):
    """Blocks whose handlers name what they change, of many outputs.

    Gradio 6.31 makes each output of an event anew for each answer, also what is skipped: 30 ms of a processor for a
    hundred outputs, a dozen times a second while a reply is written, and the engine waits for the interpreter.
    """

    async def postprocess_data(self, block_fn: Any, predictions: Any, state: Any) -> list[Any]:
        """Make only the outputs that `predictions` names."""
        if not isinstance(predictions, dict) or not all(
            isinstance(key, gr.blocks.Block) for key in predictions
        ):
            return await super().postprocess_data(block_fn, predictions, state)
        skipped = gr.skip()
        named = {block._id: value for block, value in predictions.items() if value != skipped}
        part = copy(block_fn)
        part.outputs = [block for block in block_fn.outputs if block._id in named]
        if len(part.outputs) < len(named):  # one is no output of this event: Gradio says which
            return await super().postprocess_data(block_fn, predictions, state)
        made: dict[int, Any] = {}
        if part.outputs:
            values = {block: named[block._id] for block in part.outputs}
            done = await super().postprocess_data(part, values, state)
            made = {block._id: value for block, value in zip(part.outputs, done, strict=True)}
        return [made.get(block._id, gr.skip()) for block in block_fn.outputs]


# What only the owner may do: change which models there are, back up, see and end the logins of others.


class OwnerOnly(Exception):
    """The message is for the page."""


def require_owner(service: ChatService, user_id: int) -> None:
    """Raises OwnerOnly. The user is that of the request, never one that the page names."""
    if not service.users.is_owner(user_id):
        raise OwnerOnly(_("Only the owner of this hierchat can do that."))


# The page in the reader's language: what is built once for all, and what is answered outside of Gradio's
# handlers. Handlers speak by the guard (guard.py), which knows their request.


class Page(ChangedOutputsOnly):
    """Blocks that were built inside of `language.marked`: each browser gets them in its language."""

    fresh: Mapping[int, Callable[[], Mapping[str, Any]]] = {}
    """By a component's id: properties as they are now, for a page that opens. All others are as they were built."""

    @property
    def config(self) -> Any:
        """Return what a browser builds the page from. Gradio sets it once."""
        language = current()
        if language not in self._told:
            self._told[language] = translated(self._config)
        told = self._told[language]
        return {**told, "components": [self._freshened(one) for one in told["components"]]}

    @config.setter
    def config(self, made: Any) -> None:
        self._config = made
        self._told: dict[str, Any] = {}

    def _freshened(self, component: dict[str, Any]) -> dict[str, Any]:
        if (now := self.fresh.get(component["id"])) is None:
            return component
        return {**component, "props": {**component["props"], **now()}}


class Speaks:
    """Answers each request in its language."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with spoken(chosen(Headers(scope=scope)) if scope["type"] == "http" else ENGLISH):
            await self._app(scope, receive, send)


def choices() -> list[tuple[str, str]]:
    """The languages by name, and their codes; nothing where there is one alone."""
    found = [(name_of(code), code) for code in catalogues()]
    return found if len(found) > 1 else []
