"""Grow, from all databases, the draft tree that pays best, and learn from what was accepted."""

from __future__ import annotations

import operator
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np
from numpy.typing import NDArray

from hierchat.config import GenerationSettings
from hierchat.drafting.acceptance import FORGET, RATE, RECENT_RATE, Acceptance, chosen
from hierchat.drafting.draft_cost import DraftCost, FreeRows, Latency
from hierchat.drafting.draft_tree import DOCUMENTS, DraftTree, Match
from hierchat.drafting.growing.evidence import occurs
from hierchat.drafting.growing.grow import TAIL
from hierchat.drafting.growing.kept import Kept, addresses, grow_kept, teach_kept
from hierchat.drafting.growing.kernel_arrays import (
    NODES,
    SLOTS,
    SOURCES,
    Databases,
    Prices,
    make_growth,
)
from hierchat.drafting.proposer import Proposer
from hierchat.drafting.source import TOP, Context, Source, Successors
from hierchat.drafting.suffix_index import Arrays

WIDTH = 12
"""Positions per forward if no costs are known."""
RECENT_PRIOR = 0.3
"""Assumed share of a slot's first choices that are right, at the beginning of a reply."""
LOOKUP_MS = 0.01
"""Assumed milliseconds of one look into the databases, until they are measured."""
LOOKUP_RATE = 0.02
LEAD = 16
"""Last tokens of a prompt that the history keeps before its reply, and by which it finds the reply again."""
HEADER = 8
"""Tokens at most that a chat's template writes before a reply."""
_NO_SUCCESSORS = (np.empty((0, TOP), np.int32), np.empty(0, np.int64), np.empty((0, TOP), np.int32))


class Drafter(Proposer):
    """Drafts from the context and any other databases. `successors`, if given, learn the target's next tokens.
    The tree's size follows `latency` and `acceptance`; `width` fixes the positions per forward instead.
    `control`: tokens that a chat's template writes between messages."""

    def __init__(
        self,
        sources: Sequence[Source] = (),
        acceptance: Acceptance | None = None,
        latency: Latency | None = None,
        width: int | None = None,
        successors: Successors | None = None,
        settings: GenerationSettings | None = None,
        control: Collection[int] = (),
    ) -> None:
        self._control = control
        self.acceptance = acceptance or Acceptance()
        self.cost = DraftCost(latency if latency and not width else FreeRows(width or WIDTH))
        self.top = TOP if successors is not None else 0
        self._chosen = chosen(settings)
        self._sources = in_order(sources)
        self._documents = any(source.origin == DOCUMENTS for source in self._sources)
        self._successors = successors
        self._recent = np.zeros(SLOTS, np.float32)
        self._make_room(0)
        self._nodes = 0
        self._lookup_ms = LOOKUP_MS
        self._arrays: list[Arrays] | None = None  # of the sources, when _runs were made
        self._runs = runs_of(())
        self._owners = np.full(1, -1)
        """The source of each run; behind them -1, where -1 finds it."""
        self.begin(())

    def begin(self, prompt: Sequence[int]) -> None:
        self._context = Context(prompt)
        self._from = 0 if self._repeats(prompt[-LEAD:]) else self._header(prompt)
        self._grown, self._alone = False, True
        self._recent[:] = RECENT_PRIOR
        self.cost.begin(len(prompt))

    def _repeats(self, end: Sequence[int]) -> bool:
        """Return whether a prompt that ended so was answered before."""
        last = np.array(end, np.int32)
        if last.size < LEAD:
            return False
        with self._held():
            found = occurs(self._runs, last)
        return bool(found) or self._context.repeats(last.size)

    def _header(self, prompt: Sequence[int]) -> int:
        """Return from where on matches count: what a template writes before every reply says nothing of this one."""
        for place in range(len(prompt) - 1, max(len(prompt) - HEADER, 0) - 1, -1):
            if prompt[place] in self._control:
                return min(place + 1, len(prompt) - 1)
        return 0

    def propose(self, limit: int | None = None) -> DraftTree:
        """Return a tree of at most `limit` nodes that continues what was observed."""
        self.cost.look(self._context.length)
        self._alone = True
        return self._propose(self.cost, limit)

    def propose_beside(self, cost: DraftCost, limit: int | None = None) -> DraftTree:
        """Propose drafts for a batched forward, with costs of that batch size."""
        self._alone = False
        return self._propose(cost, limit)

    def cut(self, nodes: int) -> None:
        """Keep the first `nodes` of the tree: the others do not go through the forward."""
        self._nodes = nodes

    def _make_room(self, runs: int) -> None:
        learned, noise = self.acceptance, self._chosen.noise
        scoring = model = learned.model
        if noise.key:
            scoring = model._replace(score=model.score.copy(), none=model.none.copy())
        self._growth = make_growth(runs)
        self._kept = Kept(
            self._growth,
            scoring,
            noise.noise_weight,
            model,
            learned.prior,
            self._recent,
            learned.curve,
            learned.matches,
        )
        self._addresses = addresses(self._kept)

    def _propose(self, cost: DraftCost, limit: int | None) -> DraftTree:
        self._grown = False
        most = min(cost.most, NODES)
        budget = most if limit is None else min(most, limit)
        if budget <= 0 or not self._context.length:
            return DraftTree()
        with self._held():
            if len(self._runs) != self._growth.places.bounds.shape[1]:
                self._make_room(len(self._runs))
            known = databases(self._runs, self._context, self._successors)
            model, scoring, chosen = self.acceptance.model, self._kept.scoring, self._chosen
            if chosen.noise.key:
                np.add(model.score, chosen.score, out=scoring.score)
                np.add(model.none, chosen.none, out=scoring.none)
            prices = Prices(budget, cost.extra, cost.onward, cost.token_ms, self._lookup_ms)
            began = time.perf_counter()
            tail = self._context.tokens[max(self._from, self._context.length - TAIL) :]
            self._nodes, looked = grow_kept(self._addresses, chosen.noise.key, known, prices, tail)
        took = (time.perf_counter() - began) * 1e3 / looked
        self._lookup_ms += LOOKUP_RATE * (min(took, 2 * self._lookup_ms) - self._lookup_ms)
        self._grown = True
        kept, tree = self._nodes, self._growth.tree
        columns = (
            tree.slots[:kept],
            tree.lengths[:kept],
            self._owners[tree.runs[:kept]],
            tree.positions[:kept],
        )
        matches = tuple(map(Match, *(column.tolist() for column in columns)))
        sources = [SOURCES[slot] for slot in tree.credits[:kept].tolist()]
        if self._documents:
            sources = [
                DOCUMENTS if match.database >= 0 and self._sources[match.database].origin else source
                for match, source in zip(matches, sources, strict=True)
            ]
        return DraftTree(
            tuple(tree.tokens[:kept].tolist()),
            tuple(tree.parents[:kept].tolist()),
            tuple(sources),
            tuple(tree.paths[:kept].tolist()),
            matches=matches,
        )

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Hold the sources' locks, with `_runs` as they are now."""
        with ExitStack() as held:
            for source in self._sources:
                held.enter_context(source.index.lock)
            arrays = [source.index.arrays for source in self._sources]
            if self._arrays is None or any(map(operator.is_not, arrays, self._arrays)):
                self._arrays, self._runs = arrays, runs_of(self._sources)
                owners = [number for number, source in enumerate(self._sources) for _ in source.runs()]
                self._owners = np.array([*owners, -1])
            yield

    def observe(self, tokens: Sequence[int], top: NDArray[np.int32] | None = None) -> None:
        """Take the tokens that were committed, in order: drafts that were accepted, and one that the target added."""
        drafts = self._nodes if self._grown else 0
        self.learn(tokens, top)
        if self._alone:  # without drafts each step brought a token
            self.cost.note(1 + drafts, len(tokens), 1 if drafts else len(tokens))

    def learn(self, tokens: Sequence[int], top: NDArray[np.int32] | None = None) -> None:
        """Learn from tokens of a forward that did not verify what was proposed here: its costs are not noted."""
        if self._grown:
            new = np.array(tokens, np.int32)
            teach_kept(self._addresses, self._nodes, new, RATE, FORGET, RECENT_RATE)
        if self._successors is not None and top is not None:
            before = self._context.tokens[-2:].tolist()
            path = [*[-1] * (2 - len(before)), *before, *tokens[:-1]]
            self._successors.update(path, top)
        self._grown = False
        self._context.append(tokens)

    def follow(self, length: int, tokens: Sequence[int]) -> None:
        """Keep the first `length` tokens of what was observed, prompt included, then append these. Learns nothing."""
        self._grown = False
        self._context.rollback(length)
        self._context.append(tokens)


def in_order(sources: Iterable[Source]) -> list[Source]:
    """Sort sources as a drafter numbers them (draft_tree.Match.database)."""
    return sorted(sources, key=lambda source: source.slot)


def runs_of(sources: Iterable[Source]) -> NDArray[np.int64]:
    """Return rows of Databases.runs; while they are used, hold the sources' locks."""
    rows = [row for source in sources for row in source.runs()]
    return np.array(rows, np.int64).reshape(len(rows), 5)


def databases(runs: NDArray[np.int64], context: Context, successors: Successors | None) -> Databases:
    """Return the databases as they are now: a table may have grown."""
    tables = _NO_SUCCESSORS
    if successors is not None:
        tables = (successors.single, successors.pair_keys, successors.pairs)
    return Databases(runs, context.tokens, context.previous, context.newest, *tables)
