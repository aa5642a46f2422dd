"""Generate over vLLM with our drafter, which reports each forward and keeps users' replies to draft from."""

from __future__ import annotations

import copy
import json
import secrets
import socket
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from hierchat.engine.engine import Step
from hierchat.engine.remote.openai_client import OpenAIClient, RemoteModel, ServerError
from hierchat.engine.remote.openai_engine import Counted, RemoteEngine

PROTOCOL = 1
MOST_AT_ONCE = 1000
"""Replies that one request names."""
_SECONDS = 10.0


class DrafterError(ServerError):
    """Our drafter in vLLM cannot be reached, or refuses. The text is for the user."""


class DrafterChannel:
    """Asks our drafter inside vLLM on this machine for figures of replies, and reports deletions. From any thread."""

    def __init__(self, port: int, token: str) -> None:
        self._port = port
        self._token = token
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._lines: Any = None

    def hello(self) -> dict[str, Any]:
        """Ask the drafter for its name and version. Raises DrafterError if it speaks another protocol."""
        answer = self._ask("hello")
        if answer.get("protocol") != PROTOCOL:
            raise DrafterError(
                f"The drafter in vLLM is of hierchat {answer.get('hierchat')}, which speaks otherwise. Install the "
                "same version of hierchat in both environments."
            )
        return answer

    def reply(self, user: str, reply: str, begin: int) -> dict[str, Any]:
        """Ask for the figures of a reply, with its steps from number `begin` on."""
        return self._ask("reply", user=user, reply=reply, **{"from": begin})

    def figures(self) -> dict[str, Any]:
        """Ask for the drafter's costs of the engine, and how much it holds."""
        return self._ask("figures")

    def forget(self, user: str, replies: Sequence[str]) -> None:
        """Delete what the drafter holds of these replies; unknown ones do not matter."""
        for at in range(0, len(replies), MOST_AT_ONCE):
            self._ask("forget", user=user, replies=list(replies[at : at + MOST_AT_ONCE]))

    def close(self) -> None:
        """Disconnect; the next request connects again."""
        with suppress(OSError):
            if self._socket:
                self._socket.close()
        self._socket = self._lines = None

    def _ask(self, method: str, **more: Any) -> dict[str, Any]:
        line = json.dumps({"token": self._token, "method": method, **more}).encode() + b"\n"
        with self._lock:
            for _ in range(1 if self._socket is None else 2):  # it closes what was silent for long
                try:
                    if self._socket is None:
                        self._socket = socket.create_connection(("127.0.0.1", self._port), _SECONDS)
                        self._lines = self._socket.makefile("rb")
                    self._socket.sendall(line)
                    answer = json.loads(self._lines.readline() or b"-")
                    if isinstance(answer, dict):
                        break
                    raise ValueError("no object")
                except (OSError, ValueError):
                    self.close()
            else:
                raise DrafterError(
                    f"The drafter in vLLM does not answer on port {self._port}. Start vLLM with it, or remove "
                    "`drafter` from this model in models.yaml."
                )
        if not answer.get("ok"):
            raise DrafterError(f"The drafter in vLLM refused. {answer.get('message', '')}".strip())
        return answer


ASK_SECONDS = 0.08
"""Between two requests for a reply's steps: as often as the page is drawn."""
END_SECONDS = 2.0
"""How long the drafter may take to notice a reply's end."""
_POLL_SECONDS = 0.01


class DraftedEngine(RemoteEngine):
    """Generate over a vLLM whose drafter keeps replies outside our store, and drafts from them for the same user."""

    def __init__(
        self, server: OpenAIClient, model: RemoteModel, context_length: int, channel: DrafterChannel
    ) -> None:
        super().__init__(server, model, context_length)
        self.backend = f"vLLM at {server.url}, drafted by hierchat"
        self.place = f"{server.host} {model.name}"
        """Name of where it keeps replies: the same after vLLM was started again on another port."""
        self._channel = channel
        self._user = self._reply = ""
        self._drafts = self._learns = True
        self._anew = False
        self._salt = secrets.token_hex(8)

    def telling(
        self, user: str, reply: str, *, drafts: bool, learns: bool = True, anew: bool = False
    ) -> DraftedEngine:
        """Make an engine for one reply of `user`, called `reply`; both empty if nothing may be kept. `drafts`:
        anything may draft; `learns`: the reply is kept; `anew`: read the prompt without the cache, to compare
        replies."""
        engine = copy.copy(self)
        engine._user, engine._reply, engine._drafts = user, reply, drafts
        engine._learns, engine._anew = learns, anew
        return engine

    def forget(self, user: str, replies: Sequence[str]) -> None:
        """Delete these replies, and draft from them no more. Raises ServerError if that is not certain."""
        self._channel.forget(user, replies)

    def _asking(self, user: int | None) -> tuple[dict[str, Any], Counted]:
        reply = self._reply or secrets.token_hex(16)
        fields: dict[str, Any] = {"hierchat_reply": reply}
        if self._user:
            fields["hierchat_user"] = self._user
        if not self._drafts:
            fields["hierchat_drafts"] = 0
        if not self._learns:
            fields["hierchat_learn"] = 0
        # What was read for one user answers no other: no time tells what others asked.
        alone = self._anew or (user is None and not self._user)
        whose = f"{self._salt}-{secrets.token_hex(8)}" if alone else self._user or f"{self._salt}-{user}"
        return {"vllm_xargs": fields, "cache_salt": whose}, _DrafterSteps(self._channel, self._user, reply)


class _DrafterSteps(Counted):
    """Yield steps as the drafter reports them. If it cannot be reached any more, those that the server counts."""

    def __init__(self, channel: DrafterChannel, user: str, reply: str) -> None:
        super().__init__()
        self._channel = channel
        self._names = (user, reply)
        self._steps = 0
        """Steps of the drafter that were taken."""
        self._given = 0
        """Tokens of these steps."""
        self._sent: int | None = None
        """Tokens that the server has sent."""
        self._text, self._spent = "", 0.0
        self._asked = float("-inf")
        self._plain: Counted | None = None

    def take(self, text: str, tokens: int | None, spent: float) -> Iterator[Step]:
        if self._plain:
            yield from self._plain.take(text, tokens, spent)
            return
        self._text += text
        self._spent += spent
        self._sent = tokens if tokens is not None else self._sent
        if time.monotonic() - self._asked >= ASK_SECONDS:
            yield from self._changes()

    def rest(self) -> Iterator[Step]:
        until = time.monotonic() + END_SECONDS
        while self._plain is None:
            ended = yield from self._changes(last=True)
            if ended or time.monotonic() > until:
                break
            time.sleep(_POLL_SECONDS)
        yield from self._without()

    def _changes(self, *, last: bool = False) -> Generator[Step, None, bool]:
        """Yield what the drafter reported since, no more than the server sent; return whether the reply has ended."""
        self._asked = time.monotonic()
        try:
            answer = self._channel.reply(*self._names, self._steps)
            ended = answer["state"] != "writing"
            steps = [_step(one) for one in answer["steps"]]
        except (DrafterError, KeyError, TypeError, ValueError, AttributeError):
            yield from self._without()
            self._plain = Counted(self._given)
            return True
        taken: list[Step] = []
        for step in steps:
            room = len(step.tokens) if self._sent is None else self._sent - self._given
            if room < len(step.tokens) and not (last and ended and room > 0):
                break
            taken.append(replace(step, tokens=step.tokens[:room], sources=step.sources[:room]))
            self._steps += 1
            self._given += len(taken[-1].tokens)
        known = sum(step.draft_ms + step.forward_ms for step in taken)
        for number, step in enumerate(taken):
            yield replace(
                step,
                waited_ms=max(self._spent - known, 0.0) if number == 0 else 0.0,
                text=self._text if number == len(taken) - 1 else "",
            )
        if taken:
            self._text, self._spent = "", 0.0
        return ended

    def _without(self) -> Iterator[Step]:
        if self._plain is None and (self._text or (self._sent or 0) > self._given):
            counted = Counted(self._given)
            yield from counted.take(self._text, self._sent, self._spent)
            self._given = self._sent if self._sent is not None else self._given
        self._text, self._spent = "", 0.0


def _step(data: Mapping[str, Any]) -> Step:
    tokens = tuple(map(int, data["tokens"]))
    sources = tuple(map(str, data["sources"]))
    if len(tokens) != len(sources):
        raise ValueError("a token of which not all is told")
    return Step(
        tokens,
        sources,
        proposed={str(name): int(count) for name, count in data["proposed"].items()},
        width=int(data["width"]),
        draft_ms=float(data["draft_ms"]),
        forward_ms=float(data["forward_ms"]),
        batch_size=int(data["together"]),
    )
