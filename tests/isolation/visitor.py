"""A program that talks to the page as a browser does, and says whatever it likes."""

import json
import secrets
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import count
from operator import eq
from typing import Any

import httpx

from benchmarks.page.tab import Stream
from hierchat.page.guard import RUNNING
from tests.testing.raw import Answer, ask
from tests.testing.waiting import until


@dataclass
class Visitor:
    """One open page of somebody who is logged in; without a name, of a program that asks for no login."""

    address: str
    name: str = ""
    password: str = ""
    hash: str = field(default_factory=lambda: secrets.token_hex(6))
    headers: dict[str, str] = field(default_factory=dict)
    stream: Stream | None = None
    """Of the page, once it is open."""
    _config: dict[str, Any] = field(default_factory=dict)
    _steps: Iterator[int] = field(default_factory=partial(count, 1))

    def __post_init__(self) -> None:
        if not self.name:
            return
        form = {"username": self.name, "password": self.password}
        answer = ask(self.address, "POST", "/login", form=form)
        assert answer.status == 200, answer.text
        self.headers = {"Cookie": answer.cookie}

    @cached_property
    def _http(self) -> httpx.Client:
        """For the streams of the page."""
        return httpx.Client(base_url=self.address, headers=self.headers, timeout=120)

    def ask(self, method: str, path: str, json_body: object = None, read: int | None = None) -> Answer:
        """Any request."""
        return ask(self.address, method, path, self.headers, json_body=json_body, read=read)

    def config(self) -> dict[str, Any]:
        """The page's components and listeners, fetched once."""
        if not self._config:
            self._config = json.loads(self.ask("GET", "/config").text)
        return self._config

    def begin(self, listener: int, data: list[Any], event: Any = None, hash: str | None = None) -> Answer:
        """Send an event, whose answer has the values of Gradio's controls."""
        body = {"fn_index": listener, "data": data, "event_data": event, "session_hash": hash or self.hash}
        return self.ask("POST", "/gradio_api/run/predict", body | {"trigger_id": None})

    def call(self, listener: int, data: list[Any], event: Any = None) -> str:
        """All that the server says to one event, up to its end and that of a reply, and what the page shows then."""
        answered = self.stream.shows["answered"] if self.stream else ""
        if isinstance(event, dict):
            event = {**event, "step": next(self._steps)}
        told = self.begin(listener, data, event).text
        if self.stream is None:
            return told
        until(lambda: not RUNNING)
        self.shown()
        if self.stream.shows["answered"] != answered:
            self.stream.until(lambda: not self.stream or not self.stream.shows["busy"])
        return told + "".join(self.stream.shows.values())

    def shown(self) -> str:
        """All that the page's stream has shown since the last look, up to what is drawn by now."""
        if self.stream is None:
            return ""
        for _try in range(60):
            whole = Stream(self._http, self.hash)
            whole.close()
            with suppress(TimeoutError):  # each stream leaves out what another one sends
                self.stream.until(partial(eq, self.stream.shows, whole.shows), 1.0)
                break
        seen = "".join(self.stream.seen)
        self.stream.seen.clear()
        return seen

    def calls(self, listener: int, events: Iterable[tuple[Any, Any]]) -> list[str]:
        """All that the server says to each of several events, values and data, one behind the other. What the page
        showed stands behind the last one."""
        said = [self.begin(listener, data, event).text for data, event in events]
        until(lambda: not RUNNING)
        return [*said[:-1], said[-1] + self.shown()] if said else []

    def open(self) -> str:
        """Load the page; what it shows."""
        (load,) = (
            one for one in self.config()["dependencies"] if any(t[1] == "load" for t in one["targets"])
        )
        told = self.call(load["id"], [])
        self.stream = self.stream or Stream(self._http, self.hash)
        return told + "".join(self.stream.shows.values())

    def act(self, event: str, data: dict[str, Any], values: list[Any] | None = None) -> str:
        """What a button of the page does."""
        found = [one for one in self.config()["dependencies"] if any(t[1] == event for t in one["targets"])]
        assert len(found) == 1, event
        return self.call(found[0]["id"], values or defaults(self.config(), found[0]), data)


def defaults(config: dict[str, Any], listener: dict[str, Any]) -> list[Any]:
    """What the page would send along: the values that its components have at first."""
    empty = {"textbox": "", "html": ""}
    values = {one["id"]: one["props"].get("value") for one in config["components"]}
    types = {one["id"]: one["type"] for one in config["components"]}
    return [empty.get(types[id]) if values[id] is None else values[id] for id in listener["inputs"]]
