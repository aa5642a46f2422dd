"""Sequences of one runner that read, commit paths of draft trees, roll back and share what they begin with: each is,
bit for bit, a fresh one that read the same text."""

from functools import cache
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from benchmarks import plain_kernels
from hierchat.engine.cpu.runner import CpuRunner
from hierchat.engine.cuda.cuda_runner import REGIMES, CudaRunner
from hierchat.engine.cuda.row_attention import PAGE
from hierchat.engine.generation import common_prefix
from hierchat.engine.runner import Runner, Segment
from hierchat.models.formats.blocks import pack
from tests.fuzz.machines import Machine
from tests.testing.families import tiny_family
from tests.testing.tiny import CONTEXT, block_model, path_to, random_tokens, tiny_model

assert plain_kernels  # by which the processor computes
TEXTS = 2
LONGEST = 220
"""Tokens of a text: two pages or four, a slot of marks, four windows."""
KINDS = ("llama", "llama", "gemma3", "states", "cuda")
pick = st.integers(0, 999)


@cache
def runner_of(kind: str) -> Runner:
    if kind in ("cuda", "states"):  # of Gated DeltaNet, beside attention
        module = tiny_model() if kind == "cuda" else tiny_family("qwen3_5_text")
        return CudaRunner(module, context_length=CONTEXT, regime=REGIMES[0], sequences=TEXTS + 1)
    model = block_model(tiny_model(kind), lambda floats: pack(floats, 8))  # type: ignore[arg-type]
    return CpuRunner(model, context_length=CONTEXT, threads=1, sequences=TEXTS + 1)


class SequenceMachine(Machine):
    examples = 10

    @initialize(kind=st.sampled_from(KINDS))
    def begins(self, kind: str) -> None:
        self.kind, self.runner = kind, runner_of(kind)
        self.shared = isinstance(self.runner, CpuRunner | CudaRunner)
        self.free = self.runner.pages.free if isinstance(self.runner, CpuRunner | CudaRunner) else 0
        self.sequences = [self.runner.open() for _ in range(TEXTS)]
        self.texts: list[list[int]] = [[] for _ in range(TEXTS)]
        self.turn = 0

    def teardown(self) -> None:
        if not hasattr(self, "sequences"):
            return
        for number in range(TEXTS):
            self.is_a_fresh_one(number)
        for sequence in self.sequences:
            sequence.close()
        if isinstance(self.runner, CpuRunner | CudaRunner):
            assert self.runner.pages.free == self.free

    def tokens(self, count: int) -> list[int]:
        self.turn += 1
        return random_tokens(count, self.turn)

    def room(self, number: int) -> int:
        return LONGEST - len(self.texts[number])

    @rule(number=pick, size=st.integers(1, 90))
    def read(self, number: int, size: int) -> None:
        number %= TEXTS
        tokens = self.tokens(min(size, self.room(number)))
        if tokens:
            self.sequences[number].read(tokens)
            self.texts[number] += tokens

    def tree(self, number: int, links: list[int]) -> tuple[list[int], list[int]]:
        """A tree of one root, as a step has it."""
        parents = [-1, *(link % node for node, link in enumerate(links, 1))]
        return self.tokens(len(parents)), parents

    links = st.lists(st.integers(0, 30), max_size=9)

    @rule(number=pick, links=links, node=pick)
    def commit(self, number: int, links: list[int], node: int) -> None:
        number %= TEXTS
        tokens, parents = self.tree(number, links)
        if self.room(number) < len(tokens):
            return
        self.sequences[number].forward(tokens, parents)
        path = path_to(node % len(tokens), parents)
        self.sequences[number].commit(path)
        self.texts[number] += [tokens[at] for at in path]

    @precondition(lambda self: self.shared)
    @rule(links=st.lists(links, min_size=TEXTS, max_size=TEXTS), node=pick)
    def commit_together(self, links: list[list[int]], node: int) -> None:
        """Of a forward over both, each commits a path of its own."""
        trees = [self.tree(number, each) for number, each in enumerate(links)]
        if any(self.room(number) < len(tokens) for number, (tokens, _) in enumerate(trees)):
            return
        self.runner.forward(
            [Segment(sequence, *tree) for sequence, tree in zip(self.sequences, trees, strict=True)]
        )
        for number, (tokens, parents) in enumerate(trees):
            path = path_to(node % len(tokens), parents)
            self.sequences[number].commit(path)
            self.texts[number] += [tokens[at] for at in path]

    @rule(number=pick, length=st.integers(0, LONGEST))
    def roll_back(self, number: int, length: int) -> None:
        number %= TEXTS
        del self.texts[number][length:]
        self.sequences[number].rollback(min(length, len(self.sequences[number].tokens)))

    @precondition(lambda self: self.shared)
    @rule(number=pick, length=st.integers(0, LONGEST))
    def share(self, number: int, length: int) -> None:
        """Take over what another one begins with."""
        number %= TEXTS
        other = self.texts[1 - number][:length]
        held = common_prefix(self.texts[number], other)
        self.sequences[number].rollback(held)
        self.texts[number] = other[:held]
        if self.kind == "states":  # they are of one text
            assert not self.sequences[number].adopt(self.sequences[1 - number], other[held:])
            return
        assert self.sequences[number].adopt(self.sequences[1 - number], other[held:])
        taken = len(other) // PAGE * PAGE if isinstance(self.runner, CudaRunner) else len(other)
        self.texts[number] = other[: max(taken, held)]

    @rule(number=pick)
    def close(self, number: int) -> None:
        number %= TEXTS
        self.sequences[number].close()
        self.sequences[number] = self.runner.open()
        self.texts[number] = []

    @rule(number=pick)
    def look(self, number: int) -> None:
        self.is_a_fresh_one(number % TEXTS)

    def is_a_fresh_one(self, number: int) -> None:
        sequence, text = self.sequences[number], self.texts[number]
        assert sequence.tokens == text
        fresh = self.runner.open()
        try:
            if text:
                fresh.read(text)
            np.testing.assert_array_equal(self.seen(sequence), self.seen(fresh))
        finally:
            fresh.close()

    @staticmethod
    def seen(sequence: Any) -> np.ndarray:
        rows = sequence.forward([5, 6, 7], [-1, 0, 0])
        return np.array([rows[node] for node in range(3)])
