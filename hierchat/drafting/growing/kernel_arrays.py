"""Define what the kernels read and write: plain arrays in named tuples, as the compiler needs them."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]
Tokens = NDArray[np.int32]

# Slots: databases with weights of their own, from the highest to the lowest locality.
CONTEXT, HISTORY, PROMPTS, SUCCESSORS, SEED, CORPUS = range(6)
SLOTS = 6
SOURCES = ("context", "history", "history", "history", "statistics", "statistics")
"""The source that each slot belongs to."""
SLOT_NAMES = ("context", "history", "prompts", "successors", "seed", "corpus")
"""As the store keeps them."""

BREAK = -1
"""Stands between texts: matches and continuations end there."""
MAX_MATCH = 32
CLOSE = 16
"""Occurrences that are looked at one by one: those of the longest suffix that has no more than these."""
SAMPLES = 32
"""Occurrences of the next shorter suffix that are counted, evenly spread in the order."""
VISITS = 128
"""Occurrences of the last token in the context that are looked at, newest first."""
CANDIDATES = 24
"""Tokens that are scored at one place, at most."""
NODES = 64
"""Places that are looked at for one tree, at most."""

Seen = IntEnum("Seen", "LENGTH COUNT VOTES NEWEST SAMPLED", start=0)
"""What is seen of one candidate in one slot."""
Known = IntEnum("Known", "LONGEST OCCURRENCES VOTES SUFFIX SAMPLE POPULATION RECENT", start=0)
"""What is known of one slot at one place: the longest match, occurrences looked at and their votes, the shorter suffix,
what was sampled of it and its occurrences, how often the slot's first choice was right of late."""
SEEN, KNOWN = len(Seen), len(Known)

INPUTS = 14
"""What the acceptance model reads of a candidate, per slot."""
HIDDEN = 32

Run = IntEnum("Run", "SLOT TOKENS LENGTH ORDER SIZE", start=0)
"""Columns of a run of a sorted index."""


class Databases(NamedTuple):
    """Databases of drafts. `runs` int64 [runs, 5]: slot, address and length of the token log, address and length of the
    order. The context is `tokens` [0, length), linked by `previous` and `newest`. `single` [vocabulary, 8] and
    `pair_keys` [n], `pairs` [n, 8]: likeliest next tokens after one and two tokens."""

    runs: Integers
    tokens: Tokens
    previous: Tokens
    newest: Tokens
    single: Tokens
    pair_keys: Integers
    pairs: Tokens


class Tree(NamedTuple):
    """Nodes of a tree in the order in which they were chosen; parents -1: behind the committed text."""

    tokens: Tokens
    parents: Integers
    slots: Integers
    credits: Integers
    """The slot that each node counts for."""
    paths: NDArray[np.float64]
    """Estimated probability that the node and all above it are accepted."""
    lengths: Integers
    """How many tokens before the node matched, in its slot."""
    runs: Integers
    """The run that holds them; -1: the context, or no text."""
    positions: Integers
    """Where in that run's token log, or in the context, the node's own token stands; -1: nowhere."""


class AcceptanceModel(NamedTuple):
    """Weights that turn evidence into chances: a fixed hidden layer of HIDDEN units, and linear scores of each
    candidate and of "none of them", which go on learning."""

    inputs: Floats  # [SLOTS * INPUTS, HIDDEN]
    surroundings: Floats  # [SLOTS * KNOWN, HIDDEN]
    bias: Floats  # [HIDDEN]
    none_inputs: Floats  # [SLOTS * KNOWN, HIDDEN]
    none_bias: Floats  # [HIDDEN]
    score: Floats  # [HIDDEN + SLOTS * INPUTS + 1]
    none: Floats  # [HIDDEN + 1]


class SamplingNoise(NamedTuple):
    """Noise and settings by which a reply's tokens are chosen."""

    key: np.uint64
    """reply_key of the seed; 0: the likeliest token is chosen, or nothing is known of the noise."""
    noise_weight: Floats
    """[HIDDEN + SLOTS * INPUTS + 1]: worth of a candidate's noise by what the acceptance model reads of it."""


class Places(NamedTuple):
    """Places that were looked at, a row for each: 0 is behind the committed text, i + 1 behind node i of the tree."""

    candidates: Integers  # [places]: how many
    keys: NDArray[np.uint64]  # [places]: place_key; 0: no noise is known
    noise: Floats  # [places, CANDIDATES], where there is a key
    tokens: Tokens  # [places, CANDIDATES]
    seen: Floats  # [places, CANDIDATES, SLOTS, SEEN]
    known: Floats  # [places, SLOTS, KNOWN]
    chances: Floats  # [places, CANDIDATES]
    inputs: Floats  # [places, CANDIDATES, SLOTS * INPUTS]: what the acceptance model read
    hidden: Floats  # [places, CANDIDATES, HIDDEN]: what it made of that
    none: Floats  # [places, HIDDEN]
    ranked: Integers  # [places, CANDIDATES]: the candidates from the likeliest on
    suffix: Integers  # [places, SLOTS]: length of the suffix that is sampled
    bounds: Integers  # [places, runs, 2]: its occurrences in each order, from and to
    close: Integers  # [places, SLOTS]: number of occurrences looked at one by one
    close_run: Integers  # [places, SLOTS, CLOSE]
    close_end: Integers  # [places, SLOTS, CLOSE]: where in the token log the next token stands
    close_length: Integers  # [places, SLOTS, CLOSE]


class Lookup(NamedTuple):
    """Place to be looked at: the row of `places` behind `text`, in which path and tail of the context stand."""

    databases: Databases
    places: Places
    place: int
    text: Tokens


class Growth(NamedTuple):
    """Draft tree that grows, with the places that were looked at for it."""

    places: Places
    tree: Tree
    considered: Integers
    """[NODES + 1]: the row of `places` behind the committed text and behind each node; -1: there was no lookup."""


class Scorer(NamedTuple):
    """Acceptance model and noise that turn the evidence of a reply into chances."""

    model: AcceptanceModel
    noise: SamplingNoise
    recent: Floats
    """[SLOTS]: how often each slot's first choice was right of late."""


class Prices(NamedTuple):
    """Costs and worth of drafts (draft_tree.DraftCost)."""

    most: int
    """Nodes of the tree, at most."""
    extra: NDArray[np.float64]
    """[most + 1]: milliseconds that so many drafts add to a step."""
    onward: NDArray[np.float64]
    """[most]: the least that one more than so many can cost."""
    token_ms: float
    lookup_ms: float
    """Milliseconds of a lookup in all databases, which is left out if the context leaves too little to gain."""


class Lessons(NamedTuple):
    """Arrays that learning from a reply's tokens changes."""

    model: AcceptanceModel
    prior: AcceptanceModel
    """What was fitted, to which the model drifts back."""
    rate: np.float32
    """How far a lesson moves the weights."""
    forget: np.float32
    """Part of the way back to the prior with each lesson."""
    recent: Floats
    recency: np.float32
    """Weight of a token in `recent`."""
    curve: NDArray[np.float64]
    """[SLOTS, bins, 3]: see Acceptance.curve."""
    matches: NDArray[np.float64]
    """[SLOTS, MAX_MATCH + 1, 2]: see Acceptance.matches."""


def make_growth(runs: int) -> Growth:
    """Make room for one tree over so many runs."""

    def zeros(kind: type[np.generic], *shape: int) -> NDArray[Any]:
        return np.zeros((NODES + 1, *shape), kind)

    places = Places(
        candidates=zeros(np.int64),
        keys=zeros(np.uint64),
        noise=zeros(np.float32, CANDIDATES),
        tokens=zeros(np.int32, CANDIDATES),
        seen=zeros(np.float32, CANDIDATES, SLOTS, SEEN),
        known=zeros(np.float32, SLOTS, KNOWN),
        chances=zeros(np.float32, CANDIDATES),
        inputs=zeros(np.float32, CANDIDATES, SLOTS * INPUTS),
        hidden=zeros(np.float32, CANDIDATES, HIDDEN),
        none=zeros(np.float32, HIDDEN),
        ranked=zeros(np.int64, CANDIDATES),
        suffix=zeros(np.int64, SLOTS),
        bounds=zeros(np.int64, runs, 2),
        close=zeros(np.int64, SLOTS),
        close_run=zeros(np.int64, SLOTS, CLOSE),
        close_end=zeros(np.int64, SLOTS, CLOSE),
        close_length=zeros(np.int64, SLOTS, CLOSE),
    )
    tree = Tree(
        tokens=zeros(np.int32),
        parents=zeros(np.int64),
        slots=zeros(np.int64),
        credits=zeros(np.int64),
        paths=zeros(np.float64),
        lengths=zeros(np.int64),
        runs=zeros(np.int64),
        positions=zeros(np.int64),
    )
    return Growth(places, tree, considered=zeros(np.int64))


@intrinsic
def borrowed(typing: Any, arrays: Any) -> Any:
    """Return the same arrays, or tuples of them, without counting references to them. The caller holds the arrays."""

    def uncounted(context: Any, builder: ir.IRBuilder, kind: Any, value: ir.Value) -> ir.Value:
        if isinstance(kind, types.BaseTuple):
            parts = cgutils.unpack_tuple(builder, value, len(kind.types))
            parts = [uncounted(context, builder, *one) for one in zip(kind.types, parts, strict=True)]
            return context.make_tuple(builder, kind, parts)
        if isinstance(kind, types.Array):
            array = context.make_array(kind)(context, builder, value=value)
            array.meminfo = cgutils.get_null_value(array.meminfo.type)
            array.parent = cgutils.get_null_value(array.parent.type)
            return array._getvalue()
        return value

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> ir.Value:
        return uncounted(context, builder, arrays, arguments[0])

    return arrays(arrays), generate


@intrinsic
def add_scaled(typing: Any, goal: Any, source: Any, factor: Any) -> Any:
    """Add HIDDEN float32 at address `source` times a factor to those at address `goal`, each rounded as written."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> ir.Value:
        kind = ir.VectorType(ir.FloatType(), HIDDEN)
        pointers = [builder.inttoptr(address, kind.as_pointer()) for address in arguments[:2]]
        held, added = (builder.load(pointer, align=4) for pointer in pointers)
        none, places = (
            ir.Constant(kind, ir.Undefined),
            ir.Constant(ir.VectorType(ir.IntType(32), HIDDEN), [0] * HIDDEN),
        )
        one = builder.insert_element(none, arguments[2], ir.Constant(ir.IntType(32), 0))
        factors = builder.shuffle_vector(one, none, places)
        builder.store(builder.fadd(held, builder.fmul(factors, added)), pointers[0], align=4)
        return context.get_dummy_value()

    return types.none(types.int64, types.int64, types.float32), generate
