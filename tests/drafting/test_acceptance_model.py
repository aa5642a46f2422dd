"""What evidence is worth, against the same in numpy, and what lessons change."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hierchat.drafting.acceptance import Acceptance
from hierchat.drafting.drafter import Drafter
from hierchat.drafting.growing.grow import LEAST, learn, score
from hierchat.drafting.growing.kernel_arrays import (
    ALL_VOTES,
    CORPUS,
    COUNT,
    HISTORY,
    INPUTS,
    KNOWN,
    LENGTH,
    LONGEST,
    NEWEST,
    OCCURRENCES,
    POPULATION,
    RECENT,
    SAMPLE,
    SAMPLED,
    SLOTS,
    SUCCESSORS,
    SUFFIX,
    VOTES,
    AcceptanceModel,
    Places,
)
from hierchat.drafting.source import Source
from tests.drafting.databases import World, source, worlds

Floats = NDArray[np.float64]
NONE = np.zeros(SLOTS, np.float32)
"""No slot was right of late."""


def scored(world: World, model: AcceptanceModel, recent: float = 0.3) -> Places:
    places = world.along([])
    places.known[0, :, RECENT] = recent
    score(places, 0, model, np.zeros_like(model.score))
    return places


def chances(places: Places) -> dict[int, float]:
    count = places.candidates[0]
    return dict(zip(places.tokens[0, :count].tolist(), places.chances[0, :count].tolist(), strict=True))


def read(seen: Floats, known: Floats) -> Floats:
    """What is read of one candidate."""
    x = np.zeros((SLOTS, INPUTS))
    for slot, (x_, one, all_) in enumerate(zip(x, seen, known, strict=True)):
        if slot == SUCCESSORS:
            x_[:4] = one[:4]
            continue
        if one[COUNT]:
            share = one[VOTES] / all_[ALL_VOTES]
            x_[:5] = 1, np.log(one[LENGTH]), np.log(max(share, LEAST)), np.log(one[COUNT]), one[NEWEST]
            x_[8:10] = np.log(1 + all_[OCCURRENCES] - one[COUNT]), share
        elif all_[OCCURRENCES]:
            x_[11:13] = 1, np.log(all_[LONGEST])
        if one[SAMPLED]:
            share = one[SAMPLED] / all_[SAMPLE]
            x_[[5, 6, 7, 10]] = 1, np.log(max(share, LEAST)), all_[SUFFIX] / 4, share
        elif all_[SAMPLE]:
            x_[13] = 1
    return x.ravel()


def read_around(known: Floats) -> Floats:
    """What is read of the place."""
    z = np.zeros((SLOTS, KNOWN))
    for slot, (z_, all_) in enumerate(zip(z, known, strict=True)):
        z_[6] = all_[RECENT]
        if slot == SUCCESSORS:
            z_[:2] = all_[:2]
            continue
        if all_[OCCURRENCES]:
            z_[:3] = 1, np.log(all_[LONGEST]), np.log(all_[OCCURRENCES])
        if all_[POPULATION]:
            z_[3:6] = 1, all_[SUFFIX] / 4, np.log(all_[POPULATION]) / 4
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


@settings(deadline=None, max_examples=60)
@given(world=worlds, recent=st.floats(0, 1), seed=st.integers(0, 99))
def test_chances_are_what_numpy_says(world: World, recent: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    model = Acceptance().model
    model.score[:] += random.normal(0, 0.5, model.score.size)
    model.none[:] += random.normal(0, 0.5, model.none.size)
    places = scored(world, model, recent)
    found = list(chances(places).values())
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
    places = scored(example(), model)
    assert len(chances(places)) == 4
    right = ([*chances(places), 99] if token == 99 else list(chances(places))).index(token)
    before = np.concatenate([model.score, model.none]).astype(float)

    def loss(at: int, step: float) -> float:
        return float(-plainly(places, model, before + step * (np.arange(before.size) == at))[right])

    slope = [(loss(at, 1e-4) - loss(at, -1e-4)) / 2e-4 for at in range(before.size)]
    lessons = acceptance.lessons(NONE)._replace(rate=np.float32(1), forget=np.float32(0))
    assert learn(places, 0, lessons, token) == (right if token != 99 else -1)
    moved = np.concatenate([model.score, model.none]) - before
    # Errors below LEAST are not worth a lesson
    np.testing.assert_allclose(moved, -np.array(slope), rtol=1e-3, atol=10 * float(LEAST))
    assert np.abs(moved).max() > 0.1
    small = before + 0.01 * moved
    assert -plainly(places, model, small)[right] < loss(0, 0)


def test_what_is_not_taught_again_is_forgotten() -> None:
    acceptance = Acceptance()
    model, prior = acceptance.model, acceptance.prior
    places = scored(example(), model)
    lessons = acceptance.lessons(NONE)
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
    calibration = acceptance.calibration()
    for name, often in (("history", 0.8), ("statistics", 0.3)):
        number = sum(many for *_, many in calibration[name])
        estimated = sum(chance * many for chance, _, many in calibration[name]) / number
        share = sum(right * many for _, right, many in calibration[name]) / number
        assert number == 1500
        assert share == pytest.approx(often, abs=0.03)
        assert estimated == pytest.approx(share, abs=0.07)
