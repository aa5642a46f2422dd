"""The draft tree: what it holds, in what order, and how large it grows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hierchat.drafting.acceptance import chosen, fitted
from hierchat.drafting.drafter import Drafter, in_order
from hierchat.drafting.growing.grow import TAIL, grow, score
from hierchat.drafting.growing.kernel_arrays import (
    CONTEXT,
    COUNT,
    HISTORY,
    MAX_MATCH,
    NODES,
    RECENT,
    SAMPLED,
    SLOTS,
    SOURCES,
    SUCCESSORS,
    Prices,
    Scorer,
    make_growth,
)
from tests.drafting.databases import World, source, worlds

PATIENT = settings(deadline=None, max_examples=40)
RECENTLY = np.full(SLOTS, 0.3, np.float32)

Path = tuple[int, ...]


class Node(NamedTuple):
    path: Path
    slot: int
    chance: float
    """That it and all above it are accepted."""


def grown(
    world: World,
    limit: int,
    extra: Sequence[float] = (0.0,) * (NODES + 1),
    onward: Sequence[float] = (0.0,) * NODES,
    lookup: float = 0.0,
) -> list[Node]:
    """Of all rows free and a token worth a millisecond, unless costs are given."""
    known = world.databases()
    growth = make_growth(len(known.runs))
    tree = growth.tree
    scorer = Scorer(fitted(), chosen(None).noise, RECENTLY)
    prices = Prices(limit, np.array(extra, float), np.array(onward, float), 1.0, lookup)
    size, looked = grow(known, growth, scorer, prices, known.tokens[-TAIL:])
    assert 0 <= size <= limit
    assert 1 <= looked <= limit + 1
    nodes: list[Node] = []
    for i in range(size):
        parent = tree.parents[i]
        assert -1 <= parent < i
        above = nodes[parent].path if parent >= 0 else ()
        nodes.append(Node((*above, int(tree.tokens[i])), int(tree.slots[i]), float(tree.paths[i])))
    return nodes


@PATIENT
@given(world=worlds, limit=st.integers(1, NODES))
def test_the_likeliest_nodes_are_taken(world: World, limit: int) -> None:
    nodes = grown(world, limit)
    taken = {node.path: node for node in nodes}
    assert len(taken) == len(nodes)
    assert [node.chance for node in nodes] == sorted((node.chance for node in nodes), reverse=True)
    left = 0.0
    for path in [(), *taken]:
        places = world.along(path, anew=True)
        places.known[-NODES - 1 :, :, RECENT] = RECENTLY
        place = len(path)
        score(places, place, fitted(), chosen(None).noise.noise_weight)
        above = taken[path].chance if path else 1.0
        for i in range(places.candidates[place]):
            child, chance = (*path, int(places.tokens[place, i])), above * places.chances[place, i]
            if node := taken.get(child):
                assert node.chance == pytest.approx(chance, rel=1e-4)
                seen = places.seen[place, i]
                names = (seen[:, COUNT] > 0) | (seen[:, SAMPLED] > 0)
                names[SUCCESSORS] = seen[SUCCESSORS, 0] > 0 or seen[SUCCESSORS, 2] > 0
                assert node.slot == names.argmax()
                assert names.any()
            else:
                left = max(left, chance)
    if nodes:
        assert nodes[-1].chance >= left * (1 - 1e-4)
    assert len(nodes) == limit or left == pytest.approx(0)


@PATIENT
@given(world=worlds, limit=st.integers(1, NODES))
def test_a_draft_tells_where_it_was_found(world: World, limit: int) -> None:
    """At that place stand the tokens before it and itself, and it is of the slot that the draft is credited to."""
    sources = in_order(world.sources)
    drafter = Drafter(sources, width=limit + 1, successors=world.successors)
    drafter.begin(world.context)
    tree = drafter.propose()
    assert len(tree.matches) == len(tree)
    paths: list[list[int]] = []
    for node, (slot, length, database, position) in enumerate(tree.matches):
        above = paths[tree.parents[node]] if tree.parents[node] >= 0 else list(world.context)
        paths.append([*above, tree.tokens[node]])
        assert tree.sources[node] == SOURCES[slot] or (slot, tree.sources[node]) == (SUCCESSORS, "context")
        assert 1 <= length <= MAX_MATCH
        if slot == SUCCESSORS:
            assert (database, position) == (-1, -1)
            continue
        if position < 0:
            assert slot == CONTEXT, "all but the context say where"
            assert length == 1
            continue
        assert (database < 0) == (slot == CONTEXT)
        log = list(world.context) if database < 0 else sources[database].index.arrays.tokens.tolist()
        assert database < 0 or sources[database].slot == slot
        assert position >= length
        assert log[position - length : position + 1] == paths[node][-length - 1 :]


@cache
def busy() -> World:
    random = np.random.default_rng(0)
    return World(
        random.integers(0, 4, 200).tolist(), [source(HISTORY, [random.integers(0, 4, 200).tolist()])]
    )


def test_what_does_not_pay_is_not_drafted() -> None:
    free = grown(busy(), NODES)
    assert len(free) == NODES
    assert not grown(busy(), NODES, onward=[1.0] * NODES)
    assert not grown(busy(), NODES, extra=range(NODES + 1))
    cost = free[9].chance
    assert grown(busy(), NODES, [rows * cost for rows in range(NODES + 1)], [cost] * NODES) == free[:9]


def test_others_are_asked_only_where_it_can_pay() -> None:
    history = [source(HISTORY, [[1, 2, 9]])]
    silent, speaking = World([1, 2], history), World([1, 2, 3, 1, 2], history)
    assert [node.slot for node in grown(silent, 1, lookup=10.0)] == [HISTORY]
    assert {node.slot for node in grown(speaking, 1, lookup=10.0)} == {CONTEXT}
    assert {node.path for node in grown(speaking, 12, lookup=0.0)} >= {(3,), (9,)}
    assert (9,) not in {node.path for node in grown(speaking, 12, lookup=10.0)}
