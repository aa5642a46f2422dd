"""The sampler against references written here; test_sampler_distribution.py has its draws."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pytest

from hierchat.config import GenerationSettings
from hierchat.engine.sampling.gumbel import _logs, _minus_log, gumbel, stream
from hierchat.engine.sampling.sampler import BrokenLogits, Counts, choose, processed

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


def made(kind: dict[str, object], **more: object) -> GenerationSettings:
    return GenerationSettings(**{**kind, **more})  # type: ignore[arg-type]


def counted(counts: Counts) -> dict[int, float]:
    return dict(zip(counts.tokens.tolist(), counts.said.tolist(), strict=True))


def reference(logits: np.ndarray, settings: GenerationSettings, counts: Counts) -> list[float]:
    """Probabilities after all processors, one token at a time and in plain Python."""
    row = [float(logit) for logit in logits]
    for token in range(len(row)):
        said = counted(counts).get(token, 0)
        if token in counted(counts):
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


@pytest.mark.parametrize("kind", SETTINGS.values(), ids=SETTINGS)
def test_processors_equal_the_reference(kind: dict[str, object]) -> None:
    settings = made(kind)
    random = np.random.default_rng(1)
    for _ in range(50):
        logits = random.normal(0, 2, 40)
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


def test_noise_is_finite_at_the_ends() -> None:
    """Uniforms are never 0 or 1: of all bits 0 and of all bits 1 neither."""
    ends = np.array([0, 2**64 - 1], dtype=np.uint64)
    assert np.isfinite(_minus_log(-_logs(ends))).all()


def test_seed_in_the_settings_is_not_read_here() -> None:
    for position in range(10):
        tokens = {
            choose(LOGITS, position, 4, made(SETTINGS["temperature 3"], seed=seed)) for seed in range(5)
        }
        assert len(tokens) == 1


@pytest.mark.parametrize("size", [12, 40_000])
@pytest.mark.parametrize("kind", [{}, {"logit_bias": {0: 1.0}}, PENALTIES, *SETTINGS.values()], ids=str)
@pytest.mark.parametrize("broken", [[2], range(12)])
def test_nan_is_an_error(kind: dict[str, object], broken: list[int], size: int) -> None:
    logits = np.resize(LOGITS, size)
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


@pytest.mark.parametrize("size", [12, 40_000])
@pytest.mark.parametrize("kind", [{}, PENALTIES, SETTINGS["temperature 1"], SETTINGS["all"]], ids=str)
@pytest.mark.parametrize("value", [-np.inf, np.inf])
def test_infinite_logits_are_an_error_that_says_so(value: float, kind: dict[str, object], size: int) -> None:
    """All excluded, or an overflow: no distribution is left to draw from."""
    logits = np.full(size, -np.inf, np.float32)
    logits[3] = value
    with pytest.raises(BrokenLogits):
        choose(logits, 0, 0, made(kind), COUNTS)


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
