"""The target on the CPU engine."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from hierchat.engine.cpu.attention import lay_out
from hierchat.engine.cpu.dot import ROWS
from hierchat.engine.cpu.forward import COUNTERS, PARTS, forward
from hierchat.engine.cpu.memory import (
    CHUNK,
    KeyValues,
    Shape,
    Weights,
    make_key_values,
    make_work,
)
from hierchat.engine.cpu.phases import COUNTER
from hierchat.engine.cpu.team import Team
from hierchat.engine.errors import clear_memory_errors
from hierchat.engine.selftest import cache_key, prove
from hierchat.engine.target import Rows
from hierchat.jit import INSTRUCTIONS
from hierchat.models.block_model import MATRICES, BlockModel, heads_of
from hierchat.models.blocks import Blocks
from hierchat.models.rope import tables

MOST_ROWS = 128
"""Positions of the widest forward."""
_NO_CYCLES = np.zeros(0, np.int64)
ATTENDED = 32 * 2**20
"""Floats, at most, for the attention of one forward; a chunk of a prompt is cut to fit where the context is long."""


class BlockTarget:
    """A BlockModel behind the Target contract. Rows never mix: exact for every width, tree and chunking."""

    def __init__(
        self,
        model: BlockModel,
        *,
        context_length: int,
        threads: int | None = None,
        backend: str = "blocks",
        key: str | None = None,
    ) -> None:
        config = model.config
        heads, kv_heads, size = heads_of(config)
        self.model = model
        self.backend = backend
        self.vocabulary: int = model.head.shape[0]
        self.context_length = context_length
        self.shape = Shape(
            layers=config["num_hidden_layers"],
            hidden=config["hidden_size"],
            heads=heads,
            kv_heads=kv_heads,
            head_dim=size,
            inner=config["intermediate_size"],
            vocabulary=self.vocabulary,
            epsilon=config["rms_norm_eps"],
        )
        self._positions = context_length + MOST_ROWS
        self.weights = _weights(model, self._positions)
        self.team = Team(threads)
        weakref.finalize(self, self.team.close)
        self._slots = make_key_values(self.shape, self._positions)
        self._work = make_work(self.shape, MOST_ROWS, self.team.threads)
        self._identity = np.arange(CHUNK, dtype=np.int32)
        self._tokens: list[int] = []
        self._block: list[int] = []
        self._cycles = _NO_CYCLES
        name = f"{self.backend} {INSTRUCTIONS}"
        self.exact = prove(self, key and cache_key(key, name), border=CHUNK)

    @property
    def tokens(self) -> list[int]:
        return self._tokens

    def rollback(self, length: int) -> None:
        del self._tokens[length:]

    def read(self, tokens: Sequence[int]) -> None:
        rows = self._rows_that_fit(len(tokens))
        for begin in range(0, len(tokens), rows):
            part = tokens[begin : begin + rows]
            self._run(part, range(-1, len(part) - 1), logits=False)
            self._tokens.extend(part)

    def forward(self, tokens: Sequence[int], parents: Sequence[int], *, padded: bool = True) -> Rows:
        return self._run(tokens, parents, logits=True)

    def commit(self, nodes: Sequence[int]) -> None:
        start = len(self._tokens)
        for place, node in enumerate(nodes):
            if node != place:
                _move(self._slots, start + node, start + place)
        self._tokens.extend(self._block[node] for node in nodes)

    def adopt(self, other: BlockTarget, tokens: Sequence[int]) -> None:
        """Commit tokens without a forward, with the keys and values that another target of the same shape holds for
        them. Those are not this model's own: only where it drafts for the other, of which it is a rounded copy.
        """
        start, end = len(self._tokens), len(self._tokens) + len(tokens)
        if other.shape != self.shape or other.tokens[:end] != [*self._tokens, *tokens]:
            raise ValueError("Keys and values of another text, or of a model of another shape.")
        _copy(other._slots, self._slots, start, end)
        self._tokens.extend(tokens)

    @contextmanager
    def profile(self) -> Iterator[dict[str, float]]:
        """While it lasts, forwards are timed; then the dictionary holds each part's share of their time."""
        self._cycles, found = np.zeros(len(PARTS), np.int64), dict[str, float]()
        try:
            yield found
        finally:
            found |= dict(zip(PARTS, (self._cycles / max(self._cycles.sum(), 1)).tolist(), strict=True))
            self._cycles = _NO_CYCLES

    def _rows_that_fit(self, wanted: int) -> int:
        per_row = self.shape.heads * (self.shape.head_dim + 2)
        chunks = (len(self._tokens) + wanted) // CHUNK + 1
        return max(1, min(MOST_ROWS, ATTENDED // (per_row * chunks)))

    @clear_memory_errors()
    def _run(self, tokens: Sequence[int], parents: Sequence[int], *, logits: bool) -> Rows:
        """Logits [nodes, vocabulary], or [0, vocabulary]: the prompt's own logits are never needed."""
        rows, start = len(tokens), len(self._tokens)
        if not 0 < rows <= MOST_ROWS or start + rows > self._positions:
            raise ValueError(
                f"A block of {rows} positions behind {start} does not fit: at most {MOST_ROWS} at a time, "
                f"{self._positions} in all."
            )
        if min(tokens) < 0 or max(tokens) >= self.vocabulary:
            raise ValueError(f"A token is none of the model's {self.vocabulary}.")
        self._block = list(tokens)
        work = self._with_attended(rows, start)
        work.x[:rows] = self.model.embedding.floats(np.asarray(tokens, np.int64))
        lay_out(np.asarray(parents, np.int64), start, work.positions, work.order)
        padded = -(-rows // ROWS) * ROWS if rows > 1 else 1
        out = np.empty((padded if logits else 0, self.vocabulary), np.float32)
        starts = np.array([start], np.int64)
        counters = np.zeros((self.shape.layers * COUNTERS + 2) * COUNTER, np.int64)

        def job(rank: int) -> None:
            forward(
                self.shape,
                self.weights,
                self._slots,
                work,
                self._identity,
                starts,
                rows,
                out,
                counters,
                self.team.threads,
                rank,
                self._cycles if rank == 0 else _NO_CYCLES,
            )

        self.team.run(job)
        return out[:rows]

    def _with_attended(self, rows: int, start: int) -> Any:
        needed = rows * self.shape.heads * ((start + rows - 1) // CHUNK + 1) * (self.shape.head_dim + 2)
        if self._work.attended.size < needed:
            self._work = self._work._replace(attended=np.zeros(2 * needed, np.float32))
        return self._work


def _move(slots: KeyValues, source: int, goal: int) -> None:
    """A slot's keys and values to an earlier slot, in every layer."""
    (c, t), (d, u) = divmod(source, CHUNK), divmod(goal, CHUNK)
    slots.keys[:, :, d, :, u] = slots.keys[:, :, c, :, t]
    slots.key_scales[:, :, d, u] = slots.key_scales[:, :, c, t]
    slots.values[:, :, d, u] = slots.values[:, :, c, t]
    slots.value_scales[:, :, d, u] = slots.value_scales[:, :, c, t]


def _copy(source: KeyValues, goal: KeyValues, start: int, end: int) -> None:
    """Keys and values of slots start .. end - 1, in every layer."""
    for chunk in range(start // CHUNK, -(-end // CHUNK)):
        first, last = max(start - chunk * CHUNK, 0), min(end - chunk * CHUNK, CHUNK)
        goal.keys[:, :, chunk, :, first:last] = source.keys[:, :, chunk, :, first:last]
        goal.key_scales[:, :, chunk, first:last] = source.key_scales[:, :, chunk, first:last]
        goal.values[:, :, chunk, first:last] = source.values[:, :, chunk, first:last]
        goal.value_scales[:, :, chunk, first:last] = source.value_scales[:, :, chunk, first:last]


def _weights(model: BlockModel, positions: int) -> Weights:
    none = np.zeros((0, 0), np.float32)
    vectors = model.vectors
    matrices = np.zeros((len(model.layers) + 1, len(MATRICES), 5), np.int64)
    for number, layer in enumerate(model.layers):
        for place, name in enumerate(MATRICES):
            matrices[number, place] = _record(layer[name])
    matrices[-1, 0] = _record(model.head)
    cosines, sines = tables(model.config, positions, vectors.get("rope_factors"))
    return Weights(
        matrices=matrices,
        attention_norms=vectors["attention_norms"],
        inner_norms=vectors["inner_norms"],
        query_norms=vectors.get("query_norms", none),
        key_norms=vectors.get("key_norms", none),
        biases=vectors.get("biases", np.zeros((0, 0, 0), np.float32)),
        last_norm=vectors["last_norm"],
        cosines=cosines,
        sines=sines,
    )


def _record(matrix: Blocks) -> list[int]:
    """A matrix as the kernels find it; the model keeps the arrays alive."""
    rows, columns = matrix.shape
    parts = (matrix.weights, matrix.scales)
    assert all(part.flags.c_contiguous for part in parts)
    return [int(matrix.kind), *(part.ctypes.data for part in parts), rows, columns // 32]
