"""An engine over vLLM with our drafter: the drafter tells of each forward, and keeps users' replies to draft from."""

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

from hierchat.drafting.draft_tree import Match
from hierchat.drafting.growing.kernel_arrays import SLOT_NAMES
from hierchat.engine.engine import Step
from hierchat.engine.remote.engine import Counted, Counting, RemoteEngine
from hierchat.engine.remote.server import Offered, Server, ServerError

# The side channel of our drafter inside vLLM: figures of replies, and what it has to forget. JSON, a line
# each way.


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


ASK_SECONDS = 0.08
"""Between two questions for news of a reply: as often as the page is drawn."""
END_SECONDS = 2.0
"""How long the drafter may take to notice a reply's end."""
_POLL_SECONDS = 0.01


class DraftedEngine(RemoteEngine):
    """Fulfils LearnsElsewhere and TellsTexts."""

    def __init__(self, server: Server, model: Offered, context_length: int, channel: Channel) -> None:
        super().__init__(server, model, context_length)
        self._channel = channel
        self._user = self._reply = ""
        self._drafts = self._learns = True
        self._anew = False
        self._salt = secrets.token_hex(8)

    @property
    def backend(self) -> str:
        return f"vLLM at {self._server.url}, drafted by hierchat"

    @property
    def place(self) -> str:
        """Where the drafter keeps what it learns: the same after vLLM was started again on another port."""
        return f"{self._server.host} {self._model.name}"

    def telling(
        self, user: str, reply: str, *, drafts: bool, learns: bool = True, anew: bool = False
    ) -> DraftedEngine:
        """As LearnsElsewhere says."""
        told = copy.copy(self)
        told._user, told._reply, told._drafts = user, reply, drafts
        told._learns, told._anew = learns, anew
        return told

    def forget(self, user: str, replies: Sequence[str]) -> None:
        """As LearnsElsewhere says. Raises DrafterError."""
        self._channel.forget(user, replies)

    def texts(self, tokens: Sequence[int], lengths: Sequence[int]) -> list[str]:
        """As TellsTexts says."""
        return self._server.texts(self._model.name, tokens, lengths)

    def _asking(self, user: int | None) -> tuple[dict[str, Any], Counting]:
        reply = self._reply or secrets.token_hex(16)
        told: dict[str, Any] = {"hierchat_reply": reply}
        if self._user:
            told["hierchat_user"] = self._user
        if not self._drafts:
            told["hierchat_drafts"] = 0
        if not self._learns:
            told["hierchat_learn"] = 0
        # What was read for one user answers no other: no time tells what others asked.
        alone = self._anew or (user is None and not self._user)
        whose = f"{self._salt}-{secrets.token_hex(8)}" if alone else self._user or f"{self._salt}-{user}"
        return {"vllm_xargs": told, "cache_salt": whose}, _Ledger(self._channel, self._user, reply)


class _Ledger(Counting):
    """Steps as the drafter tells them. Where it cannot be asked any more, those that the server counts."""

    def __init__(self, channel: Channel, user: str, reply: str) -> None:
        self._channel = channel
        self._names = (user, reply)
        self._steps = 0
        """Of the drafter's, so many are taken."""
        self._given = 0
        """Tokens of them."""
        self._count: int | None = None
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
        self._count = tokens if tokens is not None else self._count
        if time.monotonic() - self._asked >= ASK_SECONDS:
            yield from self._news()

    def rest(self) -> Iterator[Step]:
        until = time.monotonic() + END_SECONDS
        while self._plain is None:
            ended = yield from self._news(last=True)
            if ended or time.monotonic() > until:
                break
            time.sleep(_POLL_SECONDS)
        yield from self._without()

    def _news(self, *, last: bool = False) -> Generator[Step, None, bool]:
        """What the drafter has told since; whether the reply has ended for it. No more than the server has sent."""
        self._asked = time.monotonic()
        try:
            told = self._channel.reply(*self._names, self._steps)
            ended = told["state"] != "writing"
            steps = [_step(one) for one in told["steps"]]
        except (DrafterError, KeyError, TypeError, ValueError, AttributeError):
            yield from self._without()
            self._plain = Counted(self._given)
            return True
        taken: list[Step] = []
        for step in steps:
            room = len(step.tokens) if self._count is None else self._count - self._given
            if room < len(step.tokens) and not (last and ended and room > 0):
                break
            taken.append(_first(step, room))
            self._steps += 1
            self._given += len(taken[-1].tokens)
        yield from self._timed(taken)
        return ended

    def _timed(self, steps: list[Step]) -> Iterator[Step]:
        """With the text, and with the time that the drafter does not know of."""
        if not steps:
            return
        known = sum(step.draft_ms + step.forward_ms for step in steps)
        for number, step in enumerate(steps):
            yield replace(
                step,
                waited_ms=max(self._spent - known, 0.0) if number == 0 else 0.0,
                text=self._text if number == len(steps) - 1 else "",
            )
        self._text, self._spent = "", 0.0

    def _without(self) -> Iterator[Step]:
        """What the drafter said nothing of."""
        if self._plain is None and (self._text or (self._count or 0) > self._given):
            counted = Counted(self._given)
            yield from counted.take(self._text, self._count, self._spent)
            self._given = self._count if self._count is not None else self._given
        self._text, self._spent = "", 0.0


def _step(told: Mapping[str, Any]) -> Step:
    """Raises what a dictionary of another form raises."""
    tokens = tuple(map(int, told["tokens"]))
    sources = tuple(map(str, told["sources"]))
    chances = tuple(None if chance is None else float(chance) for chance in told["chances"])
    matches = tuple(Match(int(slot), int(length), -1, -1) for slot, length in told["matches"])
    if not len(tokens) == len(sources) == len(chances) == len(matches):
        raise ValueError("a token of which not all is told")
    if not all(-1 <= match.slot < len(SLOT_NAMES) for match in matches):
        raise ValueError("a database that nobody knows")
    return Step(
        tokens,
        sources,
        matches,
        chances,
        proposed={str(name): int(count) for name, count in told["proposed"].items()},
        width=int(told["width"]),
        draft_ms=float(told["draft_ms"]),
        forward_ms=float(told["forward_ms"]),
        together=int(told["together"]),
    )


def _first(step: Step, tokens: int) -> Step:
    """Of its tokens the first so many."""
    return replace(
        step,
        tokens=step.tokens[:tokens],
        sources=step.sources[:tokens],
        matches=step.matches[:tokens],
        chances=step.chances[:tokens],
    )
