"""The page in the reader's language: what is built once for all, and what is answered outside of Gradio's handlers.

Handlers speak by the guard (guard.py), which knows their request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from hierchat.language import ENGLISH, catalogues, chosen, current, name_of, spoken, translated
from hierchat.ui.changes import Changes


class Page(Changes):
    """Blocks that were built inside of `language.marked`: each browser gets them in its language."""

    fresh: Mapping[int, Callable[[], Mapping[str, Any]]] = {}
    """By a component's id: properties as they are now, for a page that opens. All others are as they were built."""

    @property
    def config(self) -> Any:
        """What a browser builds the page from. Gradio sets it once."""
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
