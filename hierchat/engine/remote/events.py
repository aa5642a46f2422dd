"""The lines of an event stream over HTTP, which can be left at any moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from threading import Event
from typing import Any

import httpx

from hierchat.engine.remote.errors import Refused

LOOK_SECONDS = 0.1
_TIMEOUT = httpx.Timeout(None, connect=10.0)
"""A reply may wait long for its turn."""


def event_lines(
    url: str, headers: dict[str, str], body: dict[str, Any], stop: Event
) -> Generator[str, None, None]:
    """What a POST is answered with, line by line, until it ends or `stop` is set: then the connection is closed,
    whatever the server is at. Raises Refused where it refuses, httpx.HTTPError where the connection breaks."""
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
            raise refusal(response)
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


def refusal(response: httpx.Response) -> Refused:
    """What a server says that does not do what it was asked for, with a sentence for the user."""
    said = ""
    try:
        found = response.json()
        error = found.get("error", found)  # vLLM once had no object around it
        said = str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    text = said or f"The server answered {response.status_code} {response.reason_phrase}."
    return Refused(text, response.status_code, said)
