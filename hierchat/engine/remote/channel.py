"""The side channel of our drafter inside vLLM: figures of replies, and what it has to forget. JSON, a line each way."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from hierchat.engine.remote.errors import ServerError

PROTOCOL = 1
MOST_AT_ONCE = 1000
"""Replies that one request names."""
_SECONDS = 10.0


class DrafterError(ServerError):
    """The drafter cannot be asked, or refuses. The text is for the user."""


class Channel:
    """One drafter on this machine, asked from any thread; it is connected to when it is asked."""

    def __init__(self, port: int, token: str) -> None:
        self._port = port
        self._token = token
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._lines: Any = None

    def hello(self) -> dict[str, Any]:
        """What it is. Raises DrafterError where it speaks another protocol."""
        told = self._ask("hello")
        if told.get("protocol") != PROTOCOL:
            raise DrafterError(
                f"The drafter in vLLM is of hierchat {told.get('hierchat')}, which speaks otherwise. Install the same "
                "version of hierchat in both environments."
            )
        return told

    def reply(self, user: str, reply: str, begin: int) -> dict[str, Any]:
        """What is known of a reply, with its steps from number `begin` on."""
        return self._ask("reply", user=user, reply=reply, **{"from": begin})

    def figures(self) -> dict[str, Any]:
        """What it has learned of the engine, and how much it holds."""
        return self._ask("figures")

    def forget_all(self, user: str) -> None:
        """Have nothing left of a user."""
        self._ask("forget", user=user, all=True)

    def forget(self, user: str, replies: Sequence[str]) -> None:
        """Have nothing left of these; unknown ones are none."""
        for at in range(0, len(replies), MOST_AT_ONCE):
            self._ask("forget", user=user, replies=list(replies[at : at + MOST_AT_ONCE]))

    def close(self) -> None:
        """The next question connects again."""
        with suppress(OSError):
            if self._socket:
                self._socket.close()
        self._socket = self._lines = None

    def _ask(self, method: str, **more: Any) -> dict[str, Any]:
        line = json.dumps({"token": self._token, "method": method, **more}).encode() + b"\n"
        with self._lock:
            fresh = self._socket is None
            try:
                told = self._exchange(line)
            except (OSError, ValueError):
                self.close()
                if fresh:
                    raise self._unreachable() from None
                try:  # it closes what was silent for long
                    told = self._exchange(line)
                except (OSError, ValueError):
                    self.close()
                    raise self._unreachable() from None
        if not told.get("ok"):
            raise DrafterError(f"The drafter in vLLM refused. {told.get('message', '')}".strip())
        return told

    def _exchange(self, line: bytes) -> dict[str, Any]:
        """Raises OSError, and ValueError where what comes is no answer."""
        if self._socket is None:
            self._socket = socket.create_connection(("127.0.0.1", self._port), _SECONDS)
            self._lines = self._socket.makefile("rb")
        self._socket.sendall(line)
        told = json.loads(self._lines.readline() or b"-")
        if not isinstance(told, dict):
            raise ValueError("no object")
        return told

    def _unreachable(self) -> DrafterError:
        return DrafterError(
            f"The drafter in vLLM does not answer on port {self._port}. Start vLLM with it, or remove `drafter` from "
            "this model in models.yaml."
        )
