"""A program that talks to the page as a browser does, and says whatever it likes."""

from __future__ import annotations

import json
import secrets
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.testing.raw import Answer, ask


@dataclass
class Visitor:
    """One open page of somebody who is logged in."""

    address: str
    name: str
    password: str
    hash: str = field(default_factory=lambda: secrets.token_hex(6))
    headers: dict[str, str] = field(default_factory=dict)
    _config: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        form = {"username": self.name, "password": self.password}
        answer = ask(self.address, "POST", "/login", form=form)
        assert answer.status == 200, answer.text
        self.headers = {"Cookie": answer.cookie}

    def ask(self, method: str, path: str, json_body: object = None, read: int | None = None) -> Answer:
        """Any request."""
        return ask(self.address, method, path, self.headers, json_body=json_body, read=read)

    def config(self) -> dict[str, Any]:
        """The page's components and listeners, fetched once."""
        if not self._config:
            self._config = json.loads(self.ask("GET", "/config").text)
        return self._config

    def join(self, listener: int, data: list[Any], event: Any = None, hash: str | None = None) -> Answer:
        """Begin an event."""
        body = {"fn_index": listener, "data": data, "event_data": event, "session_hash": hash or self.hash}
        return self.ask("POST", "/gradio_api/queue/join", body | {"trigger_id": None})

    def call(self, listener: int, data: list[Any], event: Any = None) -> str:
        """All that the server says to one event, up to its end."""
        joined = self.join(listener, data, event)
        if joined.status != 200:
            return joined.text
        return self.ask("GET", f"/gradio_api/queue/data?session_hash={self.hash}").text

    def calls(self, listener: int, events: Iterable[tuple[Any, Any]]) -> list[str]:
        """All that the server says to each of several events, values and data, that are begun one behind the other."""
        joined = [self.join(listener, data, event) for data, event in events]
        begun = [one.json["event_id"] if one.status == 200 else "" for one in joined]
        told: dict[str | None, str] = defaultdict(str)
        if any(begun):
            for line in self.ask("GET", f"/gradio_api/queue/data?session_hash={self.hash}").text.splitlines():
                if line.startswith("data: "):
                    told[json.loads(line.removeprefix("data: ")).get("event_id")] += line
        assert told.keys() >= {*filter(None, begun)}  # each that began was answered
        ends = zip(begun, joined, strict=True)
        return [told[event] + told[None] if event else one.text for event, one in ends]

    def open(self) -> str:
        """Load the page; what it shows."""
        loads = [one for one in self.config()["dependencies"] if any(t[1] == "load" for t in one["targets"])]
        return "".join(self.call(one["id"], []) for one in loads)

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
