"""The lines of an event stream over HTTP, which can be left at any moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from threading import Event
from typing import Any

import httpx

from hierchat.terminal.errors import TerminalError

LOOK_SECONDS = 0.1
_TIMEOUT = httpx.Timeout(None, connect=10.0)
"""A reply may wait long for its turn."""


def event_lines(url: str, headers: dict[str, str], body: dict[str, Any], stop: Event) -> Iterator[str]:
    """What a POST is answered with, line by line, until it ends or `stop` is set: then the connection is closed,
    whatever the server is at. Raises TerminalError where it refuses, httpx.HTTPError where the connection breaks."""
    with asyncio.Runner() as runner:
        lines = _lines(url, headers, body)
        try:
            while (line := runner.run(_next(lines, stop))) is not None:
                yield line
        finally:
            runner.run(lines.aclose())


async def _lines(url: str, headers: dict[str, str], body: dict[str, Any]) -> AsyncGenerator[str, None]:
    async with (
        httpx.AsyncClient(timeout=_TIMEOUT, trust_env=not is_here(url)) as client,
        client.stream("POST", url, headers=headers, json=body) as response,
    ):
        if response.is_error:
            await response.aread()
            raise TerminalError(refusal(response))
        async for line in response.aiter_lines():
            yield line


async def _next(lines: AsyncGenerator[str, None], stop: Event) -> str | None:
    """The next line; None at the end, or when it is not waited for any more."""
    coming = asyncio.ensure_future(anext(lines, None))
    while not coming.done():
        await asyncio.wait({coming}, timeout=LOOK_SECONDS)
        if stop.is_set():
            coming.cancel()
    return None if stop.is_set() else coming.result()


def is_here(url: str) -> bool:
    """Whether it leads to this machine: then no proxy stands between."""
    return httpx.URL(url).host in ("127.0.0.1", "localhost", "::1")


def refusal(response: httpx.Response) -> str:
    """What a server says that does not do what it was asked for, as a sentence."""
    if response.status_code == httpx.codes.UNAUTHORIZED:
        return "The server asks for a key, and knows none such. Name one with --key or in HIERCHAT_KEY."
    said = ""
    try:
        error = response.json()["error"]
        said = str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError):
        pass
    return said or f"The server answered {response.status_code} {response.reason_phrase}."
