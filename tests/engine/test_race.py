"""The race over large vocabularies chooses what the plain definition chooses, whatever the row and the settings."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hierchat.config import GenerationSettings
from hierchat.engine.sampling import sampler
from hierchat.engine.sampling.gumbel import PAGE, stream
from hierchat.engine.sampling.sampler import Counts, choose, defined, race


@pytest.fixture(autouse=True, scope="module")
def race_over_small_rows_too() -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampler, "SMALL", 0)
        yield


SIZES = st.one_of(st.integers(1, 40), st.integers(41, 3000), st.sampled_from([PAGE - 1, PAGE, PAGE + 700]))
OFF = st.just(0.0)
KINDS = st.builds(
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


@settings(max_examples=400, deadline=None)
@given(row=rows(), kind=KINDS, data=st.data())
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
