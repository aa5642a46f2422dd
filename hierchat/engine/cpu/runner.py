"""The runner on the CPU engine."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import sqrt
from typing import Any

import numpy as np

from hierchat.engine.cpu.attention import lay_out
from hierchat.engine.cpu.forward import COUNTERS, COUNTERS_BESIDE, LAST_COUNTERS, PARTS, Team, forward
from hierchat.engine.cpu.memory import (
    CHUNK,
    FIELDS,
    FORM,
    INT8,
    PLACES,
    Beside,
    Inputs,
    K,
    Q,
    Shape,
    Texts,
    Weights,
    make_key_values,
    make_work,
    padded_rows,
)
from hierchat.engine.cpu.phases import COUNTER
from hierchat.engine.cpu.rows import ROWS, record
from hierchat.engine.cpu.sequence import CpuSequence, Pages
from hierchat.engine.engine import clear_memory_errors
from hierchat.engine.runner import CachedSequence, Segment, TooManySequences
from hierchat.engine.selftest import cache_key, prove
from hierchat.engine.verification import ArrayRows, Rows
from hierchat.jit import INSTRUCTIONS
from hierchat.models.architectures.families import ACTIVATIONS, ARCHITECTURES, Architecture
from hierchat.models.architectures.model_config import (
    expert_width,
    experts_of,
    has_mlp_beside_experts,
    layer_heads,
    query_scales,
    shared_by_active,
    sources,
    windows,
)
from hierchat.models.architectures.rope import rope_kinds, rope_tables, rotary_layouts
from hierchat.models.catalogue import Activations
from hierchat.models.device_memory import free_memory
from hierchat.models.formats.block_model import BlockModel

MOST_ROWS = 128
"""Positions of the widest forward."""
_NO_CYCLES = np.zeros(0, np.int64)
SHARE = 0.5
"""Of the free memory, at most, for slots beyond those of one sequence."""
ATTENDED = 32 * 2**20
"""Floats, at most, for the attention of one forward; a chunk of a prompt is cut to fit where the context is long."""


class CpuRunner:
    """A BlockModel behind the Runner contract. Rows never mix: exact for every width, tree and chunking, and whatever
    other sequences go through the same forward.

    Slots for up to `sequences` texts, as many as SHARE of the free memory holds: the system hands it out only for those
    that are written.
    """

    def __init__(
        self,
        model: BlockModel,
        *,
        context_length: int,
        threads: int | None = None,
        backend: str = "blocks",
        key: str | None = None,
        sequences: int = 1,
        activations: Activations = "int16",
    ) -> None:
        """`activations`: what products read; types of weights that gain nothing by int8 keep int16, and float weights
        float32."""
        config = model.config
        architecture = ARCHITECTURES[config["model_type"]]
        self.model = model
        self.backend = backend
        self.vocabulary: int = model.head.shape[0]
        self.context_length = context_length
        self.shapes, kinds = shapes_of(model, architecture)
        self.shape = self.shapes[0]
        louder = (
            sqrt(self.shape.hidden) if architecture.scaled_embedding else config.get("embedding_multiplier")
        )
        self._embedding_scale = np.float32(louder or 1.0)
        self.positions = context_length + MOST_ROWS
        """Slots of a sequence: a block may stand behind a full context."""
        self.weights = _weights(model, architecture, kinds, self.positions, context_length, activations)
        eight = bool((self.weights.matrices[..., FORM] == INT8).any())
        self.activations: Activations = "int8" if eight else "int16"
        self.team = Team(threads)
        weakref.finalize(self, self.team.close)
        self._chunks = -(-self.positions // CHUNK)
        """Pages of a full sequence."""
        sequences = min(sequences, max(1, int(SHARE * free_memory("cpu") / self._slot_bytes)))
        self.slots = tuple(make_key_values(shape, sequences * self._chunks) for shape in self.shapes)
        self.pages = Pages(sequences * self._chunks)
        self.most_sequences = sequences
        self._opened = 0
        self._work = make_work(self.shapes, MOST_ROWS, self.team.threads)
        self._inputs = _inputs(model, self.shape)
        self._beside = _beside(model, self.shape)
        self._identity = np.arange(CHUNK, dtype=np.int32)
        self._cycles = _NO_CYCLES
        self.exact = self.shares_forward = self.drafts = True
        name = f"{self.backend} {INSTRUCTIONS} {self.activations}"
        sequence = self.open()
        self.exact = prove(sequence, key and cache_key(key, name), border=CHUNK)
        sequence.close()

    @property
    def _slot_bytes(self) -> int:
        """Of the slots of one sequence: keys and values of 2 bytes, and their scales."""
        one = sum(shape.slot_layers * shape.kv_heads * (4 * shape.head_dim + 8) for shape in self.shapes)
        return self._chunks * CHUNK * one

    @property
    def _attended(self) -> int:
        """Floats of the attention of one row over one chunk, at most."""
        return max(shape.heads * (shape.head_dim + 2) for shape in self.shapes)

    def open(self) -> CpuSequence:
        if self._opened == self.most_sequences:
            raise TooManySequences(f"All slots are taken: the runner holds {self.most_sequences} sequences.")
        self._opened += 1
        return CpuSequence(self)

    def closed(self) -> None:
        """A sequence has given its pages back: another one may be opened."""
        self._opened -= 1

    def forward(self, blocks: Sequence[Segment], *, padded: bool = True) -> list[Rows]:
        logits = self.run(blocks)
        hidden = self._work.input.plain[: len(logits) * self.shape.hidden].reshape(len(logits), -1)
        ends = np.cumsum([len(block.tokens) if block.logits else 0 for block in blocks]).tolist()
        return [
            ArrayRows(logits[begin:end], hidden[begin:end])
            for begin, end in zip([0, *ends], ends, strict=False)
        ]

    @contextmanager
    def profile(self) -> Iterator[dict[str, float]]:
        """While it lasts, forwards are timed; then the dictionary holds each part's share of their time."""
        self._cycles, found = np.zeros(len(PARTS), np.int64), dict[str, float]()
        try:
            yield found
        finally:
            found |= dict(zip(PARTS, (self._cycles / max(self._cycles.sum(), 1)).tolist(), strict=True))
            self._cycles = _NO_CYCLES

    def rows_that_fit(self, start: int, wanted: int) -> int:
        """Positions of a prompt that can be read in one forward behind `start`."""
        chunks = (start + wanted) // CHUNK + 1
        return max(1, min(MOST_ROWS, ATTENDED // (self._attended * chunks)))

    @clear_memory_errors()
    def run(self, blocks: Sequence[Segment]) -> Any:
        """Logits [nodes of all blocks that want them, vocabulary]; nobody needs a prompt's own."""
        blocks = sorted(blocks, key=lambda block: not block.logits)
        told = sum(len(block.tokens) for block in blocks if block.logits)
        sequences = [_own(block.sequence) for block in blocks]
        tokens = [token for block in blocks for token in block.tokens]
        rows = len(tokens)
        if not 0 < rows <= MOST_ROWS:
            raise ValueError(f"A forward over {rows} positions: at most {MOST_ROWS} at a time.")
        if min(tokens) < 0 or max(tokens) >= self.vocabulary:
            raise ValueError(f"A token is none of the model's {self.vocabulary}.")
        for sequence, block in zip(sequences, blocks, strict=True):
            start, width = len(sequence.tokens), len(block.tokens)
            if not width or start + width > self.positions:
                raise ValueError(
                    f"A block of {width} positions behind {start} does not fit: {self.positions} in all."
                )
            sequence.block = block.tokens
            sequence.make_room(start, start + width)
        needed = max(len(sequence.pages) for sequence in sequences)
        texts = Texts(
            np.array([len(sequence.tokens) for sequence in sequences], np.int64),
            np.cumsum([0, *(len(block.tokens) for block in blocks)]),
            np.zeros((len(sequences), needed), np.int64),
        )
        work = self._work
        strides = [shape.slot_layers * shape.kv_heads * CHUNK for shape in self.shapes]
        for text, (sequence, block) in enumerate(zip(sequences, blocks, strict=True)):
            mine = slice(texts.rows[text], texts.rows[text + 1])
            work.texts[mine] = text
            pages = texts.pages[text]
            pages[: len(sequence.pages)] = sequence.pages
            parents, start = np.asarray(block.parents, np.int64), len(sequence.tokens)
            for stride, places in zip(strides, work.places, strict=True):
                lay_out(parents, start, pages, stride, work.positions[mine], work.order[mine], places[mine])
        work = self._with_attended(rows * needed * self._attended)
        embedded = self.model.embedding.floats(np.asarray(tokens, np.int64))
        np.multiply(embedded, self._embedding_scale, out=work.x[:rows])
        if self._inputs:
            self._look_up_inputs(tokens)
        padded = -(-told // ROWS) * ROWS if told > 1 else told
        out = np.empty((padded, self.vocabulary), np.float32)
        chosen = None
        if self.shape.experts:
            chosen = np.zeros((self.shape.layers, rows, self.shape.active), np.int64)
        own = COUNTERS_BESIDE if self._beside else COUNTERS
        counters = np.zeros((self.shape.layers * own + LAST_COUNTERS) * COUNTER, np.int64)

        def job(rank: int) -> None:
            forward(
                self.shapes,
                self.weights,
                self.slots,
                work,
                self._identity,
                texts,
                told,
                chosen,
                self._beside,
                self._inputs,
                out,
                counters,
                self.team.threads,
                rank,
                self._cycles if rank == 0 else _NO_CYCLES,
            )

        self.team.run(job)
        return out[:told]

    def _look_up_inputs(self, tokens: Sequence[int]) -> None:
        """The tokens' part of the inputs of all layers."""
        assert self._inputs
        assert self.model.layer_embedding
        own = self.model.layer_embedding.floats(np.asarray(tokens, np.int64))
        inputs = self._inputs.layers[: len(tokens)]
        np.multiply(own.reshape(inputs.shape), np.float32(sqrt(inputs.shape[2] / 2)), out=inputs)

    def _with_attended(self, needed: int) -> Any:
        if self._work.attended.size < needed:
            self._work = self._work._replace(attended=np.zeros(2 * needed, np.float32))
        return self._work


def _own(sequence: CachedSequence) -> CpuSequence:
    assert isinstance(sequence, CpuSequence)
    return sequence


def _weights(
    model: BlockModel,
    architecture: Architecture,
    kinds: Sequence[int],
    positions: int,
    context_length: int,
    activations: Activations,
) -> Weights:
    none = np.zeros((0, 0), np.float32)
    no_vectors = np.zeros((len(model.layers), 0), np.float32)
    no_biases = np.zeros((len(model.layers), 0, 0), np.float32)
    # Of one kind, whether they come from a file that is mapped or not: for each kind all would be compiled anew
    vectors = {name: np.array(vector) for name, vector in model.vectors.items()}
    matrices = np.zeros((len(model.layers) + 1, len(PLACES), len(FIELDS)), np.int64)
    for number, layer in enumerate(model.layers):
        for name, matrix in layer.items():
            matrices[number, PLACES.index(name)] = record(matrix, activations)
    matrices[-1, Q] = record(model.head, activations)
    if model.layer_projection:
        matrices[-1, K] = record(model.layer_projection, activations)
    read = sources(model.config)
    kept = [layer for layer, source in enumerate(read) if layer == source]
    numbers = [[layer for layer in kept if kinds[layer] == kinds[source]].index(source) for source in read]
    after_inner = vectors.get("after_inner_norms", no_vectors)
    value_size = max(size for _, _, size in layer_heads(model.config)) if architecture.value_norm else 0
    factors = vectors.get("rope_factors")
    cosines, sines = rope_tables(model.config, architecture, positions, factors, context_length)
    return Weights(
        matrices=matrices,
        attention_norms=vectors.get("attention_norms", no_vectors),
        after_attention_norms=vectors.get("after_attention_norms", no_vectors),
        inner_norms=vectors.get("inner_norms", no_vectors),
        after_inner_norms=after_inner,
        leaving_norms=vectors["after_layer_norms"] if model.layer_projection else after_inner,
        query_norms=vectors.get("query_norms", none),
        key_norms=vectors.get("key_norms", none),
        value_norms=np.ones(value_size, np.float32),
        biases=vectors.get("biases", np.zeros((0, 0, 0), np.float32)),
        output_biases=vectors.get("o_biases", no_vectors),
        router_biases=vectors.get("router_biases", no_vectors),
        gate_biases=vectors.get("gate_biases", no_biases),
        up_biases=vectors.get("up_biases", no_biases),
        down_biases=vectors.get("down_biases", no_biases),
        expert_scales=vectors.get("expert_scales", no_vectors),
        sinks=vectors.get("sinks", no_vectors),
        last_norm=vectors["last_norm"] / np.float32(model.config.get("logits_scaling") or 1.0),
        cosines=cosines,
        sines=sines,
        rotations=np.array(rope_kinds(model.config, architecture), np.int64),
        query_scales=query_scales(model.config, positions, architecture.query_scale),
        windows=np.array(windows(model.config, architecture), np.int64),
        kinds=np.array(kinds, np.int64),
        slots=np.array(numbers, np.int64),
        scales=vectors.get("scales", np.ones(len(model.layers), np.float32)).reshape(-1),
    )


def shapes_of(model: BlockModel, architecture: Architecture) -> tuple[tuple[Shape, ...], list[int]]:
    """The Shapes of a model's layers, and which of them each layer has."""
    config = model.config
    experts, active = experts_of(config) if architecture.experts else (0, 0)
    kept = [layer == source for layer, source in enumerate(sources(config))]
    pairs = rotary_layouts(config, architecture)
    each = [
        (heads, pairs[max(rotation, 0)][:2])
        for heads, rotation in zip(layer_heads(config), rope_kinds(config, architecture), strict=True)
    ]
    found = list(dict.fromkeys(each))
    norms = model.vectors.get("query_norms")
    widths = [
        layer[place].rows for layer in model.layers for place in ("gate", "layer_gate") if place in layer
    ]
    inner = expert_width(config, architecture) if experts else max(widths)
    shapes = tuple(
        Shape(
            layers=config["num_hidden_layers"],
            hidden=config["hidden_size"],
            heads=heads,
            kv_heads=kv_heads,
            head_dim=size,
            inner=inner,
            vocabulary=model.head.shape[0],
            epsilon=config["rms_norm_eps"],
            activation=ACTIVATIONS.index(architecture.activation_of(config)),
            experts=experts,
            active=active,
            shared_by_active=shared_by_active(config),
            residual_scale=float(config.get("residual_multiplier") or 1.0),
            score_cap=float(config.get("attn_logit_softcapping") or 0.0),
            logit_cap=float(config.get("final_logit_softcapping") or 0.0),
            turned=those,
            apart=apart,
            slot_layers=sum(keeps for one, keeps in zip(each, kept, strict=True) if one == kind),
            last_kept=max(layer for layer, keeps in enumerate(kept) if keeps),
            joint_norms=len(found) == 1 and norms is not None and norms.shape[1] == heads * size,
            dense=config[architecture.inner] if has_mlp_beside_experts(config, architecture) else 0,
        )
        for kind in found
        for (heads, kv_heads, size), (those, apart) in [kind]
    )
    return shapes, [found.index(one) for one in each]


def _inputs(model: BlockModel, shape: Shape) -> Inputs | None:
    """Buffers of the inputs of layers, where they have some. Both parts are multiplied by the root of a half."""
    if not model.layer_projection:
        return None
    norm = model.vectors["layer_norm"] * np.float32(sqrt(0.5))
    room = (padded_rows(MOST_ROWS), shape.layers, len(norm))
    # The embedding's part is divided by the root of `hidden` before its norm, which but for epsilon undoes that
    return Inputs(np.zeros(room, np.float32), np.zeros(room, np.float32), norm, shape.epsilon * shape.hidden)


def _beside(model: BlockModel, shape: Shape) -> Beside | None:
    """Norms and a buffer of layers with experts beside the rest."""
    if not shape.dense:
        return None
    norms = {name: np.array(model.vectors[name]) for name in Beside._fields if name != "held"}
    return Beside(**norms, held=np.zeros((MOST_ROWS, shape.hidden), np.float32))
