"""The sampler against references written here, and its draws against the exact distribution."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from hierchat.config import GenerationSettings
from hierchat.engine.sampler import BrokenLogits, Counts, choose, gumbel, processed

LOGITS = np.random.default_rng(5).normal(0, 1.5, 12).astype(np.float32)
COUNTS = Counts(prompt=[0, 3, 3], reply=[1, 1, 1, 4])
PENALTIES = {"repetition_penalty": 1.5, "presence_penalty": 0.3, "frequency_penalty": 0.2}
SETTINGS: dict[str, dict[str, object]] = {
    "temperature 1": {"temperature": 1.0},
    "temperature 0.6": {"temperature": 0.6},
    "temperature 3": {"temperature": 3.0},
    "top-k": {"temperature": 1.0, "top_k": 5},
    "top-p": {"temperature": 1.0, "top_p": 0.8},
    "min-p": {"temperature": 1.0, "min_p": 0.1},
    "repetition": {"temperature": 1.0, "repetition_penalty": 1.5},
    "presence": {"temperature": 1.0, "presence_penalty": 0.9},
    "frequency": {"temperature": 1.0, "frequency_penalty": 0.4},
    "bias": {"temperature": 1.0, "logit_bias": {2: 1.5, 7: -2.0}},
    "all": {
        "temperature": 1.4,
        "top_k": 9,
        "top_p": 0.95,
        "min_p": 0.02,
        "logit_bias": {2: 1.0},
        **PENALTIES,
    },
}
# 99.9th percentile of chi-squared, by degrees of freedom
CRITICAL = [
    0,
    10.83,
    13.82,
    16.27,
    18.47,
    20.52,
    22.46,
    24.32,
    26.12,
    27.88,
    29.59,
    31.26,
    32.91,
    34.53,
    36.12,
    37.70,
]
DRAWS = 20_000

Sampler = Callable[[int, int], int]
"""(position, seed) -> token."""


def made(kind: dict[str, object], **more: object) -> GenerationSettings:
    return GenerationSettings(**{**kind, **more})  # type: ignore[arg-type]


def reference(logits: np.ndarray, settings: GenerationSettings, counts: Counts) -> list[float]:
    """Probabilities after all processors, one token at a time and in plain Python."""
    row = [float(logit) for logit in logits]
    for token in range(len(row)):
        said = counts.reply.get(token, 0)
        if said or token in counts.prompt:
            seen = row[token]
            row[token] = (
                seen / settings.repetition_penalty if seen > 0 else seen * settings.repetition_penalty
            )
        row[token] -= settings.presence_penalty * (said > 0) + settings.frequency_penalty * said
        row[token] += settings.logit_bias.get(token, 0.0)
        row[token] /= settings.temperature
    best_first = sorted(range(len(row)), key=lambda token: -row[token])
    kept = best_first[: settings.top_k or len(row)]
    total = sum(math.exp(row[token]) for token in kept)
    nucleus, reached = [], 0.0
    for token in kept:
        if reached >= settings.top_p:
            break
        nucleus.append(token)
        reached += math.exp(row[token]) / total
    kept = [token for token in nucleus if math.exp(row[token] - row[best_first[0]]) >= settings.min_p]
    total = sum(math.exp(row[token]) for token in kept)
    return [math.exp(row[token]) / total if token in kept else 0.0 for token in range(len(row))]


def chi_squared(observed: np.ndarray, expected: np.ndarray) -> tuple[float, int]:
    """(statistic, degrees of freedom); cells that are rarely hit are taken together."""
    assert observed[expected == 0].sum() == 0  # what is excluded never comes
    rare = (expected > 0) & (expected < 5)
    cells = [(observed[i], expected[i]) for i in np.flatnonzero(expected >= 5)]
    if rare.any():
        cells.append((observed[rare].sum(), expected[rare].sum()))
    return sum((o - e) ** 2 / e for o, e in cells), len(cells) - 1


def fits(sampler: Sampler, probabilities: list[float], along: str = "positions") -> bool:
    draws = [sampler(at, 7) if along == "positions" else sampler(3, at) for at in range(DRAWS)]
    observed = np.bincount(draws, minlength=len(probabilities))
    statistic, degrees = chi_squared(observed, np.array(probabilities) * DRAWS)
    return statistic < CRITICAL[degrees]


@pytest.mark.parametrize("kind", SETTINGS.values(), ids=SETTINGS)
def test_draws_have_the_exact_distribution(kind: dict[str, object]) -> None:
    settings = made(kind)
    wanted = reference(LOGITS, settings, COUNTS)
    assert fits(lambda position, seed: choose(LOGITS, position, seed, settings, COUNTS), wanted)


def test_draws_over_seeds_have_it_too() -> None:
    settings = made(SETTINGS["all"])
    wanted = reference(LOGITS, settings, COUNTS)
    assert fits(
        lambda position, seed: choose(LOGITS, position, seed, settings, COUNTS), wanted, along="seeds"
    )


def wrong_temperature(position: int, seed: int) -> int:
    return choose(LOGITS, position, seed, made({"temperature": 1.05}))


def wrong_noise(position: int, seed: int) -> int:
    """Normal noise of Gumbel's variance."""
    noise = np.random.default_rng([seed, position]).normal(0, math.pi / math.sqrt(6), len(LOGITS))
    return int((LOGITS + noise).argmax())


def wrong_redraw(position: int, seed: int) -> int:
    """Takes the best token one time in twenty."""
    token = choose(LOGITS, position, seed, made({"temperature": 1.0}))
    return int(LOGITS.argmax()) if position % 20 == 0 else token


@pytest.mark.parametrize("sampler", [wrong_temperature, wrong_noise, wrong_redraw])
def test_a_wrong_sampler_is_caught(sampler: Sampler) -> None:
    assert not fits(sampler, reference(LOGITS, made({"temperature": 1.0}), Counts()))


def test_neighbouring_positions_are_independent() -> None:
    logits, settings = LOGITS[:4], made({"temperature": 1.0})
    probabilities = np.array(reference(logits, settings, Counts()))
    draws = [choose(logits, position, 11, settings) for position in range(DRAWS)]
    pairs = np.bincount([4 * a + b for a, b in zip(draws[::2], draws[1::2], strict=True)], minlength=16)
    statistic, degrees = chi_squared(pairs, np.outer(probabilities, probabilities).ravel() * DRAWS / 2)
    assert statistic < CRITICAL[degrees]


@pytest.mark.parametrize("kind", SETTINGS.values(), ids=SETTINGS)
def test_processors_equal_the_reference(kind: dict[str, object]) -> None:
    settings = made(kind)
    random = np.random.default_rng(1)
    for _ in range(50):
        logits = random.normal(0, 2, 40).astype(np.float32)
        counts = Counts(random.integers(0, 40, 6).tolist(), random.integers(0, 40, 9).tolist())
        row = processed(logits, settings, counts)
        chances = np.exp(row - row.max())
        wanted = np.array(reference(logits, settings, counts))
        assert np.array_equal(chances > 0, wanted > 0)
        assert np.allclose(chances / chances.sum(), wanted, rtol=1e-9)


def test_greedy_is_the_argmax() -> None:
    random = np.random.default_rng(2)
    for seed in range(50):
        logits = random.normal(size=30).astype(np.float32)
        assert choose(logits, seed, seed, GenerationSettings(top_k=3, top_p=0.5)) == logits.argmax()
    assert choose(np.array([1.0, 5.0, 5.0]), 0, 0, GenerationSettings()) == 1  # the first of equals


def test_greedy_with_penalties_and_bias() -> None:
    logits = np.array([4.0, 3.0, 2.0, -1.0])
    counts = Counts(prompt=[0], reply=[1, 1])
    assert choose(logits, 0, 0, made({"repetition_penalty": 2.5}), counts) == 2
    assert choose(logits, 0, 0, made({"presence_penalty": 3.0}), counts) == 0  # the prompt was not said
    assert choose(logits, 0, 0, made({"logit_bias": {3: 5.5}}), counts) == 3
    assert choose(logits, 0, 0, made({"logit_bias": {0: -9.0}, "frequency_penalty": 0.6}), counts) == 2
    assert choose(logits, 0, 0, made({"repetition_penalty": 2.5})) == 0  # nothing counted, nothing punished


@pytest.mark.parametrize("kind", [{}, *SETTINGS.values()], ids=["greedy", *SETTINGS])
def test_pure(kind: dict[str, object]) -> None:
    settings = made(kind)
    logits, counts = LOGITS.copy(), Counts([0, 3, 3], [1, 1, 1, 4])
    tokens = [choose(logits, position, 9, settings, counts) for position in range(20)]
    assert [choose(logits, position, 9, settings, counts) for position in reversed(range(20))] == tokens[::-1]
    assert np.array_equal(logits, LOGITS)
    assert (counts.prompt, counts.reply) == (frozenset({0, 3}), Counter({1: 3, 4: 1}))
    assert settings == made(kind)
    logits.flags.writeable = False
    assert choose(logits, 0, 9, settings, counts) == tokens[0]


def test_noise_depends_on_seed_and_position_alone() -> None:
    assert np.array_equal(gumbel(1, 2, 50), gumbel(1, 2, 50))
    assert np.array_equal(gumbel(1, 2, 50)[:20], gumbel(1, 2, 20))
    different = [gumbel(1, 2, 50), gumbel(2, 1, 50), gumbel(1, 3, 50), gumbel(2**63 - 1, 2, 50)]
    assert all(not np.array_equal(a, b) for i, a in enumerate(different) for b in different[:i])
    assert np.isfinite(gumbel(0, 0, 100_000)).all()


def test_seed_in_the_settings_is_not_read_here() -> None:
    for position in range(10):
        tokens = {
            choose(LOGITS, position, 4, made(SETTINGS["temperature 3"], seed=seed)) for seed in range(5)
        }
        assert len(tokens) == 1


@pytest.mark.parametrize("kind", [{}, {"temperature": 1.0}, {"logit_bias": {0: 1.0}}])
@pytest.mark.parametrize("broken", [[2], range(12)])
def test_nan_is_an_error(kind: dict[str, object], broken: list[int]) -> None:
    logits = LOGITS.copy()
    logits[list(broken)] = np.nan
    with pytest.raises(BrokenLogits, match="damaged"):
        choose(logits, 0, 0, made(kind), COUNTS)


@pytest.mark.parametrize("kind", [{}, *SETTINGS.values()], ids=["greedy", *SETTINGS])
def test_what_is_minus_infinity_never_comes(kind: dict[str, object]) -> None:
    logits = np.full(12, -np.inf, dtype=np.float32)
    logits[6] = -3.0
    assert {choose(logits, position, 1, made(kind), COUNTS) for position in range(50)} == {6}
    logits[9] = -3.5
    assert {choose(logits, position, 1, made(kind), COUNTS) for position in range(50)} <= {6, 9}


@pytest.mark.parametrize("value", [-np.inf, np.inf])
def test_infinite_logits_are_an_error_that_says_so(value: float) -> None:
    """All excluded, or an overflow: no distribution is left to draw from."""
    logits = np.full(12, -np.inf)
    logits[3] = value
    with pytest.raises(BrokenLogits):
        choose(logits, 0, 0, made({"temperature": 1.0}))
