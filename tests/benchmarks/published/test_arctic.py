"""arctic-inference's own suffix cache as an arm, and as the measure of ours."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.arms import OwnArm
from benchmarks.peers.environment import ArmError
from benchmarks.published import arctic
from benchmarks.published.arctic import Arctic
from benchmarks.published.suffix import Suffix
from tests.testing.questions import SETTINGS
from tests.testing.tiny_chat import hosted

from .test_methods import corpus, paths

compiled = pytest.mark.slow


@pytest.fixture(scope="module")
def texts() -> np.ndarray:
    return np.random.default_rng(3).integers(0, 5, (8, 120))


@compiled
def test_ours_proposes_what_theirs_does(texts: np.ndarray) -> None:
    """Equal sums of probabilities: which of equally likely tokens comes first is chance."""
    earlier, learned, prompt, reply = texts[:4].tolist()
    theirs, ours = Arctic(9, [corpus(earlier)]), Suffix(9, [corpus(earlier)])
    drafted = 0
    for drafter in (theirs, ours):
        drafter.learn(learned)
        drafter.begin(prompt)
    for token in reply:
        one, other = theirs.propose(), ours.propose()
        paths(one)
        assert sum(one.probabilities) == pytest.approx(sum(other.probabilities), abs=1e-4)
        drafted += len(one)
        for drafter in (theirs, ours):
            drafter.observe([token])
    assert drafted > 100


@compiled
def test_history_is_forgotten_and_the_corpus_is_not(texts: np.ndarray) -> None:
    drafter = Arctic(5, [corpus([7, 8, 9, 10])])
    drafter.learn([20, 21, 22])
    drafter.begin([1, 20])
    assert paths(drafter.propose())[0] == (21,)
    drafter.forget()
    drafter.begin([1, 20])
    assert not len(drafter.propose())
    drafter.begin([1, 7, 8])
    assert paths(drafter.propose())[0] == (9,)


@compiled
def test_not_a_word_changes() -> None:
    model, prompt = hosted(), list(range(3, 40)) * 2
    plain = OwnArm("vanilla", model).answer(prompt, SETTINGS)
    arm = OwnArm("arctic-suffix", model, width=8)
    for _ in range(2):
        answer = arm.answer(prompt, SETTINGS)
        arm.learn(answer.reply)
        assert answer.reply == plain.reply
    assert answer.forwards
    assert answer.forwards < len(answer.reply)


def test_a_source_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("HIERCHAT_CACHE", str(tmp_path))
    monkeypatch.setattr(arctic, "SOURCE", "http://127.0.0.1:9/none.tar.gz")
    with pytest.raises(ArmError, match="could not be fetched"):
        OwnArm("arctic-suffix", hosted())
