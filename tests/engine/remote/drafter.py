"""A drafter's side channel, from a script."""

import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

TOKEN = "sixteen-characters-at-least"


def step(ids: list[int], sources: list[str], proposed: dict[str, int] | None = None) -> dict[str, Any]:
    return {
        "tokens": ids,
        "sources": sources,
        "proposed": proposed or {},
        "width": 1 + sum((proposed or {}).values()),
        "draft_ms": 0.5,
        "forward_ms": 0.0,
        "together": 1,
    }


STEPS = [
    step([11], ["target"]),
    step([12, 13, 14], ["history", "history", "target"], {"history": 3}),
    step([15, 16], ["context", "target"], {"context": 1}),
]


@dataclass
class Drafter:
    """What it answers, and what it was asked."""

    steps: list[dict[str, Any]] = field(default_factory=lambda: list(STEPS))
    plain: list[dict[str, Any]] | None = None
    """Those of a reply that is nobody's, if they are others."""
    protocol: int = 1
    learns: bool = True
    refuses: bool = False
    hangs_up: bool = False
    asked: list[dict[str, Any]] = field(default_factory=list)
    forgot: list[tuple[str, list[str]]] = field(default_factory=list)
    looks: dict[str, int] = field(default_factory=dict)

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(asked)
        if asked.get("token") != TOKEN or self.refuses:
            return {"ok": False, "error": "unauthorised", "message": "The token is wrong."}
        if asked["method"] == "hello":
            return {"ok": True, "protocol": self.protocol, "hierchat": "9.9", "learns": self.learns}
        if asked["method"] == "forget":
            self.forgot.append((asked["user"], asked["replies"]))
            return {"ok": True, "forgotten": len(asked["replies"])}
        # At first it does not know of the end yet.
        looks = self.looks[asked["reply"]] = self.looks.get(asked["reply"], 0) + 1
        steps = self.steps if asked["user"] or self.plain is None else self.plain
        known = steps[:looks]
        state = "ended" if looks > len(steps) else "writing"
        return {"ok": True, "state": state, "steps": known[asked["from"] :], "next": len(known)}


@contextmanager
def serving(drafter: Drafter) -> Iterator[int]:
    """Its port."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            for line in self.rfile:
                if drafter.hangs_up:
                    return
                self.wfile.write(json.dumps(drafter.answer(json.loads(line))).encode() + b"\n")

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        allow_reuse_address = True

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.02], daemon=True)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
