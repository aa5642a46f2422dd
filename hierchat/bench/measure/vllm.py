"""The drafter inside vLLM (docs/vllm.md), against the same engine without drafts: a server that was started before is
asked over HTTP.

Each group of questions goes through all arms in turn: `none` (no drafts), `ours` (nobody's history) and `history` (a
user who asked the same before, so that the best there can be is seen), and other vLLM servers over the same model, if
they are named: with vLLM's own drafts, or another's. Greedy. The first asking is not counted: it warms the engines up.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import httpx

from hierchat.engine.remote.channel import Channel, DrafterError
from hierchat.verify.asking.errors import RequestError
from hierchat.verify.asking.progress import Tell

ARMS = ("none", "ours", "history")
SECONDS = 600.0
"""A reply may take."""


@dataclass
class Arm:
    """What one arm did with so many requests at once."""

    seconds: float = 0.0
    tokens: int = 0
    forwards: int = 0
    behind: int = 0
    """Tokens of those forwards: all but the first of each reply, which reading the prompt brings."""
    proposed: int = 0
    accepted: int = 0
    draft_ms: float = 0.0
    texts: list[list[int]] = field(default_factory=list)

    def as_dict(self, plain: Arm) -> dict[str, Any]:
        return {
            "tokens": self.tokens,
            "seconds": round(self.seconds, 3),
            "tokens_per_second": round(self.tokens / self.seconds, 2),
            "speedup": round(self.tokens / self.seconds / (plain.tokens / plain.seconds), 3),
            "tokens_per_forward": round(self.behind / self.forwards, 3) if self.forwards else None,
            "proposed": self.proposed,
            "accepted": self.accepted,
            "draft_ms_per_forward": round(self.draft_ms / self.forwards, 3) if self.forwards else None,
            "differing": sum(mine != theirs for mine, theirs in zip(self.texts, plain.texts, strict=True)),
        }


class Server:
    """vLLM with our drafter, and the drafter's channel; and the other servers."""

    def __init__(
        self, url: str, key: str, port: int, token: str, most: int, peers: Mapping[str, str] | None = None
    ) -> None:
        """`most`: tokens of a reply; `peers`: other servers' addresses by the names of their arms. Raises RequestError
        where nobody answers."""
        self._most = most
        self._run = uuid4().hex  # so that one run's replies are not another's
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._http = httpx.Client(base_url=url.rstrip("/"), headers=headers, timeout=SECONDS)
        self._peers = {
            name: httpx.Client(base_url=peer.rstrip("/"), headers=headers, timeout=SECONDS)
            for name, peer in (peers or {}).items()
        }
        self.arms = (*ARMS, *self._peers)
        try:
            self.model = str(self._http.get("/v1/models").raise_for_status().json()["data"][0]["id"])
            self._channel = Channel(port, token)
            self.about = self._channel.hello()
        except (httpx.HTTPError, DrafterError, KeyError, IndexError, ValueError) as error:
            raise RequestError(
                f"{url} and the channel on port {port} must be vLLM with our drafter (docs/vllm.md): {error}"
            ) from error

    def write(self, question: str, arm: str, number: str, learn: bool = False) -> tuple[str, list[int]]:
        """A greedy reply: its user, and its tokens. Raises RequestError."""
        user = f"bench {self._run}" if arm == "history" else ""
        http = self._peers.get(arm, self._http)
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": "user", "content": question}],
            "temperature": 0,
            "max_tokens": self._most,
            "return_token_ids": True,
        }
        if arm in ARMS:
            body["vllm_xargs"] = {
                "hierchat_user": user,
                "hierchat_reply": self._run + number,
                "hierchat_learn": int(learn),
                **({"hierchat_drafts": 0} if arm == "none" else {}),
            }
        try:
            answer = http.post("/v1/chat/completions", json=body).raise_for_status().json()
            return user, list(answer["choices"][0]["token_ids"])
        except (httpx.HTTPError, KeyError, IndexError, ValueError) as error:
            raise RequestError(f"vLLM gave no reply: {error}") from error

    def figures(self, user: str, number: str) -> dict[str, Any]:
        """What the drafter tells of a reply."""
        return self._channel.reply(user, self._run + number, 0)

    def close(self) -> None:
        """The bench's user goes, too."""
        self._channel.forget_all(f"bench {self._run}")
        self._channel.close()
        for http in (self._http, *self._peers.values()):
            http.close()


@contextmanager
def opened(url: str, most: int, peers: Mapping[str, str] | None = None) -> Iterator[Server]:
    """The server at `url`, with the secrets that the environment has. Raises RequestError."""
    port, token = (os.environ.get(f"HIERCHAT_DRAFTER_{name}", "") for name in ("PORT", "TOKEN"))
    if not (port.isdigit() and token):
        raise RequestError(
            "Set HIERCHAT_DRAFTER_PORT and HIERCHAT_DRAFTER_TOKEN as they are set for vLLM (docs/vllm.md)."
        )
    server = Server(url, os.environ.get("VLLM_API_KEY", ""), int(port), token, most, peers)
    try:
        with closing(server):
            yield server
    except DrafterError as error:
        raise RequestError(str(error)) from error


def measure(
    server: Server, questions: Sequence[str], together: Sequence[int], tell: Tell, repeats: int = 1
) -> list[dict[str, Any]]:
    """The figures for each number of requests at once."""
    for at, question in enumerate(questions):
        for name in ("history", *server.arms[len(ARMS) :]):
            server.write(question, name, f" first {at}", learn=True)
        tell("first asking", 1)
    return [_measured(server, questions, count, tell, repeats) for count in together]


def _measured(
    server: Server, questions: Sequence[str], count: int, tell: Tell, repeats: int
) -> dict[str, Any]:
    names = server.arms
    arms = {name: Arm() for name in names}
    groups = [questions[at : at + count] for at in range(0, len(questions), count)] * repeats
    with ThreadPoolExecutor(count) as threads:
        for turn, group in enumerate(groups):
            for name in (*names[turn % len(names) :], *names[: turn % len(names)]):
                numbers = [f" {count} {turn} {name} {at}" for at in range(len(group))]
                began = time.perf_counter()
                replies = list(threads.map(server.write, group, [name] * len(group), numbers))
                arms[name].seconds += time.perf_counter() - began
                for number, (user, tokens) in zip(numbers, replies, strict=True):
                    _count(arms[name], tokens, server.figures(user, number) if name in ARMS else None)
            tell(f"{count} at once", len(group))
    return {"together": count, "arms": {name: arm.as_dict(arms["none"]) for name, arm in arms.items()}}


def _count(arm: Arm, tokens: list[int], found: dict[str, Any] | None) -> None:
    """`found`: what our drafter tells of the reply; another's tells nothing."""
    arm.texts.append(tokens)
    arm.tokens += len(tokens)
    if found is None:
        return
    forwards = found["steps"][1:]
    arm.forwards += len(forwards)
    arm.behind += sum(len(step["tokens"]) for step in forwards)
    arm.proposed += sum(found["proposed"].values())
    arm.accepted += sum(found["accepted"].values())
    arm.draft_ms += sum(step["draft_ms"] for step in forwards)
