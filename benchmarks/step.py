"""Measure the engine's own time in a step: over a runner that answers at once, so that nothing but drafting, choosing,
verifying and committing takes time."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks.index import VOCABULARY as FREQUENT
from benchmarks.index import synthetic_history
from hierchat.checks.runs import machine
from hierchat.config import GenerationSettings
from hierchat.drafting.acceptance import Acceptance
from hierchat.drafting.drafter import Drafter
from hierchat.drafting.source import Source, Successors
from hierchat.engine.engine import GenerationRequest, Step
from hierchat.engine.local import LocalEngine
from hierchat.engine.runner import CachedSequence, Runner
from hierchat.engine.verification import Rows

DRAFTS = 8
HISTORY, PROMPT = 100_000, 500
"""Tokens of the text that drafts, and of the prompt."""
PIECES = 4, 13
"""Tokens of a piece of the history, of which prompt and reply consist: fewest, and one more than the most."""
SPREAD, SURE = 2.5, 20.0
"""Logits: standard deviation of all, and the one of the token that the text has."""
SAMPLED: dict[str, Any] = {"temperature": 0.7, "top_p": 0.8, "top_k": 20}


class InstantRows(Rows):
    """Rows of which everything is known, as of a device that copied all at once."""

    def __init__(self, logits: NDArray[np.float32], following: Sequence[int]) -> None:
        self._logits, self._following = logits, following

    def __len__(self) -> int:
        return len(self._following)

    def __getitem__(self, node: int) -> NDArray[np.float32]:
        row = self._logits[node]
        row[self._following[node]] = SURE
        return row

    def best(self, node: int) -> int:
        return self._following[node]

    def likeliest(self, nodes: Sequence[int], count: int) -> NDArray[np.int32]:
        found = np.tile(np.arange(count, dtype=np.int32), (len(nodes), 1))
        found[:, 0] = [self._following[node] for node in nodes]
        return found


class InstantRunner(Runner):
    """Writes `text`, whatever it reads."""

    backend = "instant"
    most_sequences = 1

    def __init__(self, text: Sequence[int], vocabulary: int) -> None:
        self.text, self.vocabulary, self.context_length = text, vocabulary, len(text)
        random = np.random.default_rng(0)
        self.logits = random.normal(0, SPREAD, (DRAFTS + 1, vocabulary)).astype(np.float32)
        self.raised: list[tuple[int, int, np.float32]] = []

    def open(self) -> InstantSequence:
        return InstantSequence(self)


class InstantSequence(CachedSequence):
    """Holds the tokens of one text, and nothing else."""

    runner: InstantRunner
    _segment: Sequence[int] = ()

    def rollback(self, length: int) -> None:
        del self.tokens[length:]

    def read(self, tokens: Sequence[int], hidden: bool = False) -> None:
        self.tokens.extend(tokens)

    def forward(self, tokens: Sequence[int], parents: Sequence[int], *, padded: bool = True) -> Rows:
        self._segment = tokens
        runner, depths, at = self.runner, list[int](), len(self.tokens)
        for parent in parents:
            depths.append(depths[parent] + 1 if parent >= 0 else 1)
        following = [runner.text[min(at + depth, len(runner.text) - 1)] for depth in depths]
        for node, token, logit in runner.raised:
            runner.logits[node, token] = logit
        runner.raised = [(node, token, runner.logits[node, token]) for node, token in enumerate(following)]
        return InstantRows(runner.logits, following)

    def commit(self, nodes: Sequence[int]) -> None:
        self.tokens.extend(self._segment[node] for node in nodes)

    def wipe(self) -> None:
        pass


def measure(args: argparse.Namespace) -> int:
    """Measure steps with drafts and without, greedy and sampled; print a table and write the figures."""
    history = synthetic_history(HISTORY)
    text = _text(history, PROMPT + args.max_new_tokens)
    engine = LocalEngine(InstantRunner(text, args.vocabulary).open(), (), lambda tokens: "")
    arms, kinds = {}, {"greedy": dict[str, Any](), "sampled": SAMPLED}
    for choice, settings in kinds.items():
        for drafts in (0, DRAFTS):
            wanted = GenerationSettings(max_new_tokens=args.max_new_tokens, **settings)
            _steps(engine, history, text, wanted, drafts)  # what compiles, compiles here
            arms[f"{choice}, {drafts} drafts"] = _steps(engine, history, text, wanted, drafts)
    table = Table("median ms of a step", *next(iter(arms.values())))
    for name, found in arms.items():
        table.add_row(name, *(f"{value:.3f}" for value in found.values()))
    Console().print(table)
    result = {"machine": machine(), "vocabulary": args.vocabulary, "drafts": DRAFTS, "arms": arms}
    args.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0


def _steps(
    engine: LocalEngine, history: Source, text: Sequence[int], settings: GenerationSettings, drafts: int
) -> dict[str, float]:
    """Write the text once. `whole` is all of a step but its forward, and what calls the engine."""
    drafter = None
    if drafts:
        successors = Successors()
        drafter = Drafter([history], Acceptance(), engine.latency, drafts + 1, successors, settings)
    engine.clear()
    request = GenerationRequest(text[:PROMPT], settings, drafter)
    steps, whole = list[Step](), list[float]()
    began = time.perf_counter()
    for step in engine.generate(request):
        now = time.perf_counter()
        if step.tokens:
            steps.append(step)
            whole.append((now - began) * 1e3 - step.forward_ms)
        began = now
    written = sum(len(step.tokens) for step in steps)
    medians: dict[str, Any] = {
        "whole": whole,
        "draft": [step.draft_ms for step in steps],
        "verify": [step.verify_ms for step in steps],
    }
    return {name: round(float(np.median(ms)), 4) for name, ms in medians.items()} | {
        "tokens per forward": round(written / len(steps), 2)
    }


def _text(history: Source, length: int) -> list[int]:
    """Make a text of pieces of the history, between which a token is new."""
    random, tokens = np.random.default_rng(1), history.index.arrays.tokens
    text: list[int] = []
    while len(text) < length:
        begin = int(random.integers(0, len(tokens) - PIECES[1] - 1))
        piece = tokens[begin : begin + int(random.integers(*PIECES))]
        text += [*piece[piece >= 0].tolist(), int(random.integers(0, FREQUENT))]
    return text[:length]
