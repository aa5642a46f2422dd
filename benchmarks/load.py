"""Measure `benchmarks load`: several users at one engine: how much they get in all, and each of them.

Every user asks, waits for the reply and asks the next question at once, with slots and a history of its own. Of each
question only the first turn is asked, so that all arms read the same.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median, quantiles
from typing import Any

from benchmarks.arms import Arm, Carried, OwnArm
from benchmarks.decode import WARM_UP
from benchmarks.peers.arm import PeerArm
from benchmarks.peers.environment import ArmError
from hierchat.checks.runs import Dialogue, Question, Tell
from hierchat.config import GenerationSettings
from hierchat.drafting.drafter import LEAD
from hierchat.engine.engine import GenerationRequest
from hierchat.runtime.served_model import ServedModel

Prompt = Sequence[int]


@dataclass(frozen=True, slots=True)
class Served:
    """Hold one reply's tokens, and its seconds from the request on."""

    tokens: int
    first: float
    all: float


@dataclass(frozen=True, slots=True)
class Round:
    """Hold one pass of all users through their questions with one arm; `replies` [user]."""

    seconds: float
    replies: list[list[Served]]
    words: list[list[list[int]]]
    """[user][question]: the tokens."""


def measure(
    served: ServedModel,
    arms: Sequence[Arm],
    questions: Sequence[Question],
    settings: GenerationSettings,
    users: Sequence[int],
    tell: Tell,
    *,
    repeats: int = 1,
) -> list[dict[str, Any]]:
    """Measure each number of users and each arm, in turn; all answer the same questions. Raises what an arm raises."""
    prompts = [Dialogue(served, settings.max_new_tokens).ask(question.turns[0]) for question in questions]
    warm_up = [Dialogue(served, settings.max_new_tokens).ask(WARM_UP)]
    found: dict[tuple[int, str], list[Round]] = {}
    alone: dict[str, dict[int, list[int]]] = {}
    for _ in range(repeats):
        for count in users:
            talks = [prompts[user::count] for user in range(count)]
            for arm in arms:
                tell(f"{count} users: {arm.name}", 0)
                _serve(served, arm, [warm_up] * count, settings)
                found.setdefault((count, arm.name), []).append(_serve(served, arm, talks, settings))
                tell("", 1)
    for (count, name), rounds in found.items():
        for user, replies in enumerate(rounds[0].words):
            for number, reply in enumerate(replies):
                alone.setdefault(name, {}).setdefault(user + number * count, reply)
    return [
        {
            "users": count,
            "arm": name,
            **_summary(sorted(rounds, key=lambda one: one.seconds)[len(rounds) // 2]),
            "other_words": _other_words(rounds, alone[name], count),
        }
        for (count, name), rounds in found.items()
    ]


def _serve(
    served: ServedModel, arm: Arm, talks: Sequence[Sequence[Prompt]], settings: GenerationSettings
) -> Round:
    if isinstance(arm, PeerArm):
        seconds, rounds = arm.serve(talks, settings)
        return Round(
            seconds,
            [[Served(len(one["tokens"]), one["first"], one["all"]) for one in replies] for replies in rounds],
            [[one["tokens"] for one in replies] for replies in rounds],
        )
    if not isinstance(arm, OwnArm):
        raise ArmError(f"{arm.name} answers one user at a time")
    return _serve_ourselves(served, arm, talks, settings)


def _serve_ourselves(
    served: ServedModel, arm: OwnArm, talks: Sequence[Sequence[Prompt]], settings: GenerationSettings
) -> Round:
    served.local.clear()
    replies: list[list[Served]] = [[] for _ in talks]
    words: list[list[list[int]]] = [[] for _ in talks]
    errors: list[BaseException] = []
    carried = [arm.another() for _ in talks]

    def use(user: int) -> None:
        try:
            for prompt in talks[user]:
                timing, reply = _answer(served, carried[user], prompt, settings, user)
                replies[user].append(timing)
                words[user].append(reply)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=use, args=(user,)) for user in range(len(talks))]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return Round(time.perf_counter() - began, replies, words)


def _answer(
    served: ServedModel, carried: Carried, prompt: Prompt, settings: GenerationSettings, user: int
) -> tuple[Served, list[int]]:
    drafter = carried.drafter(settings)
    asked, first, reply = time.perf_counter(), 0.0, list[int]()
    steps = served.engine.generate(
        GenerationRequest(
            prompt, settings, drafter, padded=drafter is not None, user=user, payoff=carried.payoff
        )
    )
    for step in steps:
        reply += step.tokens
        if step.tokens:
            first = first or time.perf_counter()
    ended = time.perf_counter()
    carried.learn(reply, prompt[-LEAD:])
    return Served(len(reply), first - asked, ended - asked), reply


def _summary(served: Round) -> dict[str, Any]:
    every = [one for replies in served.replies for one in replies]
    tokens = sum(one.tokens for one in every)
    of_user = [
        sum(one.tokens for one in replies) / sum(one.all for one in replies)
        for replies in served.replies
        if replies
    ]
    firsts = [one.first for one in every]
    return {
        "replies": len(every),
        "tokens": tokens,
        "seconds": round(served.seconds, 2),
        "tokens_per_second": round(tokens / served.seconds, 1),
        "user_tokens_per_second": round(median(of_user), 1),
        "slowest_over_fastest": round(min(of_user) / max(of_user), 2),
        "first_token_seconds": round(median(firsts), 3),
        "first_token_p90_seconds": round(_p90(firsts), 3),
        "served": [[asdict(one) for one in replies] for replies in served.replies],
    }


def _other_words(rounds: Sequence[Round], alone: dict[int, list[int]], users: int) -> int:
    """Count replies that differ from those that a single user got."""
    return sum(
        reply != alone[user + number * users]
        for one in rounds
        for user, replies in enumerate(one.words)
        for number, reply in enumerate(replies)
    )


def _p90(values: Sequence[float]) -> float:
    return quantiles(values, n=10, method="inclusive")[-1] if len(values) > 1 else values[0]
