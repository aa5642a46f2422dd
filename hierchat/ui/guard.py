"""One wrapper around every handler: whatever goes wrong becomes a sentence, and the page stays usable. What was drawn
of a conversation that is not on the screen any more is drawn anew: handlers of one page run beside each other."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Generator
from contextlib import closing
from typing import Any

import gradio as gr

from hierchat import logs
from hierchat.language import ENGLISH, chosen, each_spoken, spoken
from hierchat.store import NotFound
from hierchat.ui import status
from hierchat.ui.given import values
from hierchat.ui.layout import Parts
from hierchat.ui.sampling import SettingsError
from hierchat.ui.sessions import Session, Stale
from hierchat.ui.views import Update, Views

log = logging.getLogger(__name__)
SETTINGS = "settings"
"""What a remark is about, until settings are right again."""
Who = Callable[[gr.Request], tuple[Session, int]]


class Guard:
    """Covers all handlers of a page at once, so that none can be forgotten."""

    def __init__(self, parts: Parts, views: Views, who: Who) -> None:
        self._parts = parts
        self._views = views
        self._who = who

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
        return _within(outputs, self._views.latest(*self._who(request), update))

    def _mended(self, error: Exception, args: tuple[Any, ...], outputs: list[Any]) -> Update:
        """What the page shows instead, as far as this handler reaches."""
        return _within(outputs, {self._parts.live: gr.skip()} | self._update(error, args))

    def _update(self, error: Exception, args: tuple[Any, ...]) -> Update:
        if isinstance(error, Stale):
            return {self._parts.live: status.stale(str(error))}
        sentence = status.error(logs.said(error))
        request = _request(args)
        if request is None:
            return {self._parts.live: sentence}
        try:
            session, user = self._who(request)
            if isinstance(error, NotFound):
                return self._views.missing(session, user, kept=bool(session.unsent))
            about = SETTINGS if isinstance(error, SettingsError) else ""
            return self._views.busy(session, user) | self._views.tell(session, user, sentence, about)
        except Exception as another:
            log.debug("the page could not be drawn anew: %s", type(another).__name__)
            return {self._parts.live: sentence}


def _request(args: tuple[Any, ...]) -> gr.Request | None:
    return next((arg for arg in args if isinstance(arg, gr.Request)), None)


def _language(args: tuple[Any, ...]) -> str:
    """Of who asks. A test may ask without a browser."""
    headers = getattr(_request(args), "headers", None)
    return chosen(headers) if headers else ENGLISH


def _within(outputs: list[Any], update: Update) -> Update:
    known = {component._id for component in outputs}
    return {component: value for component, value in update.items() if component._id in known}
