"""The page in the reader's language: what is built once for all, and what is answered outside of Gradio's handlers.

Handlers speak by the guard (guard.py), which knows their request."""

from __future__ import annotations

from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from hierchat.language import ENGLISH, catalogues, chosen, current, name_of, spoken, translated
from hierchat.ui.changes import Changes


class Page(Changes):
    """Blocks that were built inside of `language.marked`: each browser gets them in its language."""

    @property
    def config(self) -> Any:
        """What a browser builds the page from. Gradio sets it once."""
        language = current()
        if language not in self._told:
            self._told[language] = translated(self._config)
        return self._told[language]

    @config.setter
    def config(self, made: Any) -> None:
        self._config = made
        self._told: dict[str, Any] = {}


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
