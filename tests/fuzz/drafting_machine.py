"""Draft trees while texts come and go, replies begin, go on and are taken back: each tree is one, within its limits, of
texts that are there, and what is committed of it is what is observed."""

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from hierchat.drafting.draft_cost import DraftCost
from hierchat.drafting.draft_tree import NO_MATCH, DraftTree
from hierchat.drafting.drafter import Drafter, in_order
from hierchat.drafting.growing.kernel_arrays import CONTEXT, CORPUS, HISTORY, SUCCESSORS
from hierchat.drafting.proposer import JointDrafter, Proposer
from hierchat.drafting.source import TOP, Source, Successors
from tests.drafting.databases import Steps, paths_of
from tests.fuzz.machines import Machine

pick = st.integers(0, 999)
tokens = st.lists(st.integers(0, 3), min_size=1, max_size=20)
limits = st.none() | st.integers(0, 40)
MARK = 10
"""From here on each token marks one text."""


class Scripted(Proposer):
    """A proposer that knows a few tokens by lot."""

    def __init__(self) -> None:
        self.dice = np.random.default_rng(0)

    def propose(self, limit: int | None = None) -> DraftTree:
        count = int(self.dice.integers(0, 8 if limit is None else min(limit, 7) + 1))
        links, chances = list[tuple[int, int]](), list[float]()
        for _ in range(count):
            link = int(self.dice.integers(-1, len(links))), int(self.dice.integers(0, 4))
            if link not in links:
                above = chances[link[0]] if link[0] >= 0 else 1.0
                links.append(link)
                chances.append(above * float(self.dice.uniform(0.1, 1.0)))
        parents, tokens = zip(*links, strict=True) if links else ((), ())
        return DraftTree(tokens, parents, ("other",) * len(links), tuple(chances))


class DraftingMachine(Machine):
    examples = 30

    @initialize(
        rows=st.lists(st.floats(0, 0.5), min_size=3, max_size=31), joint=st.booleans(), learns=st.booleans()
    )
    def begins(self, rows: list[float], joint: bool, learns: bool) -> None:
        latency = Steps([1.0 + sum(rows[:count]) for count in range(len(rows) + 1)])
        self.sources = [Source(HISTORY), Source(CORPUS)]
        self.drafter = Drafter(self.sources, latency=latency, successors=Successors() if learns else None)
        self.cost = self.drafter.cost
        self.beside = DraftCost(latency)
        self.proposer = JointDrafter(self.drafter, [Scripted()], self.cost) if joint else self.drafter
        self.joint = joint
        self.held: list[tuple[int, int, int, int]] = []
        """Source, position, length and mark of each text."""
        self.marks = MARK
        self.text: list[int] = []
        self.dice = np.random.default_rng(1)
        self.start([0, 1])

    @rule(prompt=tokens, own=st.booleans())
    def start(self, prompt: list[int], own: bool = False) -> None:
        self.text = [*(self.text if own else []), *prompt][-300:]
        self.proposer.begin(self.text)

    @rule(source=st.integers(0, 1), text=tokens)
    def add(self, source: int, text: list[int]) -> None:
        at = len(text) // 2
        marked = [*text[:at], self.marks, *text[at:]]
        self.held.append((source, self.sources[source].index.append(marked), len(marked), self.marks))
        self.marks += 1

    @precondition(lambda self: self.held)
    @rule(pick=pick)
    def remove(self, pick: int) -> None:
        source, position, length, _ = self.held.pop(pick % len(self.held))
        self.sources[source].index.remove([(position, length)])

    @rule(limit=limits, pick=pick, depth=st.integers(0, 12), bonus=st.integers(0, 3))
    def step(self, limit: int | None, pick: int, depth: int, bonus: int) -> None:
        tree = self.proposer.propose(limit)
        most = self.cost.most if limit is None else min(limit, self.cost.most)
        self.is_one(tree, most)
        self.commit(tree, pick, depth, bonus)

    @rule(limit=limits, kept=st.integers(0, 20), pick=pick, depth=st.integers(0, 12), bonus=st.integers(0, 3))
    def step_beside(self, limit: int | None, kept: int, pick: int, depth: int, bonus: int) -> None:
        """In a forward that others share, which may have room for fewer."""
        self.beside.look(len(self.text), 2)
        tree = self.proposer.propose_beside(self.beside, limit)
        self.is_one(tree, self.beside.most if limit is None else min(limit, self.beside.most))
        if kept < len(tree):
            self.proposer.cut(kept)
            tree = tree.cut(kept)
        self.commit(tree, pick, depth, bonus)

    def commit(self, tree: DraftTree, pick: int, depth: int, bonus: int) -> None:
        """The target takes a path so deep, and one token more."""
        path: list[int] = []
        if tree and depth:
            path = list(paths_of(tree)[pick % len(tree)][:depth])
        path.append(bonus)
        top = self.dice.integers(0, 4, (len(path), TOP)).astype(np.int32) if self.proposer.top else None
        self.proposer.observe(path, top)
        self.text += path
        self.follows()

    @precondition(lambda self: not self.joint)
    @rule(length=pick, tokens=st.lists(st.integers(0, 3), max_size=5))
    def take_back(self, length: int, tokens: list[int]) -> None:
        length %= len(self.text) + 1
        if not length and not tokens:
            return
        self.drafter.follow(length, tokens)
        self.text = [*self.text[:length], *tokens]
        self.follows()

    def follows(self) -> None:
        context, newest = self.drafter._context, dict[int, int]()
        assert context.tokens.tolist() == self.text
        for at, token in enumerate(self.text):
            assert context.previous[at] == newest.get(token, -1)
            newest[token] = at

    def is_one(self, tree: DraftTree, most: int) -> None:
        size = len(tree)
        assert size <= max(most, 0)
        assert size == len(tree.parents) == len(tree.sources) == len(tree.probabilities)
        assert len(tree.matches) in (0, size)
        assert all(-1 <= parent < node for node, parent in enumerate(tree.parents))
        assert len(set(zip(tree.parents, tree.tokens, strict=True))) == size
        assert list(tree.probabilities) == sorted(tree.probabilities, reverse=True)
        assert all(0 <= chance <= 1 + 1e-6 for chance in tree.probabilities)
        there = {mark for _, _, _, mark in self.held} | set(self.text)
        assert all(token in there for token in tree.tokens if token >= MARK)
        ordered = in_order(self.sources)
        for node, path in enumerate(paths_of(tree)):
            match = tree.match(node)
            if match == NO_MATCH or match.slot == SUCCESSORS or match.position < 0:
                continue
            whole = [*self.text, *path]
            log = self.text if match.slot == CONTEXT else ordered[match.database].index.arrays.tokens.tolist()
            found = log[match.position - match.length : match.position + 1]
            assert found == whole[len(whole) - 1 - match.length :]
