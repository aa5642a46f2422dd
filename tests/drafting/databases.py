"""Databases small enough to be searched in plain Python, and what the kernels find in them; costs and trees."""

import ctypes
import mmap
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from hierchat.drafting.draft_tree import DraftTree
from hierchat.drafting.drafter import databases, runs_of
from hierchat.drafting.growing.evidence import look_far, look_near
from hierchat.drafting.growing.grow import TAIL
from hierchat.drafting.growing.kernel_arrays import (
    CORPUS,
    HISTORY,
    PROMPTS,
    SEED,
    Databases,
    Lookup,
    Places,
    make_growth,
)
from hierchat.drafting.source import TOP, Context, Source, Successors, find_pair

texts = st.lists(st.integers(0, 2), max_size=80) | st.builds(
    lambda part, times: (part * times)[:100], st.lists(st.integers(0, 2), max_size=6), st.integers(2, 50)
)
"""Few tokens and repetitions: so that there are many matches, and long ones."""


@dataclass
class World:
    """All that is known before a token is to be drafted."""

    context: Sequence[int]
    sources: Sequence[Source] = ()
    successors: Successors = field(default_factory=Successors)

    def databases(self) -> Databases:
        """The context lives as long as its arrays do, the sources as long as this."""
        return databases(runs_of(self.sources), Context(self.context), self.successors)

    def along(self, path: Sequence[int], known: Databases | None = None, *, anew: bool = False) -> Places:
        """Row i: behind the context and i tokens of `path`; found among what the row before found, or anew."""
        known = known or self.databases()
        tail = list(self.context[-TAIL:])
        text = np.array([*tail, *path], np.int32)
        places = make_growth(len(known.runs)).places
        for place in range(len(path) + 1):
            at = Lookup(known, places, place, text[: len(tail) + place])
            look_near(at)
            look_far(at, -1 if anew else place - 1)
        return places


def followers(table: Successors, *tokens: int) -> list[int]:
    """What stands in a table behind one token or two."""
    if len(tokens) == 2:
        slot = find_pair(table.pair_keys, *tokens)
        row = table.pairs[slot] if slot >= 0 else np.empty(0, np.int32)
    else:
        row = table.single[tokens[0]] if tokens[0] < len(table.single) else np.empty(0, np.int32)
    return row[row >= 0].tolist()


def damaged(data: st.DataObject, whole: bytes) -> bytes:
    """Cut these bytes off somewhere, or change one of them."""
    if data.draw(st.booleans()):
        return whole[: data.draw(st.integers(0, len(whole) - 1))]
    wrong = bytearray(whole)
    wrong[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    return bytes(wrong)


class Steps:
    """Milliseconds of a step over 1, 2, ... positions, as a list."""

    def __init__(self, step_ms: Sequence[float]) -> None:
        self._step_ms = step_ms

    def step_ms(self, context: int) -> Sequence[float]:
        return self._step_ms


def paths_of(tree: DraftTree) -> list[tuple[int, ...]]:
    """Each node by the tokens on the way to it."""
    found: list[tuple[int, ...]] = []
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        found.append((*found[parent], token) if parent >= 0 else (token,))
    return found


def at_the_edge(values: NDArray[np.int32]) -> NDArray[np.int32]:
    """A copy that ends where memory ends: to read on is the end of the process."""
    page = mmap.PAGESIZE
    size = -(-values.nbytes // page) * page
    room = mmap.mmap(-1, size + page)
    here = np.frombuffer(room, np.int32)
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(here.ctypes.data + size), page, 0) == 0
    copy = here[size // 4 - values.size : size // 4]
    copy[:] = values
    return copy


def source(slot: int, texts: Sequence[Sequence[int]]) -> Source:
    """Texts that were added one by one: several runs. Behind the log and its order stand numbers that would match."""
    made = Source(slot)
    for text in texts:
        made.add(text)
    made.index._tokens[len(made) :] = 1
    made.index._order[len(made) :] = 0
    return made


def taught(texts: Sequence[Sequence[int]], seed: int) -> Successors:
    """As if the target had written these texts, with successors drawn by lot."""
    made = Successors()
    random = np.random.default_rng(seed)
    for text in texts:
        made.update(
            [-1, *text], np.array([random.permutation(10)[:TOP] for _ in text], np.int32).reshape(-1, TOP)
        )
    return made


slots = st.sampled_from([HISTORY, HISTORY, PROMPTS, SEED, CORPUS])
worlds = st.builds(
    World,
    context=texts.filter(bool),
    sources=st.lists(st.builds(source, slots, st.lists(texts, max_size=4)), max_size=4),
    successors=st.builds(taught, st.lists(texts, max_size=1), st.integers(0, 9)),
)
