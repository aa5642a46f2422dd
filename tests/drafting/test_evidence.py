"""What the databases know of the next token, against a search in plain Python."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hierchat.drafting.growing.evidence import MOST_VOTES
from hierchat.drafting.growing.kernel_arrays import (
    BREAK,
    CANDIDATES,
    CLOSE,
    CONTEXT,
    CORPUS,
    HISTORY,
    KNOWN,
    MAX_MATCH,
    NODES,
    SAMPLES,
    SEED,
    SEEN,
    SLOTS,
    SUCCESSORS,
    VISITS,
    Known,
    Places,
    Seen,
)
from hierchat.drafting.source import Source
from hierchat.drafting.suffix_index import SuffixIndex, suffix_order
from tests.drafting.databases import World, at_the_edge, followers, source, worlds

Row = tuple[NDArray[np.float32], dict[int, NDArray[np.float32]]]


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens at their ends are the same, MAX_MATCH at most."""
    size = 0
    while size < min(len(a), len(b), MAX_MATCH) and a[-1 - size] == b[-1 - size]:
        size += 1
    return size


class Plain:
    """The definition of a row."""

    def __init__(self, world: World, text: Sequence[int]) -> None:
        self.known = np.zeros((SLOTS, KNOWN), np.float32)
        self.seen: dict[int, NDArray[np.float32]] = {}
        self.text = list(text)
        self.look_back(list(world.context))
        for slot in range(1, SLOTS):
            if slot == SUCCESSORS:
                self.look_up(world)
            else:
                self.look_through(slot, [source for source in world.sources if source.slot == slot])

    def of(self, token: int) -> NDArray[np.float32]:
        return self.seen.setdefault(token, np.zeros((SLOTS, SEEN), np.float32))

    def hear(self, slot: int, found: Sequence[tuple[int, int]]) -> None:
        """Lengths and tokens, the newest of the longest first."""
        for rank, (length, token) in enumerate(found):
            one, all_ = self.of(token)[slot], self.known[slot]
            vote = 2 ** (min(length, MOST_VOTES) - 1)
            one[Seen.COUNT], all_[Known.OCCURRENCES] = one[Seen.COUNT] + 1, all_[Known.OCCURRENCES] + 1
            one[Seen.VOTES], all_[Known.VOTES] = one[Seen.VOTES] + vote, all_[Known.VOTES] + vote
            one[Seen.LENGTH], all_[Known.LONGEST] = (
                max(one[Seen.LENGTH], length),
                max(all_[Known.LONGEST], length),
            )
            one[Seen.NEWEST] = one[Seen.NEWEST] or rank == 0

    def count(self, slot: int, sampled: Sequence[int], suffix: int, population: int) -> None:
        if sampled:
            self.known[slot, [Known.SUFFIX, Known.SAMPLE, Known.POPULATION]] = (
                suffix,
                len(sampled),
                population,
            )
        for token, count in Counter(sampled).items():
            if count > 1 or token in self.seen:
                self.of(token)[slot, Seen.SAMPLED] = count

    def look_back(self, context: list[int]) -> None:
        visits = [at for at in reversed(range(len(context))) if context[at] == self.text[-1]][:VISITS]
        found = [
            (common(context[: at + 1], self.text), context[at + 1]) for at in visits if at + 1 < len(context)
        ]
        self.hear(CONTEXT, sorted(found, key=lambda one: -one[0])[:CLOSE])
        self.count(CONTEXT, [token for _, token in found], 1, len(found))

    def look_through(self, slot: int, sources: Sequence[Source]) -> None:
        logs = [source.index.arrays.tokens.tolist() for source in sources]
        orders = [source.index.arrays.order.tolist() for source in sources]
        bounds = [
            (number, start, size)
            for number, source in enumerate(sources)
            for start, size in zip(*source.index.arrays[2:], strict=True)
        ]

        def ends(size: int) -> list[tuple[int, int]]:
            """Where what follows the last `size` tokens stands: log and position, run by run in order."""
            wanted = self.text[len(self.text) - size :]
            return [
                (number, at + size)
                for number, start, many in bounds
                for at in orders[number][start : start + many]
                if logs[number][at : at + size] == wanted
            ]

        def follows(place: tuple[int, int]) -> int:
            number, at = place
            return logs[number][at] if at < len(logs[number]) else BREAK

        sizes = range(1, min(MAX_MATCH, len(self.text)) + 1)
        suffix = max((size for size in sizes if len(ends(size)) > CLOSE), default=0)
        close = [
            place for place in (ends(suffix + 1) if suffix + 1 in sizes else []) if follows(place) != BREAK
        ]
        found = [(common(logs[number][:at], self.text), (number, at)) for number, at in close]
        self.hear(slot, [(length, follows(place)) for length, place in sorted(found, reverse=True)])
        if suffix:
            population = ends(suffix)
            some = min(len(population), SAMPLES)
            sampled = [follows(population[(2 * j + 1) * len(population) // (2 * some)]) for j in range(some)]
            self.count(slot, [token for token in sampled if token != BREAK], suffix, len(population))

    def look_up(self, world: World) -> None:
        pair = followers(world.successors, *self.text[-2:]) if len(self.text) > 1 else []
        single = followers(world.successors, self.text[-1])
        self.known[SUCCESSORS, :2] = bool(pair), bool(single)
        for rank, token in enumerate(pair):
            self.of(token)[SUCCESSORS, :2] = 1, np.log(1 + rank)
        for rank, token in enumerate(single[:4]):
            self.of(token)[SUCCESSORS, 2:4] = 1, np.log(1 + rank)


def row(places: Places, place: int) -> Row:
    tokens = places.tokens[place, : places.candidates[place]].tolist()
    assert len(set(tokens)) == len(tokens)
    return places.known[place], dict(zip(tokens, places.seen[place], strict=False))


def same(found: Row, wanted: Row) -> None:
    np.testing.assert_allclose(found[0][:, : Known.RECENT], wanted[0][:, : Known.RECENT], rtol=1e-6)
    assert found[1].keys() == wanted[1].keys()
    for token, seen in wanted[1].items():
        np.testing.assert_allclose(found[1][token], seen, rtol=1e-6)


def all_as_defined(world: World, path: Sequence[int]) -> None:
    """Everywhere along a path: found among what the place before found, and found anew."""
    known = world.databases()
    child, anew = world.along(path, known), world.along(path, known, anew=True)
    for place in range(len(path) + 1):
        plain = Plain(world, [*world.context, *path[:place]])
        same(row(anew, place), (plain.known, plain.seen))
        same(row(child, place), (plain.known, plain.seen))


@settings(max_examples=40)
@given(world=worlds, path=st.lists(st.integers(0, 3), max_size=6), times=st.integers(1, 12))
def test_it_is_what_a_plain_search_finds(world: World, path: list[int], times: int) -> None:
    all_as_defined(world, (path * times)[:40])


@pytest.mark.parametrize("ending", [[], [BREAK]])
def test_nothing_is_read_beyond_the_log(ending: list[int]) -> None:
    """The occurrence behind 0 is looked at to its end, the others go on."""
    log = np.array([*[*range(1, 8), BREAK] * 20, 0, 1, 2, 3, 4, *ending], np.int32)
    index = SuffixIndex.from_sorted(at_the_edge(log), at_the_edge(suffix_order(log)))
    all_as_defined(World([7, 0, 1, 2], [Source(HISTORY, index)]), [3, 4, 5, 6, 7])


def test_no_more_candidates_than_there_is_room_for() -> None:
    sources = [source(slot, [[7, slot * 100 + i] for i in range(CLOSE)]) for slot in (HISTORY, SEED, CORPUS)]
    places = World([7], sources).along([])
    assert len(row(places, 0)[1]) == CANDIDATES
    assert places.known[0, :, Known.OCCURRENCES].tolist() == [0, CLOSE, 0, 0, CLOSE, CLOSE]


@settings(max_examples=30)
@given(
    kept=st.lists(st.lists(st.integers(0, 2), max_size=40), max_size=3),
    gone=st.lists(st.lists(st.integers(0, 5), max_size=40), min_size=1, max_size=3),
    context=st.lists(st.integers(0, 5), min_size=1, max_size=20),
)
def test_nothing_is_known_of_what_was_removed(
    kept: list[list[int]], gone: list[list[int]], context: list[int]
) -> None:
    index = SuffixIndex()
    index.extend(kept)
    starts = [index.append(text) for text in gone]
    index.append([0, 1])
    index.remove(zip(starts, map(len, gone), strict=True))
    path = context[:NODES]
    found = World(context, [Source(HISTORY, index)]).along(path)
    fresh = World(context, [source(HISTORY, [*kept, [0, 1]])]).along(path)
    for place in range(len(path) + 1):
        after, never = row(found, place), row(fresh, place)
        np.testing.assert_array_equal(after[0], never[0])
        assert after[1].keys() == never[1].keys()
