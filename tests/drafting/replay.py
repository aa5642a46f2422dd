"""Recorded replies through a drafter, without a model: what matches is accepted, costs follow an imagined engine.

    python -m tests.drafting.replay TRACES

TRACES are JSON lines with question_id, category, prompt and reply (token ids). Prints speed-up over plain decoding, T
and drafts per step for each category, of the questions with odd ids: fit.py has the others. The time that drafting
really takes (of this thread, so that other programs do not count) is counted.
"""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from hierchat.drafting.acceptance import Acceptance
from hierchat.drafting.context import ContextSource
from hierchat.drafting.drafter import Drafter
from hierchat.drafting.history import HistorySource
from hierchat.drafting.price import Latency
from hierchat.drafting.source import DraftSource

Trace = dict[str, Any]


class Costs:
    """Milliseconds of a step over 1, 2, ... positions, and of one of plain decoding."""

    def __init__(
        self, plain: float, row: float, *, drafting: float = 0.0, first: float | None = None
    ) -> None:
        self.plain = plain
        self._step_ms = [first or plain, *(plain + drafting + row * rows for rows in range(1, 32))]

    def step_ms(self, context: int) -> Sequence[float]:
        return self._step_ms


ENGINES = {
    "5 + 0.8 per row": Costs(5.0, 0.8),
    "7 + 2 per row": Costs(7.0, 2.0),
    "14.8, with drafts 16.8 + 0.55 per row": Costs(14.8, 0.55, drafting=2.0),
    "the same, 16.8 without drafts, too": Costs(14.8, 0.55, drafting=2.0, first=16.8),
    "10 + 0.1 per row": Costs(10.0, 0.1),
}


@dataclass(slots=True)
class Total:
    tokens: int = 0
    steps: int = 0
    drafts: int = 0
    ms: float = 0.0
    drafting_ms: float = 0.0

    def add(self, other: Total) -> None:
        for name, value in zip(self.__slots__, astuple(other), strict=True):
            setattr(self, name, getattr(self, name) + value)


def replay(drafter: Drafter, trace: Trace, latency: Latency) -> Total:
    """One reply."""
    reply, total = trace["reply"], Total()
    drafter.begin(trace["prompt"])
    while total.tokens < len(reply):
        began = time.thread_time()
        tree = drafter.propose(len(reply) - total.tokens)
        drafting = time.thread_time() - began
        children = {pair: node for node, pair in enumerate(zip(tree.parents, tree.tokens, strict=True))}
        node: int | None = -1
        kept: list[int] = []
        for token in reply[total.tokens :]:
            kept.append(token)
            node = children.get((node, token))
            if node is None:
                break
        began = time.thread_time()
        drafter.observe(kept)
        drafting += time.thread_time() - began
        forward = latency.step_ms(0)[len(tree)]
        total.add(Total(len(kept), 1, len(tree), forward + drafting * 1e3, drafting * 1e3))
    return total


def replay_all(
    traces: Iterable[Trace], latency: Latency, acceptance: Acceptance, *, history: bool = False
) -> dict[str, Total]:
    """Totals per category and over "all". Acceptance and, where asked for, history grow from reply to reply."""
    written = HistorySource()
    totals: dict[str, Total] = defaultdict(Total)
    for trace in traces:
        sources: list[DraftSource] = [ContextSource(), written] if history else [ContextSource()]
        one = replay(Drafter(sources, acceptance, latency), trace, latency)
        written.add(trace["reply"])
        totals["all"].add(one)
        totals[trace["category"]].add(one)
    return totals


def report(traces: Sequence[Trace], *, history: bool) -> None:
    for name, costs in ENGINES.items():
        print(f"{name}, {'context and history' if history else 'context'}:")
        for category, total in sorted(replay_all(traces, costs, Acceptance(), history=history).items()):
            print(
                f"  {category:16} {total.tokens * costs.plain / total.ms:.3f}x  T {total.tokens / total.steps:.2f}  "
                f"{total.drafts / total.steps:.1f} drafts  {total.drafting_ms / total.steps:.3f} ms of drafting"
            )


def read(path: Path, half: int) -> list[Trace]:
    """Traces of questions with even (0) or odd (1) ids."""
    traces = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [trace for trace in traces if trace["question_id"] % 2 == half]


def main() -> None:
    for path in sys.argv[1:]:
        traces = read(Path(path), 1)
        for history in (False, True):
            report(traces, history=history)


if __name__ == "__main__":
    main()
