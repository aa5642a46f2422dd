"""Run decoder models on the CPU engine, behind the Runner contract."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from hierchat.engine.cpu import memory
from hierchat.engine.cpu.attention import lay_out
from hierchat.engine.cpu.forward import Team, forward
from hierchat.engine.cpu.phases import COUNTER, PHASES, ForwardRun
from hierchat.engine.cpu.rows import ROWS, record
from hierchat.engine.cpu.sequence import CpuSequence
from hierchat.engine.cpu.states import lay_paths
from hierchat.engine.engine import clear_memory_errors
from hierchat.engine.pages import Pages, texts_that_fit
from hierchat.engine.runner import Runner, Segment, TooManySequences
from hierchat.engine.selftest import SelfTestResult, cache_key, invariant, remembered
from hierchat.engine.verification import ArrayRows, Rows
from hierchat.jit import INSTRUCTIONS
from hierchat.models.architectures import mixers, model_config
from hierchat.models.architectures.families import ACTIVATIONS, MATRICES, architecture_of
from hierchat.models.architectures.model_config import rope_kinds, rope_tables, rotary_layouts
from hierchat.models.catalogue import Activations
from hierchat.models.formats.block_model import BlockModel, require_sizes
from hierchat.models.formats.blocks import Blocks, Embedding, pack
from hierchat.models.progress import UnsupportedError

MOST_ROWS = 128
"""Positions of the widest forward."""
ATTENDED = 32 * 2**20
"""Floats, at most, for the attention of one forward; a chunk of a prompt is cut to fit where the context is long."""


class CpuRunner(Runner):
    """Runs a BlockModel on the CPU, exact for every width, tree and chunking, whatever other sequences share the
    forward. Has slots for up to `sequences` texts, as many as SHARE of the free memory holds."""

    shares_forward = True

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
        """`activations`: what products read; weights that gain nothing by int8 keep int16, floats float32."""
        require_sizes(model)  # what follows checks no bounds
        config = model.config
        self.model = model
        self.backend = backend
        self.embedding = Embedding(model.embedding)
        self.vocabulary: int = model.head.shape[0]
        self._tokens = model.embedding.rows
        self.context_length = context_length
        self.shapes, kinds = shapes_of(model)
        self.shape = self.shapes[0]
        root = sqrt(self.shape.hidden) if architecture_of(config).scaled_embedding else 0.0
        self._embedding_scale = np.float32(root or config.get("embedding_multiplier") or 1.0)
        self.positions = context_length + MOST_ROWS
        """Slots of a sequence: a block may stand behind a full context."""
        self.weights = _weights(model, kinds, context_length, activations)
        eight = bool((self.weights.matrices[..., memory.FORM] == memory.INT8).any())
        self.activations: Activations = "int8" if eight else "int16"
        self.team = Team(threads)
        weakref.finalize(self, self.team.close)
        chunks = -(-self.positions // memory.CHUNK)
        self.state_shape = state_shape_of(model)
        # Of one sequence: keys and values of 2 bytes, and their scales; and its states
        slot = sum(shape.slot_layers * shape.kv_heads * (4 * shape.head_dim + 8) for shape in self.shapes)
        each = chunks * memory.CHUNK * slot + self.state_bytes
        sequences = texts_that_fit(sequences, each, "cpu")
        self.slots = tuple(memory.make_key_values(shape, sequences * chunks) for shape in self.shapes)
        self.pages = Pages(sequences * chunks, memory.CHUNK)
        self.most_sequences = sequences
        gated = bool(self.weights.matrices[:, memory.Q_GATE, memory.MATRIX_ROWS].any())
        widest = self.state_shape.width_out if self.state_shape else 0
        self._work = memory.make_work(self.shapes, MOST_ROWS, self.team.threads, gated, widest)
        self.states: memory.StateSlots | None = None
        if self.state_shape:
            self.states = memory.make_state_slots(self.state_shape, sequences)
            self._state_weights = _state_weights(model, self.weights)
            self._state_work = memory.make_state_work(self.state_shape, self._work, self.team.threads)
        self.numbers = list(reversed(range(sequences)))
        """Numbers of sequences that may still be opened."""
        self._inputs = _inputs(model, self.shape)
        self._dense = _dense_mlp(model, self.shape)
        # Floats of the attention of one row over one chunk, at most
        self._attended = max(shape.heads * (shape.head_dim + 2) for shape in self.shapes)
        self._identity = np.arange(memory.CHUNK, dtype=np.int32)
        name = f"{self.backend} {INSTRUCTIONS} {self.activations}"
        sequence = self.open()
        self.identity = f"{cache_key(key, name)} {context_length}" if key else ""
        """All that the bits of keys and values depend on; empty if the model has no key."""
        proof = remembered(
            key and cache_key(key, name),
            lambda: SelfTestResult(exact=invariant(sequence, border=memory.CHUNK)),
        )
        self.exact = proof.exact
        sequence.close()

    def open(self) -> CpuSequence:
        if not self.numbers:
            raise TooManySequences(f"All slots are taken: the runner holds {self.most_sequences} sequences.")
        return CpuSequence(self, self.numbers.pop())

    @property
    def state_bytes(self) -> int:
        """Return the bytes of running states and records of one sequence."""
        if not (shape := self.state_shape):
            return 0
        states = memory.STATES * shape.heads * shape.key_size * shape.value_size
        return 4 * shape.layers * (states + memory.SLOTS * shape.queries)

    def forward(self, blocks: Sequence[Segment]) -> list[Rows]:
        # Rows with logits come first, then those of which hidden states alone are wanted.
        order = sorted(range(len(blocks)), key=lambda at: (not blocks[at].logits, not blocks[at].hidden))
        logits, hidden = self.run([blocks[at] for at in order])
        found: list[Rows] = [ArrayRows(logits[:0])] * len(blocks)
        begin = 0
        for at in order:
            end = begin + len(blocks[at].tokens)
            brought = blocks[at].logits or blocks[at].hidden
            found[at] = ArrayRows(logits[begin:end], hidden[begin:end] if brought else None)
            begin = end
        return found

    def rows_that_fit(self, start: int, wanted: int) -> int:
        """Return how many of the next `wanted` positions of a prompt one forward can read, after `start` others."""
        chunks = (start + wanted) // memory.CHUNK + 1
        return max(1, min(MOST_ROWS, ATTENDED // (self._attended * chunks)))

    @clear_memory_errors()
    def run(self, blocks: Sequence[Segment]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Compute one forward: logits [nodes that want them, vocabulary], and hidden states after the last norm
        [nodes that want logits or states, hidden], valid until the next forward."""
        scored = sum(len(block.tokens) for block in blocks if block.logits)
        wanted = sum(len(block.tokens) for block in blocks if block.logits or block.hidden)
        sequences = [cast(CpuSequence, block.sequence) for block in blocks]
        tokens = [token for block in blocks for token in block.tokens]
        rows = len(tokens)
        if not 0 < rows <= MOST_ROWS:
            raise ValueError(f"A forward over {rows} positions: at most {MOST_ROWS} at a time.")
        if blocks[0].embeddings is None and not 0 <= min(tokens) <= max(tokens) < self._tokens:
            raise ValueError(f"A token is none of the model's {self._tokens}.")
        for sequence, block in zip(sequences, blocks, strict=True):
            start, width = len(sequence.tokens), len(block.tokens)
            if not width or start + width > self.positions:
                raise ValueError(
                    f"A block of {width} positions behind {start} does not fit: {self.positions} in all."
                )
            sequence.begin(block)
            sequence.make_room(start, start + width)
        needed = max(len(sequence.pages) for sequence in sequences)
        texts = memory.Texts(
            np.array([len(sequence.tokens) for sequence in sequences], np.int64),
            np.cumsum([0, *(len(block.tokens) for block in blocks)]),
            np.zeros((len(sequences), needed), np.int64),
        )
        work = self._work
        strides = [shape.slot_layers * shape.kv_heads * memory.CHUNK for shape in self.shapes]
        for text, (sequence, block) in enumerate(zip(sequences, blocks, strict=True)):
            mine = slice(texts.rows[text], texts.rows[text + 1])
            work.texts[mine] = text
            pages = texts.pages[text]
            pages[: len(sequence.pages)] = sequence.pages
            parents, start = np.asarray(block.parents, np.int64), len(sequence.tokens)
            for stride, places in zip(strides, work.places, strict=True):
                lay_out(parents, start, pages, stride, work.positions[mine], work.order[mine], places[mine])
            if self.states:
                paths, lengths = self._state_work.paths[mine], self._state_work.lengths[mine]
                lay_paths(parents, start, mine.start, work.positions[mine], paths, lengths)
        needed *= rows * self._attended
        if work.attended.size < needed:
            work = self._work = work._replace(attended=np.zeros(2 * needed, np.float32))
        if blocks[0].embeddings is None:
            np.multiply(self.embedding(tokens), self._embedding_scale, out=work.x[:rows])
        else:
            np.concatenate([cast(Any, block.embeddings) for block in blocks], out=work.x[:rows])
        if self._inputs and self.model.layer_embedding:  # the tokens' part of the inputs of all layers
            own = self.model.layer_embedding.floats(np.asarray(tokens, np.int64))
            inputs = self._inputs.layers[:rows]
            np.multiply(own.reshape(inputs.shape), np.float32(sqrt(inputs.shape[2] / 2)), out=inputs)
        # Whole tiles, in which rows lie alike however many there are; a row alone lies by itself.
        padded = -(-scored // ROWS) * ROWS if wanted > 1 else scored
        out = np.empty((padded, self.vocabulary), np.float32)
        layers, chosen = self.shape.layers, None
        if self.shape.experts:
            chosen = np.zeros((layers, rows, self.shape.active), np.int64)
        counters = np.zeros((layers + 1) * PHASES * COUNTER, np.int64)
        shapes, slots = memory.both(self.shapes), memory.both(self.slots)
        running = self._running(texts, sequences, blocks)

        def job(rank: int) -> None:
            forward(
                ForwardRun(counters.ctypes.data, self.team.threads, rank), shapes, self.weights, slots,
                work, self._identity, texts, wanted, chosen, self._dense, self._inputs, running, out,
            )  # fmt: skip

        self.team.run(job)
        for sequence, block in zip(sequences, blocks, strict=True):
            sequence.folded_in(block)
        size = self.shape.hidden
        return out[:scored], work.input.plain[: wanted * size].reshape(wanted, size)

    def _running(
        self, texts: memory.Texts, sequences: Sequence[CpuSequence], blocks: Sequence[Segment]
    ) -> memory.Running | None:
        if not self.state_shape or not self.states:
            return None
        numbers, folded, reading = (
            np.array(one, np.int64)
            for one in (
                [sequence.number for sequence in sequences],
                [sequence.folded for sequence in sequences],
                [not block.logits for block in blocks],
            )
        )
        own = memory.StateTexts(texts.starts, texts.rows, numbers, folded, reading)
        return memory.Running(self.state_shape, self._state_weights, self.states, self._state_work, own)


_BY_LAYER = (
    "attention_norms", "after_attention_norms", "inner_norms", "after_inner_norms", "sinks",
)  # fmt: skip
"""Vectors of every layer, or of none."""
UNIT = 16
"""Numbers of a state that are computed together, at least."""
PIECE = 64
"""Channels of a short convolution that are computed together."""
_OF_STATES = ("conv", "conv_biases", "decays", "step_biases", "skips", "state_norms")


def _weights(
    model: BlockModel, kinds: Sequence[int], context_length: int, activations: Activations
) -> memory.Weights:
    config, positions = model.config, context_length + MOST_ROWS
    none = np.zeros((0, 0), np.float32)
    no_vectors = np.zeros((len(model.layers), 0), np.float32)
    no_biases = np.zeros((len(model.layers), 0, 0), np.float32)
    # Of one kind, whether they come from a file that is mapped or not: for each kind all would be compiled anew
    vectors = {name: np.array(vector) for name, vector in model.vectors.items()}
    matrices = np.zeros((len(model.layers) + 1, len(memory.PLACES), len(memory.FIELDS)), np.int64)
    for number, layer in enumerate(model.layers):
        for name, matrix in layer.items():
            matrices[number, memory.PLACES.index(name)] = record(matrix, activations)
    matrices[-1, memory.Q] = record(model.head, activations)
    if model.layer_projection:
        matrices[-1, memory.K] = record(model.layer_projection, activations)
    read = model_config.sources(config)
    has = mixers_of(model)
    kept = [layer for layer, source in enumerate(read) if layer == source]
    alike = [(kinds[layer], has[layer]) for layer in range(len(read))]
    numbers = [[layer for layer in kept if alike[layer] == alike[source]].index(source) for source in read]
    value_norm = architecture_of(config).value_norm
    sizes = [size if value_norm else 0 for _, _, size in model_config.layer_heads(config)]
    factors = vectors.get("rope_factors")
    cosines, sines = rope_tables(config, positions, factors, context_length)
    return memory.Weights(
        matrices=matrices,
        **{name: vectors.get(name, no_vectors) for name in _BY_LAYER},
        **_routing(model, vectors),
        **{name: vectors.get(name, no_biases) for name in ("gate_biases", "up_biases", "down_biases")},
        leaving_norms=vectors.get(
            "after_layer_norms" if model.layer_projection else "after_inner_norms", no_vectors
        ),
        query_norms=vectors.get("query_norms", none),
        key_norms=vectors.get("key_norms", none),
        value_norms=np.ones(max(sizes), np.float32),
        biases=vectors.get("biases", np.zeros((0, 0, 0), np.float32)),
        output_biases=vectors.get("o_biases", no_vectors),
        last_norm=vectors["last_norm"] / np.float32(config.get("logits_scaling") or 1.0),
        cosines=cosines,
        sines=sines,
        rotations=np.array(rope_kinds(config), np.int64),
        query_scales=model_config.query_scales(config, positions),
        windows=np.array(model_config.windows(config), np.int64),
        kinds=np.array(kinds, np.int64),
        slots=np.array(numbers, np.int64),
        scales=vectors.get("scales", np.ones(len(model.layers), np.float32)).reshape(-1),
        mixers=np.array(has, np.int64),
    )


def mixers_of(model: BlockModel) -> list[int]:
    """Return what each layer has: memory.ATTENTION, memory.STATE or memory.NO_MIXER."""
    return [
        memory.STATE if "mix" in layer else memory.ATTENTION if "q" in layer else memory.NO_MIXER
        for layer in model.layers
    ]


def state_shape_of(model: BlockModel) -> memory.StateShape | None:
    """Return the Shape of layers with a running state; None if the model has none."""
    config, kinds = model.config, mixers_of(model)
    if memory.STATE not in kinds:
        return None
    first = kinds.index(memory.STATE)
    sizes = mixers.mixer_of(config, config["layer_types"][first])
    kind = {mixers.DELTA_NET: memory.DELTA, mixers.MAMBA: memory.MAMBA}.get(
        config["layer_types"][first], memory.CONVOLUTION
    )
    if sizes.key_size % UNIT or sizes.inner % UNIT or sizes.value_size % UNIT:
        raise UnsupportedError(f"The CPU engine computes states of {UNIT}, {2 * UNIT}, ... numbers alone.")
    keys, inner = sizes.keys * sizes.key_size, sizes.inner
    heads, value_size = sizes.values, sizes.value_size
    if kind == memory.CONVOLUTION:
        value_size = PIECE if sizes.channels % PIECE == 0 else sizes.channels
        heads, inner = sizes.channels // value_size, 0
    # Where queries, keys and values begin among the channels
    begins = (0, keys, 2 * keys) if kind == memory.DELTA else (inner + keys, inner, 0)
    fades = sizes.channels + keys + inner
    grouped = kind == memory.MAMBA or bool(config.get("value_heads_grouped"))
    return memory.StateShape(
        kind, kinds.count(memory.STATE), sizes.keys, heads, sizes.key_size, value_size, grouped,
        sizes.channels, sizes.width, *begins,
        keys=sizes.channels, changes=sizes.channels + keys, fades=fades,
        queries=fades + (sizes.values if inner else 0),
        width_out=sizes.inner, norm_size=sizes.inner // max(sizes.keys, 1), epsilon=config["rms_norm_eps"],
    )  # fmt: skip


def _routing(model: BlockModel, vectors: Mapping[str, NDArray[np.float32]]) -> dict[str, NDArray[np.float32]]:
    """Return the router's additions and the experts' factors, each [layers, experts or 0]."""
    experts, _ = model_config.experts_of(model.config)
    sizes = len(model.layers), experts
    none = np.zeros((len(model.layers), 0), np.float32)
    scales = vectors.get("expert_scales", none)
    if factor := model.config.get("routed_scaling_factor"):
        scales = np.full(sizes, factor, np.float32)
    biases = vectors.get("router_biases", none)
    if model_config.chosen_by_logistic(model.config):
        biases = vectors.get("score_biases", np.zeros(sizes, np.float32))
    return {"router_biases": biases, "expert_scales": scales}


def _state_weights(model: BlockModel, weights: memory.Weights) -> memory.StateWeights:
    own = weights.mixers == memory.STATE
    none = np.zeros((int(own.sum()), 0), np.float32)
    found = {name: np.array(model.vectors[name][own]) for name in _OF_STATES if name in model.vectors}
    found["conv"] = np.ascontiguousarray(found["conv"].swapaxes(1, 2))
    return memory.StateWeights(**{name: found.get(name, none) for name in memory.StateWeights._fields})


def shapes_of(model: BlockModel) -> tuple[tuple[memory.Shape, ...], list[int]]:
    """Return the different Shapes of a model's layers, and for each layer the number of its Shape."""
    config, architecture = model.config, architecture_of(model.config)
    experts, active = model_config.experts_of(config) if architecture.experts else (0, 0)
    kept = [layer == source for layer, source in enumerate(model_config.sources(config))]
    layouts, rotations = rotary_layouts(config), rope_kinds(config)
    wide = [layer.get("dense_up", None if "router" in layer else layer.get("up")) for layer in model.layers]
    dense = max((matrix.rows for matrix in wide if matrix), default=0) if experts else 0
    each = [
        (heads, layouts[max(rotation, 0)][:2])
        for heads, rotation in zip(model_config.layer_heads(config), rotations, strict=True)
    ]
    found = list(dict.fromkeys(each))
    norms = model.vectors.get("query_norms")
    widths = [layer[place].rows for layer in model.layers for place in ("up", "layer_gate") if place in layer]
    has = mixers_of(model)
    attends = [keeps and mixer == memory.ATTENTION for keeps, mixer in zip(kept, has, strict=True)]
    inner = model_config.expert_width(config) if experts else max(widths)
    shapes = tuple(
        memory.Shape(
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
            shared_by_active=model_config.shared_by_active(config),
            residual_scale=float(config.get("residual_multiplier") or 1.0),
            score_cap=float(config.get("attn_logit_softcapping") or 0.0),
            logit_cap=float(config.get("final_logit_softcapping") or 0.0),
            rotary_pairs=pairs,
            rotary_offset=offset,
            slot_layers=sum(keeps for one, keeps in zip(each, attends, strict=True) if one == kind),
            last_kept=max(layer for layer, keeps in enumerate(kept) if keeps and has[layer]),
            joint_norms=len(found) == 1 and norms is not None and norms.shape[1] == heads * size,
            dense=dense,
            logistic=model_config.chosen_by_logistic(config),
        )
        for kind in found
        for (heads, kv_heads, size), (pairs, offset) in [kind]
    )
    return shapes, [found.index(one) for one in each]


def _inputs(model: BlockModel, shape: memory.Shape) -> memory.Inputs | None:
    if not model.layer_projection:
        return None
    norm = model.vectors["layer_norm"] * np.float32(sqrt(0.5))
    room = (memory.padded_rows(MOST_ROWS), shape.layers, len(norm))
    # The embedding's part is divided by the root of `hidden` before its norm, which but for epsilon undoes that
    return memory.Inputs(
        np.zeros(room, np.float32), np.zeros(room, np.float32), norm, shape.epsilon * shape.hidden
    )


def _dense_mlp(model: BlockModel, shape: memory.Shape) -> memory.DenseMlp | None:
    """Return norms and a buffer of layers that have a dense MLP beside their experts, if the model has such."""
    if not any("dense_up" in layer for layer in model.layers):
        return None
    none, padded = np.zeros((shape.layers, 0), np.float32), memory.padded_rows(MOST_ROWS)
    names = [name for name in memory.DenseMlp._fields if name not in ("held", "gates")]
    return memory.DenseMlp(
        **{name: np.array(model.vectors.get(name, none)) for name in names},
        held=np.zeros((MOST_ROWS, shape.hidden), np.float32),
        gates=np.zeros((padded, 1), np.float32),
    )


_TRIAL = {
    "model_type": "llama",
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "intermediate_size": 32,
    "rms_norm_eps": 1e-5,
    "vocab_size": 64,
    "max_position_embeddings": 256,
    "rope_theta": 10000.0,
}


def trial_runner(threads: int | None = None) -> CpuRunner:
    """Make a runner over a tiny random model, to compile the kernels and try them by its self-test."""
    random = np.random.default_rng(0)

    def matrix(rows: int) -> Blocks:
        return pack(random.standard_normal((rows, 32)).astype(np.float32), 4)

    layer = {name: matrix(16 if name in ("k", "v") else 32) for name in MATRICES}
    ones = np.ones((1, 32), np.float32)
    vectors = {"attention_norms": ones, "inner_norms": ones, "last_norm": ones[0]}
    embedding = matrix(64)
    return CpuRunner(
        BlockModel(dict(_TRIAL), embedding, embedding, (layer,), vectors), context_length=256, threads=threads
    )
