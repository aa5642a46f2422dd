"""The sampler against references written here, and its draws against the exact distribution.

Seeds are fixed, so that a right sampler either always passes or never does.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

from hierchat.config import GenerationSettings
from hierchat.drafting.growing.gumbel import (
    PAGE,
    WIDTH,
    earliest,
    gumbel,
    gumbel_of_one,
    members,
    stream,
)
from hierchat.engine.sampling import sampler
from hierchat.engine.sampling.sampler import (
    BrokenLogits,
    Counts,
    choose,
    chosen_of_few,
    defined,
    processed,
    race,
)

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
COUNTS = Counts(PROMPT, REPLY)
KINDS = {"temperature 1": {}, "temperature 3": {"temperature": 3.0}, **ALONE, **TOGETHER}
SETTINGS: dict[str, dict[str, object]] = {name: {"temperature": 1.0, **kind} for name, kind in KINDS.items()}


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


def made(kind: dict[str, object], **more: object) -> GenerationSettings:
    return GenerationSettings(**{**kind, **more})  # type: ignore[arg-type]


def counted(counts: Counts) -> dict[int, float]:
    return dict(zip(counts.tokens.tolist(), counts.said.tolist(), strict=True))


@pytest.mark.parametrize("kind", SETTINGS.values(), ids=SETTINGS)
def test_processors_equal_the_reference(kind: dict[str, object]) -> None:
    settings = made(kind)
    random = np.random.default_rng(1)
    for _ in range(50):
        logits = random.normal(0, 2, 40)
        prompt, reply = random.integers(0, 40, 6).tolist(), random.integers(0, 40, 9).tolist()
        row = processed(logits, settings, Counts(prompt, reply))
        chances = np.exp(row - row.max())
        wanted = exact(logits, settings, prompt, reply)
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
    assert counted(counts) == {0: 0, 3: 0, 1: 3, 4: 1}
    assert settings == made(kind)
    logits.flags.writeable = False
    assert choose(logits, 0, 9, settings, counts) == tokens[0]


def test_noise_depends_on_seed_position_and_token_alone() -> None:
    def noise(seed: int, position: int, tokens: Iterable[int] = range(50)) -> list[float]:
        return gumbel(stream(seed, position), np.array(list(tokens))).tolist()

    assert noise(1, 2) == noise(1, 2)
    assert noise(1, 2, range(20)) == noise(1, 2)[:20]
    assert noise(1, 2, [31, 7]) == [noise(1, 2)[31], noise(1, 2)[7]]
    different = [noise(1, 2), noise(2, 1), noise(1, 3), noise(2**63 - 1, 2)]
    assert all(set(a).isdisjoint(b) for i, a in enumerate(different) for b in different[:i])
    assert np.isfinite(noise(0, 0, range(100_000))).all()


@pytest.mark.parametrize("size", [12, 40_000])
@pytest.mark.parametrize("kind", [{}, {"logit_bias": {0: 1.0}}, PENALTIES, *SETTINGS.values()], ids=str)
def test_what_is_no_distribution_is_an_error_that_says_so(kind: dict[str, object], size: int) -> None:
    """Some numbers that are none, or all; everything excluded, or an overflow."""
    some, every = (np.resize(LOGITS, size) for _ in range(2))
    some[2] = every[:12] = np.nan
    for logits in (some, every):
        with pytest.raises(BrokenLogits, match="damaged"):
            choose(logits, 0, 0, made(kind), COUNTS)
    for value in (-np.inf, np.inf):
        logits = np.full(size, -np.inf, np.float32)
        logits[3] = value
        with pytest.raises(BrokenLogits):
            choose(logits, 0, 0, made(kind), COUNTS)


@pytest.mark.parametrize("kind", [{}, *SETTINGS.values()], ids=["greedy", *SETTINGS])
def test_what_is_minus_infinity_never_comes(kind: dict[str, object]) -> None:
    logits = np.full(12, -np.inf, dtype=np.float32)
    logits[6] = -3.0
    assert {choose(logits, position, 1, made(kind), COUNTS) for position in range(50)} == {6}
    logits[9] = -3.5
    assert {choose(logits, position, 1, made(kind), COUNTS) for position in range(50)} <= {6, 9}


@pytest.mark.parametrize("size", [12, 40_000])
def test_extreme_settings(size: int) -> None:
    """The coldest temperature is greedy, and the strongest bias decides."""
    logits = np.full(size, -9.0, np.float32)
    logits[:12] = LOGITS
    best = int(logits.argmax())
    for position in range(5):
        assert choose(logits, position, 1, made({"temperature": 5e-324, "top_p": 0.5})) == best
        strong = made({"temperature": 10.0, "logit_bias": {7: 1e308, 2: 1e307, best: -1e308}})
        assert choose(logits, position, 1, strong) in (2, 7)  # both are as large as a float32 can be
        alone = made({"temperature": 10.0, "top_k": 1, "logit_bias": {5: 1e300}})
        assert choose(logits, position, 1, alone) == 5


def test_counts_grow() -> None:
    tokens = np.random.default_rng(4).integers(0, 400, 900).tolist()
    counts = Counts(tokens[:100])
    for token in tokens[100:]:
        counts.add(token)
    assert counted(counts) == {token: tokens[100:].count(token) for token in tokens}
    assert counted(Counts(tokens[:100], tokens[100:])) == counted(counts)
    assert counted(Counts()) == {}


# The race over large vocabularies chooses what the definition chooses, whatever the row and the settings.

SIZES = st.one_of(st.integers(1, 40), st.integers(41, 3000), st.sampled_from([PAGE - 1, PAGE, PAGE + 700]))
OFF = st.just(0.0)
DRAWN = st.builds(
    dict,
    temperature=st.one_of(st.floats(0.05, 10.0), st.sampled_from([5e-324, 1e-30, 1e-3, 0.7, 1.0])),
    top_k=st.one_of(st.just(0), st.integers(1, 50), st.integers(51, 4000)),
    top_p=st.one_of(st.just(1.0), st.floats(1e-6, 1.0), st.sampled_from([0.1, 0.25, 0.5, 0.9, 0.95])),
    min_p=st.one_of(OFF, st.floats(0.0, 1.0), st.sampled_from([1e-300, 0.05, 1.0])),
    repetition_penalty=st.one_of(st.just(1.0), st.floats(0.1, 10.0)),
    presence_penalty=st.one_of(OFF, st.floats(-10.0, 10.0)),
    frequency_penalty=st.one_of(OFF, st.floats(-10.0, 10.0)),
)


@st.composite
def rows(draw: st.DrawFn) -> np.ndarray:
    """Logits with equals, excluded tokens, outliers; of both kinds of float."""
    size, spread = draw(SIZES), draw(st.sampled_from([0.0, 0.01, 1.0, 3.0, 30.0]))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    row = random.normal(draw(st.sampled_from([0.0, -50.0, 200.0])), spread, size)
    if draw(st.booleans()):
        row = np.round(row * 4) / 4
    if draw(st.booleans()):
        row[random.random(size) < draw(st.sampled_from([0.1, 0.9]))] = -np.inf
    for _ in range(draw(st.integers(0, 3))):
        row[random.integers(size)] = row.max() + draw(st.sampled_from([0.0, 1.0, 8.0]))
    row[random.integers(size)] = 1.0  # never all excluded
    return row.astype(draw(st.sampled_from([np.float32, np.float64])))


@limits(max_examples=100, deadline=None)
@given(row=rows(), kind=DRAWN, data=st.data())
def test_the_race_is_the_definition(row: np.ndarray, kind: dict[str, float], data: st.DataObject) -> None:
    tokens = st.integers(0, len(row) - 1)
    counts = Counts(data.draw(st.lists(tokens, max_size=9)), data.draw(st.lists(tokens, max_size=9)))
    biases = st.one_of(st.floats(-20.0, 20.0), st.sampled_from([1e308, -1e308, 100.0]))
    kind["logit_bias"] = data.draw(st.dictionaries(tokens, biases, max_size=4))  # type: ignore[assignment]
    made = GenerationSettings(**kind)  # type: ignore[arg-type]
    seed = data.draw(st.integers(0, 2**63 - 1))
    for position in range(4):
        with np.errstate(over="ignore"):
            wanted = defined(row, made, counts, stream(seed, position))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sampler, "SMALL", 0)  # over small rows, too
            assert choose(row, position, seed, made, counts) == wanted


@pytest.mark.parametrize("spread", [1.0, 3.0])
@pytest.mark.parametrize(
    "kind",
    [{}, {"top_p": 0.9}, {"top_p": 0.3}, {"top_k": 20, "top_p": 0.95}, {"top_k": 5000}, {"min_p": 0.05}],
)
def test_the_race_decides_by_itself(kind: dict[str, float], spread: float) -> None:
    """What it leaves to the definition is rare, and a large vocabulary changes nothing."""
    made = GenerationSettings(temperature=0.8, **kind)  # type: ignore[arg-type]
    row = np.random.default_rng(3).normal(0, spread, 49_152).astype(np.float32)
    best = int(row.argmax())
    keys = [stream(1, position) for position in range(60)]
    tokens = [race(row, best, made, key) for key in keys]
    assert tokens.count(None) <= 1
    for key, token in zip(keys[:8], tokens, strict=False):
        assert token is None or token == defined(row, made, None, key)


@pytest.mark.parametrize("kind", [{}, {"top_p": 0.8}, {"min_p": 0.02}, {"top_p": 0.95, "min_p": 0.001}])
def test_of_few_likeliest_tokens_the_definitions_is_chosen(kind: dict[str, float]) -> None:
    """What is left to the race is rare: equals at the border, and what is no number."""
    made = GenerationSettings(temperature=0.7, top_k=20, **kind)  # type: ignore[arg-type]
    row = np.random.default_rng(5).normal(0, 2.5, 40_000).astype(np.float32)
    keys = [stream(2, position) for position in range(60)]
    tokens = [chosen_of_few(row, made, key) for key in keys]
    assert tokens == [defined(row, made, None, key) for key in keys]
    assert len(set(tokens)) > 4
    twice = row.copy()
    twice[np.argsort(row)[-21]] = np.sort(row)[-20]
    assert chosen_of_few(twice, made, keys[0]) == -1
    for broken in (np.nan, np.inf):
        for place in (0, 39_999):
            twice = row.copy()
            twice[place] = broken
            assert chosen_of_few(twice, made, keys[0]) == -1
            with pytest.raises(BrokenLogits):
                choose(twice, 0, 0, made)


# Draws


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


@pytest.mark.parametrize("name", [*ALONE, *TOGETHER])
def test_draws_have_the_exact_distribution(name: str) -> None:
    """Those of each processor over positions, those of combinations over seeds."""
    settings, counts = made(SETTINGS[name]), Counts(PROMPT, REPLY)
    places = [(at, 7) if name in ALONE else (300, at) for at in range(DRAWS)]
    draws = np.array([choose(LOGITS, position, seed, settings, counts) for position, seed in places])
    assert fit(draws, exact(LOGITS, settings)) > RIGHT


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
    for token in (0, 7, int(leaders[9]), 40_000):
        assert gumbel_of_one(key, token) == pytest.approx(gumbel(key, np.array([token]))[0], abs=1e-12)
