"""`bench load`: several users at one engine, which answers one at a time: who waits how long.

Every user asks, waits for the reply and asks again; requests are answered in the order in which they came.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

from hierchat.bench.arms.arm import Arm
from hierchat.bench.measure.decode import WARM_UP
from hierchat.config import GenerationSettings
from hierchat.engine.scheduler import Scheduler
from hierchat.runtime.hosted import Hosted
from hierchat.verify.asking.dialogue import Dialogue
from hierchat.verify.asking.progress import Tell
from hierchat.verify.asking.questions import Question


@dataclass(frozen=True, slots=True)
class Served:
    """One reply. Seconds from the request on."""

    tokens: int
    waited: float
    first: float
    all: float


def measure(
    hosted: Hosted,
    arms: Sequence[Arm],
    questions: Sequence[Question],
    settings: GenerationSettings,
    users: Sequence[int],
    tell: Tell,
) -> list[dict[str, Any]]:
    """Figures for each number of users and each arm; all answer the same questions. Raises what an arm raises."""
    figures = []
    for count in users:
        for arm in arms:
            tell(f"{count} users: {arm.name}", 0)
            arm.forget()
            arm.answer(Dialogue(hosted, settings.max_new_tokens).ask(WARM_UP), settings)
            began = time.perf_counter()
            served = _serve(hosted, arm, questions, settings, count)
            took = time.perf_counter() - began
            figures.append({"users": count, "arm": arm.name, **_summary(served, took)})
            tell("", 1)
    return figures


def _serve(
    hosted: Hosted, arm: Arm, questions: Sequence[Question], settings: GenerationSettings, users: int
) -> list[Served]:
    scheduler, served, errors = Scheduler(most=users), list[Served](), list[BaseException]()

    def use(mine: Sequence[Question]) -> None:
        try:
            for question in mine:
                talk = Dialogue(hosted, settings.max_new_tokens)
                for text in question.turns:
                    prompt = talk.ask(text)
                    asked = time.perf_counter()
                    with scheduler.turn():
                        if errors:
                            return
                        waited = time.perf_counter() - asked
                        answer = arm.answer(prompt, settings)
                        arm.learn(answer.reply)
                    ended = time.perf_counter() - asked
                    served.append(Served(len(answer.reply), waited, waited + answer.first_seconds, ended))
                    talk.answered(answer.reply)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=use, args=(questions[user::users],)) for user in range(users)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return served


def _summary(served: Sequence[Served], took: float) -> dict[str, Any]:
    tokens = sum(one.tokens for one in served)
    return {
        "replies": len(served),
        "tokens": tokens,
        "tokens_per_second": round(tokens / took, 1),
        "waited_seconds": round(median(one.waited for one in served), 3),
        "first_token_seconds": round(median(one.first for one in served), 3),
        "first_token_p90_seconds": round(_p90([one.first for one in served]), 3),
        "reply_seconds": round(median(one.all for one in served), 3),
        "reply_p90_seconds": round(_p90([one.all for one in served]), 3),
    }


def _p90(values: Sequence[float]) -> float:
    return quantiles(values, n=10, method="inclusive")[-1] if len(values) > 1 else values[0]
