"""The draft tree: what it holds, in what order, and how large it grows."""

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hierchat.config import GenerationSettings
from hierchat.drafting.acceptance import FORGET, RATE, RECENT_RATE, Acceptance, chosen, fitted
from hierchat.drafting.draft_tree import DraftTree
from hierchat.drafting.drafter import Drafter
from hierchat.drafting.growing.grow import LEAST, TAIL, grow, learn, score, teach
from hierchat.drafting.growing.gumbel import gumbel as sampler_gumbel
from hierchat.drafting.growing.gumbel import gumbel_of_one, place_key, reply_key, stream
from hierchat.drafting.growing.kept import Kept, addresses, grow_kept, teach_kept
from hierchat.drafting.growing.kernel_arrays import (
    CONTEXT,
    CORPUS,
    HISTORY,
    INPUTS,
    KNOWN,
    NODES,
    SLOTS,
    SUCCESSORS,
    AcceptanceModel,
    Known,
    Lessons,
    Places,
    Prices,
    Scorer,
    Seen,
    make_growth,
)
from hierchat.drafting.source import Source
from tests.drafting.databases import World, source, worlds

PATIENT = settings(max_examples=40)
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
    """Grow with all rows free and a token worth a millisecond, unless costs are given."""
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


def lessons_of(one: Acceptance, recent: NDArray[np.float32]) -> Lessons:
    return Lessons(one.model, one.prior, RATE, FORGET, recent, RECENT_RATE, one.curve, one.matches)


@settings(max_examples=15)
@given(world=worlds, seed=st.none() | st.integers(0, 9))
def test_arrays_by_their_addresses_are_the_arrays(world: World, seed: int | None) -> None:
    known, one, other, recent = (
        world.databases(),
        Acceptance(),
        Acceptance(),
        [RECENTLY.copy(), RECENTLY.copy()],
    )
    noise = chosen(None if seed is None else GenerationSettings(temperature=1.0, seed=seed)).noise
    prices = Prices(8, np.zeros(9), np.zeros(8), 1.0, 0.0)
    growths = [make_growth(len(known.runs)) for _ in range(2)]
    models = (one.model, noise.noise_weight, one.model, one.prior)
    kept = Kept(growths[0], *models, recent[0], one.curve, one.matches)
    words, tail = addresses(kept), known.tokens[-TAIL:]
    scorer = Scorer(other.model, noise, recent[1])
    found = grow_kept(words, noise.key, known, prices, tail)
    assert found == grow(known, growths[1], scorer, prices, tail)
    tokens = growths[1].tree.tokens[: found[0]].copy()
    teach_kept(words, found[0], tokens, RATE, FORGET, RECENT_RATE)
    teach(growths[1], lessons_of(other, recent[1]), found[0], tokens)
    for mine, theirs in ((growths[0].tree, growths[1].tree), (one.model, other.model)):
        assert np.array_equal(
            np.concatenate([*map(np.ravel, mine)]), np.concatenate([*map(np.ravel, theirs)])
        )


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
        places.known[-NODES - 1 :, :, Known.RECENT] = RECENTLY
        place = len(path)
        score(places, place, fitted(), chosen(None).noise.noise_weight)
        above = taken[path].chance if path else 1.0
        for i in range(places.candidates[place]):
            child, chance = (*path, int(places.tokens[place, i])), above * places.chances[place, i]
            if node := taken.get(child):
                assert node.chance == pytest.approx(chance, rel=1e-4)
                seen = places.seen[place, i]
                names = (seen[:, Seen.COUNT] > 0) | (seen[:, Seen.SAMPLED] > 0)
                names[SUCCESSORS] = seen[SUCCESSORS, 0] > 0 or seen[SUCCESSORS, 2] > 0
                assert node.slot == names.argmax()
                assert names.any()
            else:
                left = max(left, chance)
    if nodes:
        assert nodes[-1].chance >= left * (1 - 1e-4)
    assert len(nodes) == limit or left == pytest.approx(0)


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


# What evidence is worth, against the same in numpy, and what lessons change.


Floats = NDArray[np.float64]
NONE = np.zeros(SLOTS, np.float32)
"""No slot was right of late."""


def scored(world: World, model: AcceptanceModel, recent: float = 0.3) -> tuple[Places, dict[int, float]]:
    """A place, and the chance of each of its candidates."""
    places = world.along([])
    places.known[0, :, Known.RECENT] = recent
    score(places, 0, model, np.zeros_like(model.score))
    count = places.candidates[0]
    tokens, chances = places.tokens[0, :count].tolist(), places.chances[0, :count].tolist()
    return places, dict(zip(tokens, chances, strict=True))


def read(seen: Floats, known: Floats) -> Floats:
    """What is read of one candidate."""
    x = np.zeros((SLOTS, INPUTS))
    for slot, (x_, one, all_) in enumerate(zip(x, seen, known, strict=True)):
        if slot == SUCCESSORS:
            x_[:4] = one[:4]
            continue
        if one[Seen.COUNT]:
            share = one[Seen.VOTES] / all_[Known.VOTES]
            x_[:5] = (
                1,
                np.log(one[Seen.LENGTH]),
                np.log(max(share, LEAST)),
                np.log(one[Seen.COUNT]),
                one[Seen.NEWEST],
            )
            x_[8:10] = np.log(1 + all_[Known.OCCURRENCES] - one[Seen.COUNT]), share
        elif all_[Known.OCCURRENCES]:
            x_[11:13] = 1, np.log(all_[Known.LONGEST])
        if one[Seen.SAMPLED]:
            share = one[Seen.SAMPLED] / all_[Known.SAMPLE]
            x_[[5, 6, 7, 10]] = 1, np.log(max(share, LEAST)), all_[Known.SUFFIX] / 4, share
        elif all_[Known.SAMPLE]:
            x_[13] = 1
    return x.ravel()


def read_around(known: Floats) -> Floats:
    """What is read of the place."""
    z = np.zeros((SLOTS, KNOWN))
    for slot, (z_, all_) in enumerate(zip(z, known, strict=True)):
        z_[6] = all_[Known.RECENT]
        if slot == SUCCESSORS:
            z_[:2] = all_[:2]
            continue
        if all_[Known.OCCURRENCES]:
            z_[:3] = 1, np.log(all_[Known.LONGEST]), np.log(all_[Known.OCCURRENCES])
        if all_[Known.POPULATION]:
            z_[3:6] = 1, all_[Known.SUFFIX] / 4, np.log(all_[Known.POPULATION]) / 4
    return z.ravel()


def plainly(places: Places, model: AcceptanceModel, learned: Floats | None = None) -> Floats:
    """The log chances of all candidates and, last, of none; `learned`: other weights, score and none in a row."""
    score, none = np.split(
        np.concatenate([model.score, model.none]) if learned is None else learned, [model.score.size]
    )
    known = places.known[0].astype(float)
    z = read_around(known)
    scores = []
    for i in range(places.candidates[0]):
        x = read(places.seen[0, i].astype(float), known)
        unit = np.maximum(model.bias + z @ model.surroundings + x @ model.inputs, 0)
        scores.append(score @ [*unit, *x, 1])
    scores.append(none @ [*np.maximum(model.none_bias + z @ model.none_inputs, 0), 1])
    return np.array(scores) - np.logaddexp.reduce(scores)


@cache
def example() -> World:
    """A place of which all kinds of sources know something."""
    return World(
        [1, 2, 3, 1, 2, 4, 1, 2],
        [source(HISTORY, [[1, 2, 3], [5, 1, 2, 6]] + [[1, 2, 7]] * 20), source(CORPUS, [[2, 3], [1, 2, 8]])],
    )


@settings(max_examples=60)
@given(world=worlds, recent=st.floats(0, 1), seed=st.integers(0, 99))
def test_chances_are_what_numpy_says(world: World, recent: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    model = Acceptance().model
    model.score[:] += random.normal(0, 0.5, model.score.size)
    model.none[:] += random.normal(0, 0.5, model.none.size)
    places, chances = scored(world, model, recent)
    found = list(chances.values())
    *wanted, none = np.exp(plainly(places, model))
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-6)
    assert all(chance >= 0 for chance in found)
    assert sum(found) + none == pytest.approx(1, abs=1e-3)
    ranked = places.ranked[0, : len(found)].tolist()
    assert sorted(ranked) == list(range(len(found)))
    assert [found[i] for i in ranked] == sorted(found, reverse=True)


@pytest.mark.parametrize("token", [3, 7, 99])
def test_a_lesson_goes_down_the_slope_of_the_loss(token: int) -> None:
    acceptance = Acceptance()
    model = acceptance.model
    places, chances = scored(example(), model)
    assert len(chances) == 4
    right = [*chances, 99].index(token)
    before = np.concatenate([model.score, model.none]).astype(float)

    def loss(at: int, step: float) -> float:
        return float(-plainly(places, model, before + step * (np.arange(before.size) == at))[right])

    slope = [(loss(at, 1e-4) - loss(at, -1e-4)) / 2e-4 for at in range(before.size)]
    lessons = lessons_of(acceptance, NONE)._replace(rate=np.float32(1), forget=np.float32(0))
    assert learn(places, 0, lessons, token) == (right if token != 99 else -1)
    moved = np.concatenate([model.score, model.none]) - before
    # Errors below LEAST are not worth a lesson
    np.testing.assert_allclose(moved, -np.array(slope), rtol=1e-3, atol=10 * float(LEAST))
    assert np.abs(moved).max() > 0.1
    assert -plainly(places, model, before + 0.01 * moved)[right] < loss(0, 0)


def test_what_is_not_taught_again_is_forgotten() -> None:
    acceptance = Acceptance()
    model, prior = acceptance.model, acceptance.prior
    places, _ = scored(example(), model)
    lessons = lessons_of(acceptance, NONE)
    for _ in range(50):
        learn(places, 0, lessons, 3)
    far = np.abs(model.score - prior.score).max()
    for _ in range(3500):
        learn(places, 0, lessons._replace(rate=np.float32(0)), 3)
    assert np.abs(model.score - prior.score).max() == pytest.approx(far / 2, rel=0.05)
    for _ in range(100):
        learn(places, 0, lessons._replace(rate=np.float32(0), forget=np.float32(0.1)), 3)
    np.testing.assert_allclose(model.score, prior.score, atol=1e-4)
    np.testing.assert_allclose(model.none, prior.none, atol=1e-4)


def test_estimates_come_close_to_how_often_they_are_right() -> None:
    """Two sources whose words come true 8 and 3 times out of 10."""
    acceptance, random = Acceptance(), np.random.default_rng(1)
    drafter = Drafter(
        [Source.of([[1, 2, 3, 4]]), Source.of([[5, 6, 7, 8]], CORPUS)], acceptance=acceptance, width=2
    )
    for lesson in range(6000):
        if lesson == 3000:
            acceptance.curve[:] = 0
        prompt, right, often = (([1, 2], 3, 0.8), ([5, 6], 7, 0.3))[lesson % 2]
        drafter.begin(prompt)
        drafter.propose()
        drafter.observe([right if random.random() < often else 99])
    for slot, often in ((HISTORY, 0.8), (CORPUS, 0.3)):
        number, estimated, right = acceptance.curve[slot].sum(axis=0)
        assert number == 1500
        assert right / number == pytest.approx(often, abs=0.03)
        assert estimated / number == pytest.approx(right / number, abs=0.07)


# Drafts that know the sampler's noise: the same noise as the sampler's, and used for the choice of drafts alone.


FOLLOWERS = range(10, 18)
TEXT = [1, 2, 3]


def proposed(settings: GenerationSettings | None, width: int = 2, path: tuple[int, ...] = ()) -> DraftTree:
    """What is drafted behind a text that was followed by each of FOLLOWERS four times."""
    source = Source.of([[*TEXT, follower, 5, follower] for follower in FOLLOWERS for _ in range(4)])
    drafter = Drafter([source], width=width, settings=settings)
    drafter.begin([*TEXT, *path])
    return drafter.propose()


@pytest.mark.parametrize("seed", [0, 1, 2**62 + 12345, 2**63 - 1])
def test_noise_is_the_samplers_noise(seed: int) -> None:
    tokens = np.random.default_rng(seed % 97).integers(0, 200_000, 300)
    reply = np.uint64(reply_key(np.uint64(seed)))
    for position in (0, 1, 77, 8191):
        key = np.uint64(place_key(reply, position))
        assert int(key) == stream(seed, position)
        ours = [gumbel_of_one(key, token) for token in tokens]
        np.testing.assert_allclose(ours, sampler_gumbel(key, tokens), rtol=1e-5, atol=1e-6)


def test_of_equally_likely_drafts_the_luckier_ones_are_chosen() -> None:
    """By the noise of their position."""
    for seed in range(30):
        settings = GenerationSettings(temperature=0.8, seed=seed)
        noise = sampler_gumbel(stream(seed, len(TEXT)), np.array(FOLLOWERS))
        (first,) = proposed(settings).tokens
        assert first == FOLLOWERS[int(noise.argmax())]
        if seed < 10:
            tree = proposed(settings, 12)
            following = [tree.tokens[node] for node, parent in enumerate(tree.parents) if parent == 0]
            assert tree.tokens[0] == first
            assert not following or following[0] == proposed(settings, 2, (first,)).tokens[0]


@pytest.mark.parametrize("flags", [{}, {"temperature": 0.8, "top_k": 1}, {"seed": 7}])
def test_where_the_likeliest_token_is_chosen_drafts_are_as_without_settings(flags: dict[str, Any]) -> None:
    assert proposed(GenerationSettings(**flags), 12) == proposed(None, 12)
