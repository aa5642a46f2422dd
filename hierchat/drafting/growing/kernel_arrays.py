"""What the kernels read and write: plain arrays in named tuples, as the compiler needs them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
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

# Of one candidate in one slot:
LENGTH, COUNT, VOTES, NEWEST, SAMPLED = range(5)
# Of one slot at one place: the longest match, occurrences looked at and their votes, the shorter suffix, what was
# sampled of it and its occurrences, how often the slot's first choice was right of late
LONGEST, OCCURRENCES, ALL_VOTES, SUFFIX, SAMPLE, POPULATION, RECENT = range(7)
SEEN, KNOWN = 5, 7

INPUTS = 14
"""What the acceptance model reads of a candidate, per slot."""
HIDDEN = 32

# Columns of a run of a sorted index
RUN_SLOT, RUN_TOKENS, RUN_LENGTH, RUN_ORDER, RUN_SIZE = range(5)


class Databases(NamedTuple):
    """What is known. `runs` int64 [runs, 5]: slot, address and length of the token log, address and length of the
    order. The context is `tokens` [0, length) with chains through the occurrences of each token: `previous` for every
    position, `newest` for every token id. `single` [vocabulary, 8] and `pair_keys` [n], `pairs` [n, 8]: likeliest next
    tokens behind one and two tokens."""

    runs: Integers
    tokens: Tokens
    previous: Tokens
    newest: Tokens
    single: Tokens
    pair_keys: Integers
    pairs: Tokens


class Tree(NamedTuple):
    """The nodes of a tree in the order in which they were chosen; parents -1: behind the committed text."""

    tokens: Tokens
    parents: Integers
    slots: Integers
    paths: NDArray[np.float64]
    """Estimated probability that the node and all above it are accepted."""
    lengths: Integers
    """How many tokens before the node matched, in its slot."""
    runs: Integers
    """The run that holds them; -1: the context, or no text."""
    positions: Integers
    """Where in that run's token log, or in the context, the node's own token stands; -1: nowhere."""


class AcceptanceModel(NamedTuple):
    """What turns evidence into chances. A layer of HIDDEN units reads the evidence of all slots. A linear score reads
    the units and the evidence, for each candidate and for "none of them". The chances are the softmax of the scores.

    The hidden layers are fixed. `score` [HIDDEN + SLOTS * INPUTS + 1] and `none` [HIDDEN + 1] go on learning."""

    inputs: Floats
    """[SLOTS * INPUTS, HIDDEN]"""
    surroundings: Floats
    """[SLOTS * KNOWN, HIDDEN]"""
    bias: Floats
    """[HIDDEN]"""
    none_inputs: Floats
    """[SLOTS * KNOWN, HIDDEN]"""
    none_bias: Floats
    """[HIDDEN]"""
    score: Floats
    none: Floats


class SamplingNoise(NamedTuple):
    """What a reply's settings say of how its tokens are chosen."""

    key: np.uint64
    """noise.reply_key of the seed; 0: the likeliest token is chosen, or nothing is known of the noise."""
    noise_weight: Floats
    """[HIDDEN + SLOTS * INPUTS + 1]: what the noise of a candidate is worth, by what the acceptance model reads of
    it."""


class Places(NamedTuple):
    """One row per place that was looked at: 0 is behind the committed text, i + 1 behind node i of the tree."""

    candidates: Integers
    """[places]: candidates"""
    keys: NDArray[np.uint64]
    """[places]: noise.place_key; 0: no noise is known"""
    noise: Floats
    """[places, CANDIDATES]: each one's noise, where there is a key"""
    tokens: Tokens
    """[places, CANDIDATES]"""
    seen: Floats
    """[places, CANDIDATES, SLOTS, SEEN]"""
    known: Floats
    """[places, SLOTS, KNOWN]"""
    chances: Floats
    """[places, CANDIDATES]"""
    inputs: Floats
    """[places, CANDIDATES, SLOTS * INPUTS]: what the acceptance model read,"""
    hidden: Floats
    """[places, CANDIDATES, HIDDEN]: and made of it"""
    none: Floats
    """[places, HIDDEN]"""
    ranked: Integers
    """[places, CANDIDATES]: the candidates from the likeliest on"""
    suffix: Integers
    """[places, SLOTS]: length of the suffix that is sampled"""
    low: Integers
    """[places, runs]: its occurrences in the order"""
    high: Integers
    close: Integers
    """[places, SLOTS]: number of occurrences looked at one by one"""
    close_run: Integers
    """[places, SLOTS, CLOSE]"""
    close_end: Integers
    """[places, SLOTS, CLOSE]: where in the token log the next token stands"""
    close_length: Integers


def make_places(runs: int) -> Places:
    """Room for one tree over so many runs."""
    places, slots = NODES + 1, SLOTS

    def integers(*shape: int) -> Integers:
        return np.zeros((places, *shape), np.int64)

    return Places(
        candidates=integers(),
        keys=np.zeros(places, np.uint64),
        noise=np.zeros((places, CANDIDATES), np.float32),
        tokens=np.zeros((places, CANDIDATES), np.int32),
        seen=np.zeros((places, CANDIDATES, slots, SEEN), np.float32),
        known=np.zeros((places, slots, KNOWN), np.float32),
        chances=np.zeros((places, CANDIDATES), np.float32),
        inputs=np.zeros((places, CANDIDATES, slots * INPUTS), np.float32),
        hidden=np.zeros((places, CANDIDATES, HIDDEN), np.float32),
        none=np.zeros((places, HIDDEN), np.float32),
        ranked=integers(CANDIDATES),
        suffix=integers(slots),
        low=integers(runs),
        high=integers(runs),
        close=integers(slots),
        close_run=integers(slots, CLOSE),
        close_end=integers(slots, CLOSE),
        close_length=integers(slots, CLOSE),
    )


def make_tree() -> Tree:
    def integers() -> Integers:
        return np.zeros(NODES, np.int64)

    return Tree(
        tokens=np.zeros(NODES, np.int32),
        parents=integers(),
        slots=integers(),
        paths=np.zeros(NODES),
        lengths=integers(),
        runs=integers(),
        positions=integers(),
    )
