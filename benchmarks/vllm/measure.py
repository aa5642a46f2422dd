"""Measure servers as arms that take turns over each group of questions, greedy.

Each question is new to all of them: what `history` and the other servers know of it is what they wrote in answer to
those before. Then those that remember are asked the same again: the best there can be is seen.

Reading the prompts takes all arms the same time. It is measured alone, with replies of one token, so that the figures
can be told with it and without.
"""

from __future__ import annotations

import argparse
import os
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

from benchmarks.vllm.servers import OwnServer, Server
from hierchat.checks.runs import RequestError, Tell, bar, machine, read_questions, say, spread

NAMED: Mapping[str, Mapping[str, int]] = {
    "none": {"hierchat_drafts": 0},
    "bare": {"hierchat_texts": 0},
    "ours": {},
    "history": {},
}
"""Arms of our own server and what tells them apart: no drafts; without the texts that ship; with them; with the
history of a user, too."""
LEARNS = "history"
READING = "reading"
"""No arm, but the prompts alone: replies of one token."""
ROUNDS = 3
"""Of a group: so many questions for each of several requests at once, so that most of the time none is missing."""


@dataclass
class Arm:
    """Add up what one arm did with so many requests at once."""

    seconds: float = 0.0
    tokens: int = 0
    forwards: int = 0
    behind: int = 0
    """Tokens of those forwards: all but the first of each reply, which reading the prompt brings."""
    proposed: int = 0
    accepted: int = 0
    counted: bool = True
    """Whether the server told each time what was drafted; else there is no T."""
    draft_ms: float | None = None
    """Of our own drafter alone: another's tells nothing."""
    texts: list[list[int]] = field(default_factory=list)

    def per_second(self, reading: float) -> float | None:
        """Return tokens per second, where `reading` of the seconds and the first token of each reply do not count;
        None: no time is left."""
        left = self.seconds - reading
        return (self.tokens - (len(self.texts) if reading else 0)) / left if left > 0 else None

    def as_dict(self, plain: Arm, reading: float) -> dict[str, Any]:
        """Return the figures. `plain`: the arm without drafts, over the same questions. `reading`: seconds for the
        prompts."""
        counted = self.counted and self.forwards > 0
        timed = self.draft_ms is not None and self.forwards > 0
        decoding, plainly = self.per_second(reading), plain.per_second(reading)
        return {
            "tokens": self.tokens,
            "seconds": round(self.seconds, 3),
            "tokens_per_second": round(self.tokens / self.seconds, 2),
            "speedup": round(self.tokens / self.seconds / (plain.tokens / plain.seconds), 3),
            "without_prompts": {
                "tokens_per_second": round(decoding, 2) if decoding else None,
                "speedup": round(decoding / plainly, 3) if decoding and plainly else None,
            },
            "tokens_per_forward": round(self.behind / self.forwards, 3) if counted else None,
            "drafts_per_forward": round(self.proposed / self.forwards, 3) if counted else None,
            "proposed": self.proposed if self.counted else None,
            "accepted": self.accepted if self.counted else None,
            "draft_ms_per_forward": round((self.draft_ms or 0.0) / self.forwards, 3) if timed else None,
            "differing": sum(mine != theirs for mine, theirs in zip(self.texts, plain.texts, strict=True)),
        }


class Bench:
    """Measure servers as arms. `most`: tokens of a reply."""

    def __init__(self, own: OwnServer, peers: Mapping[str, Server], most: int) -> None:
        self._own, self._peers, self._most = own, peers, most
        self.arms = (*NAMED, *peers)

    def warm_up(self, question: str) -> None:
        """Ask for one reply of each arm that is not counted, to a question that is not among the others. Raises
        RequestError."""
        for name in self.arms:
            self._write(question, name, "first")

    def measure(self, questions: Sequence[str], count: int, tell: Tell, *, again: bool) -> dict[str, Any]:
        """Measure all arms over all questions, `count` at once. Raises RequestError, ModelError and ArmError."""
        arms = self._pass(questions, count, (READING, *self.arms), "", tell)
        second = self._pass(questions, count, (LEARNS, *self._peers), " again", tell) if again else {}
        plain, reading = arms["none"], arms.pop(READING).seconds
        return {
            "together": count,
            "reading_seconds": round(reading, 3),
            "arms": {name: arm.as_dict(plain, reading) for name, arm in arms.items()},
            "again": {name: arm.as_dict(plain, reading) for name, arm in second.items()},
        }

    def _pass(
        self, questions: Sequence[str], count: int, names: Sequence[str], label: str, tell: Tell
    ) -> dict[str, Arm]:
        arms = {name: Arm() for name in names}
        size = count * ROUNDS if count > 1 else 1
        groups = [questions[at : at + size] for at in range(0, len(questions), size)]
        with ThreadPoolExecutor(count) as threads:
            for turn, group in enumerate(groups):
                for name in (*names[turn % len(names) :], *names[: turn % len(names)]):
                    self._ask(arms[name], name, group, f" {count} {turn}{label}", threads)
                tell(f"{count} at once{label}", len(group))
        return arms

    def _ask(self, arm: Arm, name: str, group: Sequence[str], turn: str, threads: ThreadPoolExecutor) -> None:
        """Ask a group, as many at once as there are threads, and add it to the figures of its arm."""
        peer = self._peers.get(name)
        before = peer.drafted() if peer else None
        replies = [f"{turn} {name} {at}" for at in range(len(group))]
        began = time.perf_counter()
        texts = list(threads.map(lambda question, reply: self._write(question, name, reply), group, replies))
        arm.seconds += time.perf_counter() - began
        arm.texts += texts
        arm.tokens += sum(map(len, texts))
        if peer:
            after = peer.drafted()
            if before is None or after is None:
                arm.counted = False
                return
            proposed, accepted = (now - then for now, then in zip(after, before, strict=True))
            behind = sum(map(len, texts)) - len(texts)
            arm.behind += behind
            arm.forwards += behind - accepted  # each brings one token that no draft proposed
            arm.proposed += proposed
            arm.accepted += accepted
            return
        for reply in replies:
            found = self._own.figures(_user(name), reply)
            forwards = found["steps"][1:]
            arm.forwards += len(forwards)
            arm.behind += sum(len(step["tokens"]) for step in forwards)
            arm.proposed += sum(found["proposed"].values())
            arm.accepted += sum(found["accepted"].values())
            arm.draft_ms = (arm.draft_ms or 0.0) + sum(step["draft_ms"] for step in forwards)

    def _write(self, question: str, name: str, reply: str) -> list[int]:
        if peer := self._peers.get(name):
            return peer.write(question, self._most)
        if name == READING:
            return self._own.write_for("", question, 1, reply, **NAMED["none"])
        named = {**NAMED[name], "hierchat_learn": int(name == LEARNS)}
        return self._own.write_for(_user(name), question, self._most, reply, **named)


def _user(arm: str) -> str:
    return arm if arm == LEARNS else ""


# `benchmarks vllm`, from its flags to its figures.


Servers = AbstractContextManager[tuple[OwnServer, dict[str, Server]]]
"""Ours, and others by the names of their arms."""


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Measure all arms. Raises RequestError, ModelError and ArmError."""
    found = read_questions(args.questions)
    log = any(one.day is not None for one in found)  # then their order counts
    if log and len(args.together) > 1:
        raise RequestError("A log is asked once, in its order: give --together one number.")
    counts = args.together
    chosen = found if log else spread(found)
    first, *questions = [one.turns[0] for one in chosen]
    if len(questions) < args.limit * sum(counts):  # none is asked for two numbers of requests
        raise RequestError(
            f"{args.questions} has too few questions for --limit {args.limit} and these numbers of requests."
        )
    with _started(args) if args.model else _running(args) as (own, peers):
        bench = Bench(own, peers, args.max_new_tokens)
        with bar(args.limit * sum(counts) * (1 if log else 2)) as tell:
            bench.warm_up(first)
            together = []
            for count in counts:
                mine, questions = questions[: args.limit * count], questions[args.limit * count :]
                together.append(bench.measure(mine, count, tell, again=not log))
        said = {key: own.about[key] for key in ("vllm", "model", "most_drafts")}
        widest = max(counts) * (1 + said["most_drafts"])
        said["step_ms"] = own.step_ms(widest)
    settings = {
        "questions": args.questions.name,
        "limit": args.limit,
        "max_new_tokens": args.max_new_tokens,
        **({"arguments": args.vllm} if args.model else {}),
    }
    return {"machine": machine(), **said, "settings": settings, "together": together}


def _started(args: argparse.Namespace) -> Servers:
    from benchmarks.vllm.launch import python_of
    from benchmarks.vllm.servers import started
    from hierchat.models.device_memory import best_device

    cuda = best_device().startswith("cuda")
    python = args.python or python_of(cuda, say)
    methods = [name for name in args.methods.split(",") if name]
    return started(args.model, methods, python, shlex.split(args.vllm), cuda=cuda, say=say)


@contextmanager
def _running(args: argparse.Namespace) -> Iterator[tuple[OwnServer, dict[str, Server]]]:
    """Open servers that were started before, with the secrets that the environment has."""
    port, token = (os.environ.get(f"HIERCHAT_DRAFTER_{name}", "") for name in ("PORT", "TOKEN"))
    if not (port.isdigit() and token):
        raise RequestError(
            "Name a model with --model, or set HIERCHAT_DRAFTER_PORT and HIERCHAT_DRAFTER_TOKEN as they "
            "are set for the vLLM that runs (docs/vllm.md)."
        )
    key = os.environ.get("VLLM_API_KEY", "")
    with ExitStack() as ends:
        own = ends.enter_context(closing(OwnServer(args.url, key, int(port), token)))
        yield own, {name: ends.enter_context(closing(Server(url, key))) for name, url in args.peer}
