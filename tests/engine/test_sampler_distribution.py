"""Many draws of each processor against the exact distribution.

Seeds are fixed, so that a right sampler either always passes or never does.
"""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from hierchat.config import GenerationSettings
from hierchat.drafting.growing.gumbel import (
    WIDTH,
    earliest,
    gumbel,
    gumbel_of_first,
    gumbel_of_one,
    members,
    stream,
)
from hierchat.engine.sampling.sampler import Counts, choose

Array = np.ndarray
DRAWS = 6_000
RIGHT = 1e-3
"""A right sampler's p-value lies above it."""
LOGITS = np.random.default_rng(5).normal(0, 1.5, 12).astype(np.float32)
PROMPT, REPLY = [0, 3, 3], [1, 1, 1, 4]
PENALTIES = {"repetition_penalty": 1.5, "presence_penalty": 0.3, "frequency_penalty": 0.2}
ALONE: dict[str, dict[str, object]] = {
    "temperature": {"temperature": 0.6},
    "top-k": {"top_k": 5},
    "top-p": {"top_p": 0.8},
    "min-p": {"min_p": 0.1},
    "repetition": {"repetition_penalty": 1.5},
    "presence": {"presence_penalty": 0.9},
    "frequency": {"frequency_penalty": 0.4},
    "bias": {"logit_bias": {2: 1.5, 7: -2.0}},
}
TOGETHER: dict[str, dict[str, object]] = {
    "temperature, top-p": {"temperature": 0.7, "top_p": 0.9},
    "temperature, top-k, top-p": {"temperature": 1.6, "top_k": 7, "top_p": 0.85},
    "all": {
        "temperature": 1.4,
        "top_k": 9,
        "top_p": 0.95,
        "min_p": 0.02,
        "logit_bias": {2: 1.0},
        **PENALTIES,
    },
}


def made(kind: dict[str, object]) -> GenerationSettings:
    return GenerationSettings(**{"temperature": 1.0, **kind})  # type: ignore[arg-type]


def softmax(row: Array) -> Array:
    weights = np.exp(row - row.max())
    return weights / weights.sum()


def nucleus(chances: Array, top_p: float) -> Array:
    """Which tokens are in the smallest set of the likeliest that reaches top_p."""
    order = np.argsort(-chances, kind="stable")
    reached_before = np.concatenate(([0.0], np.cumsum(chances[order])[:-1]))
    inside = np.zeros(len(chances), bool)
    inside[order[reached_before < top_p]] = True
    return inside


def exact(
    logits: Array, settings: GenerationSettings, prompt: Sequence[int] = PROMPT, reply: Sequence[int] = REPLY
) -> Array:
    """The distribution that the settings describe, after a prompt and a reply so far."""
    row = logits.astype(np.float64)
    said = np.bincount(reply, minlength=len(row))
    for token in {*prompt, *reply}:
        row[token] *= 1 / settings.repetition_penalty if row[token] > 0 else settings.repetition_penalty
    row -= settings.frequency_penalty * said
    row -= settings.presence_penalty * (said > 0)
    for token, bias in settings.logit_bias.items():
        row[token] += bias
    chances = softmax(row / settings.temperature)
    if settings.top_k:
        chances[chances < np.sort(chances)[-settings.top_k]] = 0
        chances /= chances.sum()
    chances[~nucleus(chances, settings.top_p)] = 0
    chances[chances < settings.min_p * chances.max()] = 0
    return chances / chances.sum()


def tail(statistic: float, degrees: int) -> float:
    """Probability that chi-squared of so many degrees of freedom exceeds the statistic (A&S 26.4.4-5)."""
    half, at = statistic / 2, (degrees % 2) / 2
    chance = math.erfc(math.sqrt(half)) if degrees % 2 else 0.0
    while at < degrees / 2:
        chance += math.exp(at * math.log(half) - half - math.lgamma(at + 1)) if half else float(at == 0)
        at += 1
    return chance


def p_value(observed: Array, chances: Array) -> float:
    """Of counts under a distribution; 0 where something came that cannot."""
    if observed[chances == 0].any():
        return 0.0
    expected, observed = (chances * observed.sum())[chances > 0], observed[chances > 0]
    if (rare := expected < 5).any():  # below it the statistic is not chi-squared
        expected = np.append(expected[~rare], max(expected[rare].sum(), 1e-9))
        observed = np.append(observed[~rare], observed[rare].sum())
    return tail(float(((observed - expected) ** 2 / expected).sum()), len(expected) - 1)


def fit(draws: Array, chances: Array) -> float:
    return p_value(np.bincount(draws, minlength=len(chances)), chances)


def pairs_fit(first: Array, second: Array, chances: Array) -> float:
    """Whether both have this distribution and neither tells anything of the other."""
    return fit(first * len(chances) + second, np.outer(chances, chances).ravel())


def drawn(kind: dict[str, object], along: str) -> Array:
    settings, counts = made(kind), Counts(PROMPT, REPLY)
    if along == "positions":
        return np.array([choose(LOGITS, at, 7, settings, counts) for at in range(DRAWS)])
    return np.array([choose(LOGITS, 300, at, settings, counts) for at in range(DRAWS)])


@pytest.mark.parametrize("name", [*ALONE, *TOGETHER])
def test_draws_have_the_exact_distribution(name: str) -> None:
    """Those of each processor over positions, those of combinations over seeds."""
    kind = {**ALONE, **TOGETHER}[name]
    draws = drawn(kind, "positions" if name in ALONE else "seeds")
    assert fit(draws, exact(LOGITS, made(kind))) > RIGHT


CELLS = 20


def cells(noise: Array) -> Array:
    """Noise as cells of equal probability."""
    return (np.exp(-np.exp(-noise)) * CELLS).astype(np.int64)


EVEN = np.full(CELLS, 1 / CELLS)


def test_noise_is_gumbel_and_independent() -> None:
    """Across the members of a block, across blocks, positions and seeds: 2^19 numbers each."""
    blocks = members(np.arange(16 * WIDTH))
    here = cells(gumbel(stream(1, 2), blocks.ravel())).reshape(blocks.shape)
    assert fit(here.ravel(), EVEN) > RIGHT
    assert pairs_fit(here[:, ::2].ravel(), here[:, 1::2].ravel(), EVEN) > RIGHT
    assert pairs_fit(here[:, :32].ravel(), here[:, 32:].ravel(), EVEN) > RIGHT
    assert pairs_fit(here[::2].ravel(), here[1::2].ravel(), EVEN) > RIGHT
    for seed, position in [(1, 3), (2, 2), (2, 1), (1, 2 + 2**20), (2**62, 2)]:
        there = cells(gumbel(stream(seed, position), blocks.ravel()))
        assert pairs_fit(here.ravel(), there, EVEN) > RIGHT


def test_the_largest_noise_of_a_block_is_known_beforehand() -> None:
    key, blocks = stream(5, 6), np.arange(40 * WIDTH)
    tokens = members(blocks)
    noise = gumbel(key, tokens.ravel()).reshape(tokens.shape)
    largest, leaders = earliest(key, blocks)
    assert np.array_equal(noise.max(axis=1), largest)
    assert np.array_equal(tokens[blocks, noise.argmax(axis=1)], leaders)
    assert fit(noise.argmax(axis=1), np.full(64, 1 / 64)) > RIGHT
    assert fit(cells(largest - np.log(64)), EVEN) > RIGHT
    assert np.array_equal(gumbel_of_first(key, 5000), gumbel(key, np.arange(5000)))
    for token in (0, 7, int(leaders[9]), 40_000):
        assert gumbel_of_one(key, token) == pytest.approx(gumbel(key, np.array([token]))[0], abs=1e-12)
