"""Draft by a layer for multi-token prediction (MTP), which reads the target's hidden states."""

from __future__ import annotations

import logging
import time
import weakref
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Generator, Sequence
from itertools import accumulate, chain
from math import exp, isfinite
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hierchat.config import GenerationSettings
from hierchat.drafting.draft_cost import DraftCost
from hierchat.drafting.draft_tree import DraftTree
from hierchat.drafting.growing import gumbel
from hierchat.drafting.proposer import PROMPT_STATES, Blend, DraftCoroutine, Payoffs, Proposer, drafted, logit
from hierchat.engine.cpu.forward import Multiplier
from hierchat.engine.cpu.runner import CpuRunner
from hierchat.engine.runner import CachedSequence, Runner, Segment, TooManySequences
from hierchat.engine.sampling.sampler import Counts, adjusted, processed
from hierchat.engine.verification import Rows
from hierchat.language import later
from hierchat.models.formats.block_model import BlockModel
from hierchat.models.formats.blocks import Embedding
from hierchat.models.progress import BrokenFileError

logger = logging.getLogger(__name__)

Floats = NDArray[np.float32]

SOURCE = "head"
CHILDREN = 4
"""Maximum number of tokens proposed after one place."""
WIDEST_LEVEL = 4
"""Maximum number of nodes expanded at one depth."""
DEEPEST = 8
CANDIDATES = 64
"""Number of likeliest tokens at a place that get noise if the reply is sampled."""
ROWS_AT_ONCE = 8
"""Cells new to the cache that go into a forward with logits; more are read before."""
NEW = 0.5
"""Assumed share of the head's accepted tokens that the databases would miss."""
RATE = 0.02
"""Weight of the latest place in the average of how often the head is right."""


class HeadForward(NamedTuple):
    """Ask a head for the rows of some cells of one reply: several replies go through one forward of the head."""

    head: DraftHead
    sequence: CachedSequence
    tokens: Sequence[int]
    """The token of each cell: first those of `inputs`, then the new ones."""
    parents: Sequence[int]
    """The cell that each cell follows, -1 what is committed."""
    states: Floats
    """[new cells, hidden]: the target's state before each new cell's token, or the head's own."""
    last: int
    """Cells at the end whose logits are read; 0: none are."""
    inputs: Floats | None = None
    """[cells, ...]: what the layer read of cells that were computed before, but not committed."""


class HeadRows(NamedTuple):
    """Hold what a forward of a head brought one reply."""

    rows: Rows
    """Valid until the next forward."""
    inputs: Floats | None
    """[cells, ...]: what the layer read of them."""
    ms: float
    """The reply's share of its milliseconds."""


class DraftHead(ABC):
    """Drafts by one layer that `runner` computes, for as many replies as it has sequences."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self._free: list[CachedSequence] = []
        self.right = [0.5] * DEEPEST
        """How often its first choice is right at each depth, where all before it were."""
        self.slope, self.bias = 1.0, 0.0
        """What turns the log odds of a token here into those of the target choosing it: slope * logit + bias."""
        self.blend, self.payoffs = Blend(), Payoffs()
        self.level_ms, self.levels = 0.0, 0
        """Milliseconds of a forward of its own on average, and how many there were."""
        self.broken = False
        """Whether it computed no numbers: then it drafts nothing."""

    def open(self) -> CachedSequence:
        """Return an empty sequence; give it back by `close`. Raises TooManySequences."""
        sequence = self._free.pop() if self._free else self.runner.open()
        sequence.rollback(0)
        return sequence

    def close(self, sequence: CachedSequence) -> None:
        """Take a sequence back, to be emptied by who gets it next."""
        self._free.append(sequence)

    def wipe(self) -> None:
        """Overwrite what sequences that no reply uses hold. No forward may be under way."""
        for sequence in self._free:
            sequence.rollback(0)
            sequence.wipe()

    def warm_up(self, states: int) -> None:
        """Compute twice after a state of zeros, since first forwards are slow. Raises BrokenFileError for a layer that
        computes no numbers."""
        sequence, nothing = self.open(), np.zeros((1, states), np.float32)
        for _ in range(2):
            (found,) = self.forward([HeadForward(self, sequence, [1], [-1], nothing, 1)])
        self.close(sequence)
        if not np.isfinite(found.rows[0]).all():
            raise BrokenFileError(later("it computes no numbers"))

    @abstractmethod
    def joined(self, tokens: Sequence[int], states: Floats) -> Floats:
        """Return what the layer reads of tokens and the states before them [tokens, hidden]: [tokens, hidden]."""

    def forward(self, wanted: Sequence[HeadForward]) -> list[HeadRows]:
        """Compute the cells of the first replies, at least one, for which one forward has rows."""
        began = time.perf_counter()
        rows_to = list(accumulate(len(one.tokens) for one in wanted))
        wanted = wanted[: max(1, bisect_right(rows_to, self.runner.chunk))]
        new = [one.tokens[len(one.tokens) - len(one.states) :] for one in wanted]
        joined = self.joined(list(chain(*new)), np.concatenate([one.states for one in wanted]))
        segments, end = list[Segment](), 0
        for one in wanted:
            begin, end = end, end + len(one.states)
            inputs = joined[begin:end]
            if one.inputs is not None:
                inputs = np.concatenate([one.inputs, inputs])
            segments.append(Segment(one.sequence, one.tokens, one.parents, one.last > 0, embeddings=inputs))
        rows = self.runner.forward(segments)
        ms = (time.perf_counter() - began) * 1e3 / len(wanted)
        return [HeadRows(found, one.embeddings, ms) for found, one in zip(rows, segments, strict=True)]

    def chance(self, probability: float) -> float:
        """Estimate how often the target chooses a token that has this probability here."""
        return 1.0 / (1.0 + exp(-self.bias - self.slope * logit(probability)))

    def learn(self, probability: float, right: bool) -> None:
        """Learn from a token that had this probability here, whether the target chose it."""
        error = RATE * (float(right) - self.chance(probability))
        self.bias += error
        self.slope = min(max(self.slope + error * logit(probability) / 4.0, 0.2), 2.0)


def normed(x: Floats, weight: Floats, epsilon: np.float32) -> Floats:
    """Return RMSNorm of each row."""
    root = np.sqrt(np.einsum("ij,ij->i", x, x) / np.float32(x.shape[1]) + epsilon)
    return x / root[:, None] * weight


class MtpLayerHead(DraftHead):
    """Draft by the layer for multi-token prediction that a model in blocks brings, on the CPU engine."""

    def __init__(self, target: BlockModel, context_length: int, sequences: int, key: str | None) -> None:
        """Take the target's weights. `key`: of the self-test. Raises BrokenFileError for a layer without numbers."""
        layer = target.mtp_model()
        super().__init__(CpuRunner(layer, context_length=context_length, sequences=sequences, key=key))
        self._embedding, self._joining = Embedding(layer.embedding), target.mtp["eh_proj"]
        self._norms = [np.array(target.vectors[f"mtp.{name}"]) for name in ("enorm", "hnorm")]
        self._epsilon = np.float32(layer.config["rms_norm_eps"])
        self._multiply = Multiplier(self.runner.team)  # type: ignore[attr-defined]
        self.warm_up(layer.config["hidden_size"])

    def joined(self, tokens: Sequence[int], states: Floats) -> Floats:
        parts = self._embedding(tokens), states
        both = [normed(x, weight, self._epsilon) for x, weight in zip(parts, self._norms, strict=True)]
        return self._multiply(self._joining, np.concatenate(both, axis=1))


class MtpModuleHead(DraftHead):
    """Draft by the layer for multi-token prediction of a transformers model, on a GPU (engine/cuda/mtp_layer.py)."""

    def __init__(self, layer: Any, context_length: int, sequences: int, key: str | None) -> None:
        """Take the layer as a module. `key`: of the self-test. Raises BrokenFileError for a layer without numbers."""
        from hierchat.engine.cuda.cuda_runner import CudaRunner

        super().__init__(CudaRunner(layer, context_length=context_length, sequences=sequences, key=key))
        self.warm_up(layer.config.hidden_size)

    def joined(self, tokens: Sequence[int], states: Floats) -> Floats:
        return states  # the module joins them


class HeadDrafter(Proposer):
    """Proposes trees for one reply by a DraftHead: several first tokens, and chains after them. `cost`: prices of
    rows. A cell of the head's cache holds a token and the target's state before it; cells of a tree have the head's
    states."""

    reads_hidden = True
    shares_forwards = True

    def __init__(self, head: DraftHead, cost: DraftCost, settings: GenerationSettings | None = None) -> None:
        self._head, self._cost = head, cost
        self._settings = (settings or GenerationSettings()).model_copy(update={"logit_bias": {}})
        self._sequence: CachedSequence | None = None
        self._text: list[int] = []
        self._start = 0
        """Position of the state that the first cell reads; a cell for each token behind it."""
        self._states: list[Floats] = []
        """States of the tokens from the last cell's on, which no cell has read yet."""
        self._counts: Counts | None = None
        """Count what was said, where the settings penalise that."""
        self._tree = DraftTree()
        self.blend, self.payoffs = head.blend, head.payoffs
        self._likely: dict[int, dict[int, float]] = {}
        """By node of what was grown, -1 at the root: the likeliest tokens behind it in order, with probabilities."""
        self._order = [-1]
        """Node of what was grown of each node of the tree; -1 at the end, where -1 finds it."""

    def begin(self, prompt: Sequence[int]) -> None:
        """Begin a new reply after `prompt`, of which states may have been seen already."""
        self._text = list(prompt)
        self._counts = Counts(prompt) if self._settings.penalises else None
        self._tree = DraftTree()
        if self._end != len(prompt) - 1:  # states of another text
            self._restart(len(prompt) - 1)

    def see(self, hidden: Floats, position: int) -> None:
        """Keep the states of the text's tokens from `position` on."""
        if position != self._end:
            self._restart(position)
        self._states += list(hidden.copy())
        if len(self._states) > 2 * PROMPT_STATES:  # long not asked: what stands before is in the later ones
            kept, end = self._states[-PROMPT_STATES:], self._end
            self._restart(end - PROMPT_STATES)
            self._states = kept

    @property
    def _end(self) -> int:
        return self._start + self._cells + len(self._states)

    @property
    def _cells(self) -> int:
        return len(self._sequence.tokens) if self._sequence else 0

    def _restart(self, position: int) -> None:
        self._start, self._states = position, []
        if self._sequence:
            self._sequence.rollback(0)

    def observe(self, tokens: Sequence[int], top: NDArray[np.int32] | None = None) -> None:
        """Take the tokens that were committed, and learn how good the drafts were."""
        if self._likely:
            self._learn(tokens)
        self._likely = {}  # it may not be asked in the next step
        self._text += tokens
        if self._counts:
            for token in tokens:
                self._counts.add(token)

    def propose(self, limit: int | None = None) -> DraftTree:
        """Return a tree of at most `limit` nodes; empty where no states were brought, or it would not pay."""
        return drafted([self.drafting(self._cost, limit)])[0]

    def drafting(self, cost: DraftCost, limit: int | None = None) -> DraftCoroutine:
        """Propose as `propose` does, at the prices of a batch; each forward of the head is left to the caller."""
        self._tree, self._likely, self._order = DraftTree(), {}, [-1]
        most = cost.most if limit is None else min(limit, cost.most)
        if most <= 0 or self._head.broken or not (rows := (yield from self._catch_up())):
            return self._tree
        assert self._sequence
        cells, root = len(self._sequence.tokens), len(rows) - 1
        grown = _Growth(most)
        self._branch(grown, -1, rows, root)
        while grown.depth < DEEPEST and not self._head.broken:
            chosen = self._worth_a_forward(grown, cost)
            if not chosen:
                break
            yield from self._look_behind(grown, chosen)
        self._sequence.rollback(cells)
        self._order, self._tree = grown.tree()
        return self._tree

    def probability(self, node: int, token: int) -> float | None:
        """Return the probability of a token after a node of the latest tree, -1 for the root; None if unknown."""
        likely = self._likely.get(self._order[node])
        return None if likely is None else likely.get(token, 0.0)

    def _catch_up(self) -> Generator[HeadForward, HeadRows, Rows | None]:
        """Add cells for all tokens whose states arrived; return the rows of the last of them, or None."""
        head = self._head
        if not self._states:
            return None
        if self._sequence is None:
            try:
                self._sequence = head.open()
            except TooManySequences:  # of replies that have just ended
                return None
            weakref.finalize(self, head.close, self._sequence)
        first = self._start + self._cells + 1
        tokens = self._text[first : first + len(self._states)]
        if not tokens:
            return None
        states = np.stack(self._states[: len(tokens)])
        del self._states[: len(tokens)]
        before = len(tokens) - 1 if len(tokens) > ROWS_AT_ONCE else 0
        for begin, end, last in ((0, before, 0), (before, len(tokens), 1)):
            if count := end - begin:
                path = range(-1, count - 1)
                found = yield HeadForward(
                    head, self._sequence, tokens[begin:end], path, states[begin:end], last
                )
                self._sequence.commit(range(count))
        return found.rows

    def _branch(self, grown: _Growth, node: int, rows: Rows, cell: int) -> None:
        """Add the likeliest tokens after a node, -1 for the root. Row `cell` of `rows` has the logits."""
        head = self._head
        places, logits, whole = rows.candidates(cell, CANDIDATES)
        if self._counts:
            logits = adjusted(rows[cell], self._settings, self._counts)[places].astype(np.float32)
        row = logits.astype(np.float64)
        if not (np.isfinite(row).all() and isfinite(whole)):
            head.broken = True
            logger.warning("The draft head computed no numbers, and drafts no more.")
            return
        if self._settings.temperature:
            key = gumbel.stream(self._settings.seed, len(self._text) + grown.depth)
            row = processed(row, self._settings) + gumbel.gumbel(key, places.astype(np.int64))
            rest = 0.0
        else:
            rest = float(np.exp(whole - row.max()) - np.exp(row - row.max()).sum())
        weights = np.exp(row - row.max())
        weights /= weights.sum() + max(rest, 0.0)
        best = np.argsort(-weights, kind="stable")
        self._likely[node] = dict(zip(places[best].tolist(), weights[best].tolist(), strict=True))
        grown.states[node] = rows.hidden([cell])
        for token, probability in list(self._likely[node].items())[:CHILDREN]:
            grown.add(node, token, head.chance(probability))

    def _worth_a_forward(self, grown: _Growth, cost: DraftCost) -> list[int]:
        """Return the nodes of the deepest level that are worth expanding, or an empty list."""
        right, worth = self._head.right[grown.depth], cost.token_ms
        level = sorted(grown.level, key=lambda node: -grown.chances[node])[:WIDEST_LEVEL]
        level = [node for node in level if grown.chances[node] * right * worth > cost.onward[0]]
        gain = sum(grown.chances[node] for node in level) * right * worth
        return level if cost.free or gain * NEW > self._head.level_ms else []

    def _look_behind(self, grown: _Growth, chosen: Sequence[int]) -> Generator[HeadForward, HeadRows, None]:
        assert self._sequence
        before = list[Floats]()
        for node in chosen:
            parent = grown.parents[node]
            grown.cells[node] = len(grown.cell_tokens)
            grown.cell_parents.append(grown.cells.get(parent, -1))
            grown.cell_tokens.append(grown.tokens[node])
            state = grown.states[parent]
            assert state is not None
            before.append(state)
        rows, grown.joined, ms = yield HeadForward(
            self._head, self._sequence, grown.cell_tokens, grown.cell_parents, np.concatenate(before),
            len(chosen), grown.joined,
        )  # fmt: skip
        began = time.perf_counter()
        grown.level, grown.depth = [], grown.depth + 1
        for cell, node in enumerate(chosen, len(rows) - len(chosen)):
            self._branch(grown, node, rows, cell)
        if len(grown.cell_tokens) == 1:  # a chain so far: what follows need not compute it again
            self._sequence.commit([0])
            grown.forget_cells()
        took, head = ms + (time.perf_counter() - began) * 1e3, self._head
        head.levels += 1
        if head.levels > 4:  # one that was disturbed is not to keep it from being asked
            took = min(took, 3.0 * head.level_ms)
        head.level_ms += (took - head.level_ms) * max(0.05, 1.0 / head.levels)

    def _learn(self, tokens: Sequence[int]) -> None:
        node, head = -1, self._head
        links = self._tree.links()
        for depth, token in enumerate(tokens[:DEEPEST]):
            likely = list(self._likely.get(self._order[node], {}).items())
            if not likely:
                return
            for one, probability in likely[:2]:
                head.learn(probability, one == token)
            head.right[depth] += RATE * (float(likely[0][0] == token) - head.right[depth])
            if (node := links.get((node, token), -2)) == -2:
                return


class _Growth:
    """Hold a head's tree while it grows: nodes, and cells of those that were looked behind."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.chances: list[float] = []
        """Estimated probability that the node and all above it are accepted."""
        self.level: list[int] = []
        """Nodes of the deepest level."""
        self.depth = 0
        """Drafts that stand before what follows the nodes that are looked behind."""
        self.states: dict[int, Floats | None] = {}
        self.forget_cells()

    def forget_cells(self) -> None:
        """Begin with no cells: those that were computed are committed."""
        self.cells: dict[int, int] = {}
        self.cell_tokens: list[int] = []
        self.cell_parents: list[int] = []
        self.joined: Floats | None = None

    def add(self, parent: int, token: int, chance: float) -> None:
        """Add a node that follows another with this chance."""
        self.level.append(len(self.tokens))
        self.tokens.append(token)
        self.parents.append(parent)
        self.chances.append(chance * (self.chances[parent] if parent >= 0 else 1.0))

    def tree(self) -> tuple[list[int], DraftTree]:
        """Return the likeliest nodes with a -1 behind them, and their tree."""
        order = sorted(range(len(self.tokens)), key=lambda node: -self.chances[node])[: self._most]
        tree = DraftTree(
            tuple(self.tokens),
            tuple(self.parents),
            (SOURCE,) * len(self.tokens),
            tuple(self.chances),
        )
        return [*order, -1], tree.select(order)
