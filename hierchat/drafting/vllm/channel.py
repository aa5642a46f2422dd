"""The side channel: one JSON object a line each way over the loopback device. docs/vllm.md has the methods."""

from __future__ import annotations

import hmac
import json
import logging
import socketserver
import threading
from collections.abc import Callable, Mapping
from typing import Any, Literal

from hierchat.drafting.vllm.drafter_settings import PREFIX, DrafterSettingsError

LONGEST_LINE = 2**20
SILENT_SECONDS = 600.0
CONNECTIONS = 64
CLOSES_IN = 0.05
"""Seconds."""

Code = Literal["unauthorised", "bad_request", "unknown_reply", "storage"]
Method = Callable[[Mapping[str, Any]], Mapping[str, Any]]

_log = logging.getLogger("vllm.hierchat")


class ChannelRefusal(Exception):
    """A request cannot be answered; the text is for who asked."""

    def __init__(self, code: Code, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


class ChannelServer:
    """Listens from the start, on threads of its own."""

    def __init__(self, methods: Mapping[str, Method], token: str, port: int) -> None:
        """`port` 0: any. Raises DrafterSettingsError where the port is taken."""
        try:
            self._server = _Server(methods, token, port)
        except OSError as error:
            raise DrafterSettingsError(
                f"Nothing can listen on port {port} of 127.0.0.1 ({error.strerror}). Set {PREFIX}PORT to a free one."
            ) from error
        self.port: int = self._server.server_address[1]
        threading.Thread(
            target=self._server.serve_forever, args=(CLOSES_IN,), name="hierchat-channel", daemon=True
        ).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    def __init__(self, methods: Mapping[str, Method], token: str, port: int) -> None:
        self.methods, self.token = methods, token.encode()
        self.free = threading.BoundedSemaphore(CONNECTIONS)
        super().__init__(("127.0.0.1", port), _Connection)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Close connections beyond CONNECTIONS."""
        return self.free.acquire(blocking=False)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.free.release()


class _Connection(socketserver.StreamRequestHandler):
    timeout = SILENT_SECONDS
    server: _Server

    def handle(self) -> None:
        try:
            while line := self.rfile.readline(LONGEST_LINE + 1):
                answer = self._answer(line)
                self.wfile.write(json.dumps(answer).encode() + b"\n")
                if answer.get("error") == "unauthorised" or len(line) > LONGEST_LINE:
                    return
        except OSError:  # silent for too long, or gone
            return

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            return {"ok": True, **self._asked(line)}
        except ChannelRefusal as refusal:
            return {"ok": False, "error": refusal.code, "message": str(refusal)}
        except Exception:
            _log.exception("The channel could not answer.")
            return {"ok": False, "error": "bad_request", "message": "That failed. vLLM's log has the reason."}

    def _asked(self, line: bytes) -> Mapping[str, Any]:
        if len(line) > LONGEST_LINE:
            raise ChannelRefusal("bad_request", f"A request has {LONGEST_LINE:,} bytes at most.")
        try:
            asked = json.loads(line)
        except ValueError:  # no JSON, or no UTF-8
            asked = None
        if not isinstance(asked, dict):
            raise ChannelRefusal("bad_request", "Send one JSON object on each line.")
        token = asked.get("token")
        if not isinstance(token, str) or not hmac.compare_digest(token.encode(), self.server.token):
            raise ChannelRefusal("unauthorised", f"The token is not the one in {PREFIX}TOKEN.")
        method = self.server.methods.get(str(asked.get("method")))
        if method is None:
            known = ", ".join(sorted(self.server.methods))
            raise ChannelRefusal("bad_request", f"There is no such method. There are {known}.")
        return method(asked)


def text(asked: Mapping[str, Any], name: str, *, empty: bool = False) -> str:
    """Read a field that must be text. Raises ChannelRefusal."""
    value = asked.get(name)
    if not isinstance(value, str) or not (value or empty):
        raise ChannelRefusal("bad_request", f"The field {name} must be a text.")
    return value


def number(asked: Mapping[str, Any], name: str) -> int:
    """Read a field that may be a whole number, 0 where it is missing. Raises ChannelRefusal."""
    value = asked.get(name, 0)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ChannelRefusal("bad_request", f"The field {name} must be a whole number, 0 or more.")
    return value
