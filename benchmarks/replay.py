"""Replay recorded replies through the drafters, without a model: what matches the recorded reply is accepted.

The same tokens per forward as with the model, thousands of tokens a second. Without a width, drafters choose their
trees by costs that are given; with costs, seconds are those that the steps would take, and drafting took here.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from benchmarks.arms import Answer, Calibration, Carried
from benchmarks.decode import Measured, row_of
from benchmarks.record import Trace
from hierchat.checks.runs import Tell
from hierchat.drafting.drafter import LEAD
from hierchat.drafting.proposer import Proposer
from hierchat.engine.engine import TARGET, Step
from hierchat.runtime.served_model import ServedModel

WIDEST = 128
"""Positions of a forward whose costs are known."""


def steps(
    drafter: Proposer | None,
    prompt: Sequence[int],
    reply: Sequence[int],
    top: NDArray[np.int32] | None = None,
) -> Iterator[Step]:
    """Replay a recorded reply without a model, in the steps that the engine would take. `top` [reply, k]: the target's
    likeliest tokens where it chose each token. `draft_ms` is what proposing and observing took of this thread's
    time."""
    at = 0
    if drafter:
        drafter.begin(prompt)
    while at < len(reply):
        began = time.thread_time()
        tree = drafter.propose() if drafter else None
        took = time.thread_time() - began
        path = tree.path(reply[at:]) if tree else []
        tokens = reply[at : at + len(path) + 1]
        sources = [tree.sources[node] for node in path] if tree else []
        sources += [TARGET] * (len(tokens) - len(path))
        if drafter:
            seen = None
            if top is not None and drafter.top:  # -1 where fewer were recorded
                seen = np.full((len(tokens), drafter.top), -1, np.int32)
                known = top[at : at + len(tokens), : drafter.top]
                seen[:, : known.shape[1]] = known
            began = time.thread_time()
            drafter.observe(tokens, seen)
            took += time.thread_time() - began
        at += len(tokens)
        yield Step(
            tokens=tuple(tokens),
            sources=tuple(sources),
            proposed=MappingProxyType(dict(Counter(tree.sources if tree else ()))),
            width=1 + (len(tree) if tree else 0),
            draft_ms=took * 1e3,
        )


class GivenCosts:
    """Hold milliseconds of a step over 1, 2, ... positions: plain decoding's, and more for each further row."""

    def __init__(self, plain: float, row: float) -> None:
        self._step_ms = [plain + row * rows for rows in range(WIDEST)]

    def step_ms(self, context: int) -> Sequence[float]:
        return self._step_ms


class Replayed(Measured):
    """Hold what has been replayed. No prompt was read, and without costs nothing took any time."""

    calibration: Mapping[str, Calibration] = MappingProxyType({})
    """By arm: see arms.Carried."""

    def as_dict(self) -> dict[str, Any]:
        said = super().as_dict()
        for arm in said["arms"]:
            if calibration := self.calibration.get(arm["arm"]):
                arm["calibration"] = calibration
            arm["first_token_seconds"] = None
            for figures in (arm, *arm["by_group"].values(), *arm.get("by_day", {}).values()):
                figures["seconds"] = figures["seconds"] or None
        return said


def without_model(
    costs: GivenCosts | None, statistics: Sequence[object] = (), control: Collection[int] = ()
) -> ServedModel:
    """Make a stand-in for a loaded model: what its steps cost, the corpora, and its control tokens."""
    standing_in = SimpleNamespace(
        local=SimpleNamespace(latency=costs),
        statistics=tuple(statistics),
        levels=None,
        proposers=(),
        mtp=None,
        prompts=SimpleNamespace(control_tokens=control),
    )
    return cast(ServedModel, standing_in)


def replay(
    carried: Sequence[Carried],
    traces: Sequence[Trace],
    costs: GivenCosts | None,
    result: Replayed,
    tell: Tell,
    *,
    carry: bool,
) -> None:
    """Replay all replies for every arm, in their order. `carry`: history lasts over the questions."""
    for arm in carried:  # what is compiled at its first use is not drafting
        _answer(
            Carried(arm.name, without_model(costs), arm.width).drafter(traces[0].settings), traces[0], None
        )
    for question, group in groupby(traces, key=lambda trace: trace.question):
        turns = list(group)
        row = row_of(question)
        tell(f"{question.group} {question.name}", 0)
        for arm in carried:
            if not carry:
                arm.forget()
            answers = []
            for trace in turns:
                answers.append(asdict(_answer(arm.drafter(trace.settings), trace, costs)))
                arm.learn(trace.reply, trace.prompt[-LEAD:])
            row["arms"][arm.name] = answers
        result.rows.append(row)
        tell("", 1)
    result.calibration = {arm.name: arm.calibration for arm in carried}


def _answer(drafter: Proposer | None, trace: Trace, costs: GivenCosts | None) -> Answer:
    sources: Counter[str] = Counter()
    forwards, draft_ms, ms = 0, 0.0, 0.0
    step_ms = costs.step_ms(0) if costs else None
    for step in steps(drafter, trace.prompt, trace.reply, trace.top):
        sources.update(step.sources)
        forwards += 1
        draft_ms += step.draft_ms
        if step_ms:
            ms += step_ms[step.width - 1] + step.draft_ms
    return Answer(trace.reply, ms / 1e3, 0.0, forwards, draft_ms, dict(sources))
