"""Drafters that a test knows: noise, the truth, and the truth among many wrong tokens; and any head."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hierchat.config import GenerationSettings
from hierchat.drafting.draft_cost import DraftCost, FreeRows
from hierchat.drafting.draft_tree import DraftTree
from hierchat.drafting.drafter import Drafter
from hierchat.drafting.proposer import JointDrafter
from hierchat.engine.draft_head import SOURCE, DraftHead, HeadDrafter
from hierchat.engine.engine import GenerationRequest
from hierchat.engine.local import LocalEngine
from hierchat.engine.runner import Runner
from tests.testing.tiny import VOCABULARY, random_tokens, text_of, tokens_of


class Noise(Drafter):
    """Proposes random trees of `nodes` nodes each, with roots, doubles and all."""

    def __init__(self, reply: Sequence[int] = (), nodes: int = 24) -> None:
        super().__init__([], width=nodes + 1)
        self.most = nodes
        self.reply = list(reply)
        self.random = np.random.default_rng(nodes)
        self.at = 0

    def begin(self, prompt: Sequence[int]) -> None:
        super().begin(prompt)
        self.at = 0

    def observe(self, tokens: Sequence[int], top: NDArray[np.int32] | None = None) -> None:
        super().observe(tokens, top)
        self.at += len(tokens)

    def propose(self, limit: int | None = None) -> DraftTree:
        room = self.most if limit is None else min(self.most, limit)
        tokens, parents = self.nodes(room)
        size = len(tokens)
        return DraftTree(tuple(tokens), tuple(parents), ("tree",) * size, (1.0,) * size)

    def nodes(self, room: int) -> tuple[list[int], list[int]]:
        parents = [int(self.random.integers(-1, node)) if node else -1 for node in range(room)]
        return self.random.integers(0, VOCABULARY, room).tolist(), parents


class Oracle(Noise):
    """Knows the reply."""

    def nodes(self, room: int) -> tuple[list[int], list[int]]:
        tokens = self.reply[self.at :][:room]
        return tokens, list(range(-1, len(tokens) - 1))


class Adversary(Noise):
    """Every first draft is wrong; below each stands what would have been right."""

    def nodes(self, room: int) -> tuple[list[int], list[int]]:
        right = self.reply[self.at : self.at + 1] or [0]
        half = room // 2
        wrong = [(right[0] + 1 + i) % VOCABULARY for i in range(half)]
        return wrong + right * half, [-1] * half + list(range(half))


class Buried(Adversary):
    """The true text, one token deep in turn with wrong ones: its path jumps across the block."""

    def nodes(self, room: int) -> tuple[list[int], list[int]]:
        tokens: list[int] = []
        parents: list[int] = []
        parent = -1
        for token in self.reply[self.at :][: room // 3]:
            tokens += [(token + 1) % VOCABULARY, token, (token + 2) % VOCABULARY]
            parents += [parent] * 3
            parent = len(tokens) - 2
        return tokens, parents


def assert_changes_no_word(runner: Runner, head: DraftHead) -> None:
    """A reply with the head beside the databases, greedy and sampled, is the one without; and it does draft."""
    engine, proposed = LocalEngine(runner.open(), (), text_of), 0
    for temperature in (0.0, 0.8):
        settings = GenerationSettings(temperature=temperature, seed=1, max_new_tokens=20)
        prompt, cost = random_tokens(150, 2, runner.vocabulary), DraftCost(FreeRows(8))
        engine.clear()
        plain = tokens_of(engine.generate(GenerationRequest(prompt, settings)))
        joint = JointDrafter(Drafter(width=8, settings=settings), [HeadDrafter(head, cost, settings)], cost)
        engine.clear()
        steps = list(engine.generate(GenerationRequest(prompt, settings, joint)))
        assert tokens_of(steps) == plain
        proposed += sum(step.proposed.get(SOURCE, 0) for step in steps)
    assert proposed > 30
