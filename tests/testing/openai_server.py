"""A server that speaks as much of OpenAI's protocol as a test needs, from a script."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

HIERCHAT = {
    "tokens_per_second": 40.0,
    "speedup": 2.0,
    "drafted": 100,
    "accepted": 50,
    "tokens_per_forward": 2.5,
    "seeds": [11],
    "sources": {"context": 0.25, "target": 0.75},
}


@dataclass
class Script:
    """What it does, and what it was asked."""

    pieces: Sequence[str] = ("Hello ", "there.")
    models: list[dict[str, Any]] = field(
        default_factory=lambda: [
            {"id": "other", "owned_by": "hierchat", "loaded": False},
            {"id": "scripted", "owned_by": "hierchat", "loaded": True},
        ]
    )
    usage: dict[str, Any] | None = field(
        default_factory=lambda: {"prompt_tokens": 7, "completion_tokens": 100, "hierchat": HIERCHAT}
    )
    finish: str = "stop"
    answers: Callable[[dict[str, Any]], Sequence[str]] | None = None
    """The pieces for a request, in place of `pieces`."""
    pieces_apart: Sequence[dict[str, Any]] = ()
    """Deltas before the pieces."""
    counts: bool = False
    """Whether each piece tells how many tokens there are by then: three more."""
    key: str = ""
    metrics: str = ""
    """What /metrics tells; "": there is none."""
    health: int = 200
    endless: bool = False
    """Whether the last piece comes again and again, until the client hangs up."""
    silent: bool = False
    """Whether nothing comes, until the client hangs up."""
    refuses: tuple[int, str] | None = None
    unknown: str = ""
    """A field of requests that it refuses."""
    breaks: bool = False
    """Whether it breaks off behind the pieces, without an end."""
    raw: str = ""
    """Sent in place of all that."""
    more_headers: int = 0
    """Headers of a reply beside the usual ones."""
    leads_to: str = ""
    """The address to which it sends whoever asks for its models."""
    headers: list[dict[str, str]] = field(default_factory=list)
    """Of each who asked for its models, by their names in small letters."""
    asked: list[dict[str, Any]] = field(default_factory=list)
    arrived: threading.Event = field(default_factory=threading.Event)
    hung_up: threading.Event = field(default_factory=threading.Event)


@contextmanager
def serving(script: Script, port: int = 0) -> Iterator[str]:
    """Its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/health":
                self._json(script.health, {"status": "ok"})
            elif self.path == "/metrics":
                self._send(200 if script.metrics else 404, "text/plain", script.metrics.encode())
            elif self._may():
                script.headers.append({name.lower(): value for name, value in self.headers.items()})
                if script.leads_to:
                    self._send(307, "text/plain", b"", Location=f"{script.leads_to}{self.path}")
                else:
                    self._json(200, {"object": "list", "data": script.models})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if not self._may():
                return
            script.asked.append(body)
            script.arrived.set()
            if script.unknown in body:
                self._json(400, {"error": {"message": f"Unrecognized request argument: {script.unknown}"}})
                return
            if script.refuses:
                self._json(script.refuses[0], {"error": {"message": script.refuses[1]}})
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            if script.breaks:
                self.send_header("Content-Length", "1000000")  # more than comes
            for number in range(script.more_headers):
                self.send_header(f"X-{number}", "y" * 100)
            self.end_headers()
            self.wfile.flush()
            try:
                self._reply()
            except OSError:
                script.hung_up.set()

        def _reply(self) -> None:
            if script.silent and self.connection.recv(1) == b"":
                raise BrokenPipeError
            if script.raw:
                self.wfile.write(script.raw.encode())
                return
            for delta in script.pieces_apart:
                self._piece(delta)
            pieces = script.answers(script.asked[-1]) if script.answers else script.pieces
            for number, piece in enumerate(pieces, 1):
                counted = (
                    {"usage": {"prompt_tokens": 7, "completion_tokens": 3 * number}} if script.counts else {}
                )
                self._piece({"content": piece}, **counted)
            while script.endless:
                self._piece({"content": script.pieces[-1]})
                time.sleep(0.02)
            if script.breaks:
                return
            self._piece({}, script.finish)
            if script.usage:
                self._event({"choices": [], "usage": script.usage})
            self.wfile.write(b"data: [DONE]\n\n")

        def _piece(self, delta: dict[str, str], finish: str | None = None, **more: Any) -> None:
            # Whatever it calls its model: the reply is the chosen one's
            said = {"model": "<b>other</b>", "id": 7}
            self._event({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **said, **more})

        def _event(self, data: dict[str, Any]) -> None:
            self.wfile.write(f"data: {json.dumps(data)}\n\n".encode())
            self.wfile.flush()

        def _may(self) -> bool:
            if script.key and self.headers.get("Authorization") != f"Bearer {script.key}":
                self._json(401, {"error": {"message": "no"}})
                return False
            return True

        def _json(self, status: int, body: Any) -> None:
            self._send(status, "application/json", json.dumps(body).encode())

        def _send(self, status: int, kind: str, raw: bytes, **more: str) -> None:
            self.send_response(status)
            for name, value in {"Content-Type": kind, **more}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(raw)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=[0.02], daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
