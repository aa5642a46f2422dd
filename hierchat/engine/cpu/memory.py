"""Define what a forward reads and writes: plain arrays in named tuples, as the compiler wants them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from hierchat.engine.cpu.dot import BYTE_SUMS, GROUP, SUMS
from hierchat.engine.cpu.unpacking import ISAS
from hierchat.jit import INSTRUCTIONS
from hierchat.models.formats.layouts import BLOCK

CHUNK = 128
"""Positions whose scores are added up together; a page of slots holds as many."""
MOST_QUERIES = 6
"""Queries that attention computes together, at most (softmax.QUERIES)."""

GATED = 256
"""Most rows of gate and up projections that are computed before their activation."""

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]
Kind = TypeVar("Kind")

# Fields of a matrix in `Weights.matrices`: the address of the product for its block type (code), that of its weights,
# its rows, its blocks of 32 and bytes in a row, and the form in which it takes activations.
FUNCTION, WEIGHTS, MATRIX_ROWS, BLOCKS, ROW_BYTES, FORM = FIELDS = range(6)
# Forms of activations: several matrices that read the same ones may want several.
INT16, INT8, FLOATS = 1, 2, 4
# Matrices of a layer; the head stands in a layer of its own, last, as Q. Gate, up and down of several experts lie one
# behind the other.
Q, K, V, O, GATE, UP, DOWN, ROUTER = range(8)  # noqa: E741
LAYER_GATE, LAYER_OUT, DENSE_GATE, DENSE_UP, DENSE_DOWN, DENSE_SCALE = range(8, 14)
MIX, Z, BETA, ALPHA, Q_GATE = range(14, 19)
PLACES = (
    "q", "k", "v", "o", "gate", "up", "down", "router", "layer_gate", "layer_out", "dense_gate", "dense_up",
    "dense_down", "dense_scale", "mix", "z", "beta", "alpha", "q_gate",
)  # fmt: skip
"""Names of a layer's matrices in a BlockModel. A missing matrix has no rows."""


class Shape(NamedTuple):
    """Sizes and numbers of a decoder; `activation` counts in families.ACTIVATIONS. `experts` of a layer, each
    `inner` wide, of which a row is routed to `active`; 0: it has none. `shared_by_active`: what they bring is weighed
    by a softmax over these, else over all. What attention and gate bring is multiplied by `residual_scale`; scores and
    logits stay within their caps, where these are not 0.

    Layers whose heads differ have Shapes that differ: of query heads, key-value heads, numbers per head, and rotary
    dimensions: `rotary_pairs`, each of two numbers that lie `rotary_offset` apart. `slot_layers`: how many of them have
    keys and values of their own. `last_kept`: the last layer of all that has. `joint_norms`: of queries and keys all
    heads together. `dense`: width of the widest MLP without a choice, in a model with experts.
    `logistic`: experts are chosen by the logistic function of their scores (phases.choose)."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    vocabulary: int
    epsilon: float
    activation: int
    experts: int = 0
    active: int = 0
    shared_by_active: bool = True
    residual_scale: float = 1.0
    score_cap: float = 0.0
    logit_cap: float = 0.0
    rotary_pairs: int = 0
    rotary_offset: int = 0
    slot_layers: int = 0
    last_kept: int = 0
    joint_norms: bool = False
    dense: int = 0
    logistic: bool = False


class Weights(NamedTuple):
    """Weights of a model, as the kernels find them.

    `matrices` int64 [layers + 1, PLACES, FIELDS]: addresses and sizes; the arrays behind the addresses are kept alive
    by their owner. Norms float32 [layers, hidden], [layers, 0] where there are none. Query and key norms [layers,
    head_dim] or, of all heads together, [layers, heads * head_dim] and [layers, kv heads * head_dim], and biases of
    queries, keys and values [layers, heads + 2 kv heads, head_dim], empty where there are none; so are biases of the
    output [layers, hidden], of the router [layers, experts] and of the experts [layers, experts, inner or hidden], and
    the sinks [layers, heads]. Cosines and sines [rotations, positions, most rotary pairs of a head]. Query and key
    norms may be longer than a head where others are larger. `value_norms` [head_dim], or empty."""

    matrices: Integers
    attention_norms: Floats
    after_attention_norms: Floats
    inner_norms: Floats
    after_inner_norms: Floats
    leaving_norms: Floats
    """Of what the last product of a layer brings: those above, unless another product follows."""
    query_norms: Floats
    key_norms: Floats
    value_norms: Floats
    biases: Floats
    output_biases: Floats
    router_biases: Floats
    gate_biases: Floats
    up_biases: Floats
    down_biases: Floats
    expert_scales: Floats
    """[layers, experts]: what multiplies what each brings; [layers, 0]: nothing."""
    sinks: Floats
    last_norm: Floats
    cosines: Floats
    sines: Floats
    rotations: Integers
    """[layers]: which of the cosines and sines; -1: none."""
    query_scales: Floats
    """[positions]: what queries are multiplied by."""
    windows: Integers
    """[layers]: positions that a row sees of those up to its own, which counts; 0: all."""
    kinds: Integers
    """[layers]: which of the Shapes."""
    slots: Integers
    """[layers]: index of the key-value cache or running state that each layer of this Shape reads."""
    scales: Floats
    """[layers]: what multiplies the residual stream behind each."""
    mixers: Integers
    """[layers]: NO_MIXER, ATTENTION or STATE."""


class Inputs(NamedTuple):
    """Per-layer inputs of models whose layers have an input of their own, made of the token and of its embedding."""

    layers: Floats
    """[rows, layers, input]: first the token's part alone."""
    projected: Floats
    """[rows, layers, input]: the embedding's part."""
    norm: Floats
    """[input], of the embedding's part."""
    epsilon: float
    """Of this norm, whose sums are not divided by `hidden` first."""


class DenseMlp(NamedTuple):
    """Norms [layers, hidden], or [layers, 0], of MoE layers that also have a dense MLP, and the output of that MLP."""

    after_dense_norms: Floats
    router_norms: Floats
    expert_norms: Floats
    after_expert_norms: Floats
    held: Floats
    """[rows, hidden]"""
    gates: Floats
    """[rows, 1]: what opens the output, in some models."""


class KeyValues(NamedTuple):
    """Key-value cache of the layers of one Shape. Keys int16 [pages, slot layers, kv heads, head_dim, CHUNK], values
    [pages, slot layers, kv heads, CHUNK, head_dim], and a float32 scale for each slot of a head [pages, slot layers, kv
    heads, CHUNK]. What a page holds lies together: a short text touches little memory, also where the system hands it
    out in pieces of megabytes."""

    keys: NDArray[np.int16]
    key_scales: Floats
    values: NDArray[np.int16]
    value_scales: Floats


class Texts(NamedTuple):
    """Sequences whose blocks go through one forward together, as int64 arrays."""

    starts: Integers
    """[texts]: positions committed of each."""
    rows: Integers
    """[texts + 1]: the row at which the block of each begins; last, the number of all rows."""
    pages: Integers
    """[texts, chunks of the longest]: the page that holds each chunk of positions."""


# Mixers of a layer: attention, a running state of one of these kinds, or none.
NO_MIXER, ATTENTION, STATE = range(3)
DELTA, MAMBA, CONVOLUTION = range(3)
STEP = 16
"""Positions from one stored state to the next (states.py)."""
STATES = 3
"""Stored states of a head: so many that drafts may reach the next chunk, and a text may go back by one."""
MOST_NODES = 48
"""Rows of a tree, at most, in models with running states."""
SLOTS = STATES * STEP + MOST_NODES
"""Records of rows that a sequence keeps, at position modulo SLOTS."""


class StateShape(NamedTuple):
    """Sizes of the layers with a running state, all alike. `heads` of values, whose states are float32 [key_size,
    value_size]; each reads one of the key heads: of neighbours the same (`grouped`), or in turn. A convolution of
    `width` inputs over `channels` makes queries, keys and values, which begin at the channels `query_at`, `key_at` and
    `value_at`. A row's record has these inputs, then from `keys`, `changes`, `fades` and `queries` on what the
    convolution made; a sequence keeps it up to `queries`. `norm_size`: numbers that are normalised together; of
    `width_out` in all."""

    kind: int
    layers: int
    key_heads: int
    heads: int
    key_size: int
    value_size: int
    grouped: bool
    channels: int
    width: int
    query_at: int
    key_at: int
    value_at: int
    keys: int
    changes: int
    fades: int
    queries: int
    width_out: int
    norm_size: int
    epsilon: float


class StateWeights(NamedTuple):
    """What layers with a running state have beside matrices; all float32, of these layers alone."""

    conv: Floats
    """[layers, width, channels], the newest input last."""
    conv_biases: Floats
    """[layers, channels], or [layers, 0]."""
    decays: Floats
    """[layers, heads]: what a head's step is multiplied by; e to that is what the state fades by."""
    step_biases: Floats
    skips: Floats
    """[layers, heads]: what a value is multiplied by and added to the output (Mamba 2)."""
    state_norms: Floats
    """[layers, value_size], of each head, or [layers, width_out]."""


class StateSlots(NamedTuple):
    """Stored states and records of the sequences of a runner; see states.py."""

    running: Floats
    """[sequences, layers, heads, STATES, key_size, value_size]: the state before chunk n stands at n % STATES."""
    records: Floats
    """[sequences, layers, SLOTS, record]"""


class Scratch(NamedTuple):
    """Buffers of the threads, [threads, ...], or of one."""

    factors: Floats
    """[key_size, STEP]"""
    addresses: Integers
    """[4, ...]: of inputs, vectors, results and changes."""
    reads: Floats
    """[rows, value_size]"""
    dots: Floats
    """[3, ...]: of a row's query and key with its ancestors' keys; and the ancestors' fades."""
    state: Floats
    """[key_size, value_size]"""
    places: NDArray[np.int32]
    """[STEP]"""


class StateWork(NamedTuple):
    """Buffers of one forward for layers with a running state."""

    records: Floats
    """[rows, record and queries]"""
    mixed: Floats
    """[rows, 3 * channels]: of short convolutions, both gates and values."""
    gates: Floats
    """[rows, width_out]"""
    rates: Floats
    """[rows, heads]"""
    steps: Floats
    """[rows, heads]"""
    read: Floats
    """[rows, width_out]"""
    positions: Integers
    """[rows], those of Work; so are the next."""
    texts: Integers
    paths: NDArray[np.int32]
    """[rows, 4 * STEP]: records of a row's ancestors (states.lay_paths)."""
    lengths: Integers
    """[rows]"""
    scratch: Scratch


class StateTexts(NamedTuple):
    """Sequences of a forward: `starts` and `rows`, and int64 [texts] the slot, the newest stored state, and
    whether it is a prompt's piece, which is certain to be committed."""

    starts: Integers
    rows: Integers
    numbers: Integers
    folded: Integers
    reading: Integers


class Running(NamedTuple):
    """All that a forward needs for layers with a running state."""

    shape: StateShape
    weights: StateWeights
    kept: StateSlots
    work: StateWork
    texts: StateTexts


class ProductInput(NamedTuple):
    """Rows of activations as products read them, in one form or several (INT8, INT16, FLOATS); see rows.quantise."""

    plain: Floats
    """[rows * width]; also as int16, with a scale per dot.GROUP and dot.SUMS:"""
    integers: NDArray[np.int16]
    scales: Floats
    sums: NDArray[np.int32]
    """4 bytes each, some of them float32."""
    bytes: NDArray[np.int8]
    """The same with a scale per block of 32, and dot.BYTE_SUMS."""
    byte_scales: Floats
    byte_sums: NDArray[np.int32]


class RoutedExperts(NamedTuple):
    """Buffers of routed experts. Rows are grouped by expert, contiguously; each occurs once per routed expert."""

    scores: Floats
    """[rows, experts]: what the router says."""
    shares: Floats
    """[rows, active]: the weight of each expert of a row, the best first."""
    used: Integers
    """[threads, experts]: those that have rows, in order."""
    counts: Integers
    """[threads, experts]: the rows of each."""
    begins: Integers
    """[threads, experts]: the place of the first."""
    numbers: Integers
    """[threads, rows * active]: which of its expert's rows each is, by row and rank."""
    input: ProductInput
    """[places * widest]"""
    gate: Floats
    """[places, inner]"""
    up: Floats
    out: Floats
    """[places, hidden]"""


class Work(NamedTuple):
    """Buffers of one forward. Rows are padded to a multiple of what one pass computes: it may compute some too many."""

    x: Floats
    """The residual stream, [rows, hidden]."""
    input: ProductInput
    """What most products read, [rows * widest]."""
    inner: ProductInput
    """What the down projection reads, [rows * inner]: written while gate and up still read the other."""
    qkv: tuple[Floats, ...]
    """Queries, keys and values, for each Shape: [rows, heads + 2 kv heads, head_dim]."""
    out: Floats
    """[rows, hidden]"""
    gate: Floats
    """[rows, inner]"""
    attended: Floats
    """[rows * heads * chunks * (head_dim + 2)]: a chunk's weighted values, its highest score, its sum of weights."""
    scratch: Floats
    """[threads, ...]: scores of one thread."""
    positions: Integers
    """[rows]"""
    order: NDArray[np.int32]
    """[rows, tail]: for each position from the last whole chunk on, the slot that holds it, counted from there."""
    places: NDArray[np.int32]
    """[Shapes, rows, tail]: the same slot, counted from the first page's in the same layer and head on."""
    texts: Integers
    """[rows]: the sequence of the forward that each row belongs to, counted from 0."""
    gates: Floats
    """[rows, heads * head_dim]: what opens attention's output, where that is gated."""
    routed: RoutedExperts


def tail_size(rows: int) -> int:
    """Return how many slots the tail behind the last whole chunk has at most, with `rows` new ones, in whole chunks."""
    return -(-(CHUNK - 1 + rows) // CHUNK) * CHUNK


def padded_rows(rows: int) -> int:
    """Return how many rows a buffer needs for `rows` of them, as a pass may compute some too many."""
    most = ISAS[INSTRUCTIONS].most
    return -(-rows // most) * most


def both(kinds: Iterable[Kind]) -> tuple[Kind, ...]:
    """Give one thing twice: so a forward is compiled once for models with one kind of layers and with two."""
    found = tuple(kinds)
    return found if len(found) > 1 else found * 2


def make_work(
    shapes: tuple[Shape, ...], rows: int, threads: int, gated: bool = False, widest: int = 0
) -> Work:
    """Allocate the buffers for segments of at most `rows` positions; `attended` grows with the context (CpuRunner)."""
    shape, padded = shapes[0], padded_rows(rows)
    attention = max(one.heads * one.head_dim for one in shapes)
    inner = max(shape.inner, shape.dense)
    # A thread's scores of some queries over the tail, along a path, and the values' scales; or gates, ups and their
    # product, of the rows of one pass
    scratch = max(MOST_QUERIES * (tail_size(rows) + CHUNK) + CHUNK, 3 * ISAS[INSTRUCTIONS].most * GATED)
    return Work(
        x=np.zeros((padded, shape.hidden), np.float32),
        input=product_input(padded, max(shape.hidden, inner, attention, widest)),
        inner=product_input(padded, inner),
        qkv=both(
            np.zeros((padded, one.heads + 2 * one.kv_heads, one.head_dim), np.float32) for one in shapes
        ),
        out=np.zeros((padded, shape.hidden), np.float32),
        gate=np.zeros((padded, inner), np.float32),
        attended=np.zeros(0, np.float32),
        scratch=np.zeros((threads, scratch), np.float32),
        positions=np.zeros(rows, np.int64),
        order=np.zeros((rows, tail_size(rows)), np.int32),
        places=np.zeros((len(shapes), rows, tail_size(rows)), np.int32),
        texts=np.zeros(rows, np.int64),
        gates=np.zeros((padded, attention if gated else 1), np.float32),
        routed=_routed_experts(shape, rows, threads),
    )


def product_input(places: int, widest: int) -> ProductInput:
    """Allocate the buffers for `places` rows of activations, of at most `widest` numbers each."""
    blocks = places * (widest // BLOCK)
    return ProductInput(
        plain=np.zeros(places * widest, np.float32),
        integers=np.zeros(places * widest, np.int16),
        scales=np.zeros(places * -(-widest // GROUP), np.float32),
        sums=np.zeros(blocks * SUMS, np.int32),
        bytes=np.zeros(places * widest, np.int8),
        byte_scales=np.zeros(blocks, np.float32),
        byte_sums=np.zeros(blocks * BYTE_SUMS, np.int32),
    )


def _routed_experts(shape: Shape, rows: int, threads: int) -> RoutedExperts:
    most = rows * shape.active
    # A pass computes up to a third more rows than an expert has, where there is no kernel for so many.
    places = -(-4 * most // 3) + ISAS[INSTRUCTIONS].most if shape.experts else 0
    lists = (threads, shape.experts)
    return RoutedExperts(
        scores=np.zeros((padded_rows(rows), shape.experts), np.float32),
        shares=np.zeros((rows, shape.active), np.float32),
        used=np.zeros(lists, np.int64),
        counts=np.zeros(lists, np.int64),
        begins=np.zeros(lists, np.int64),
        numbers=np.zeros((threads, most), np.int64),
        input=product_input(places, max(shape.hidden, shape.inner)),
        gate=np.zeros((places, shape.inner), np.float32),
        up=np.zeros((places, shape.inner), np.float32),
        out=np.zeros((places, shape.hidden), np.float32),
    )


def make_key_values(shape: Shape, pages: int) -> KeyValues:
    """Allocate empty key-value slots; the system hands out memory only for those that are written."""
    head = (pages, shape.slot_layers, shape.kv_heads)
    return KeyValues(
        keys=np.zeros((*head, shape.head_dim, CHUNK), np.int16),
        key_scales=np.zeros((*head, CHUNK), np.float32),
        values=np.zeros((*head, CHUNK, shape.head_dim), np.int16),
        value_scales=np.zeros((*head, CHUNK), np.float32),
    )


def make_state_slots(shape: StateShape, sequences: int) -> StateSlots:
    """Allocate states and records of so many sequences; the system hands out memory only for those that are written."""
    states = (sequences, shape.layers, shape.heads, STATES, shape.key_size, shape.value_size)
    return StateSlots(
        np.zeros(states, np.float32), np.zeros((sequences, shape.layers, SLOTS, shape.queries), np.float32)
    )


def make_state_work(shape: StateShape, work: Work, threads: int) -> StateWork:
    """Allocate the buffers of one forward; `work`: its others."""
    padded, rows = len(work.x), len(work.positions)
    both, vectors = shape.key_heads * shape.key_size, max(shape.key_size, 4 * STEP + 1)
    mixed = 3 * shape.channels if shape.kind == CONVOLUTION else 0
    return StateWork(
        records=np.zeros((padded, shape.queries + both), np.float32),
        mixed=np.zeros((padded, mixed), np.float32),
        gates=np.zeros((padded, shape.width_out), np.float32),
        rates=np.zeros((padded, shape.heads), np.float32),
        steps=np.zeros((padded, shape.heads), np.float32),
        read=np.zeros((padded, shape.width_out), np.float32),
        positions=work.positions,
        texts=work.texts,
        paths=np.zeros((rows, 4 * STEP), np.int32),
        lengths=np.zeros(rows, np.int64),
        scratch=Scratch(
            factors=np.zeros((threads, shape.key_size, STEP), np.float32),
            addresses=np.zeros((threads, 4, vectors), np.int64),
            reads=np.zeros((threads, MOST_QUERIES, shape.value_size), np.float32),
            dots=np.zeros((threads, 3, 4 * STEP + 1), np.float32),
            state=np.zeros((threads, shape.key_size, shape.value_size), np.float32),
            places=np.zeros((threads, STEP), np.int32),
        ),
    )
