"""Users at one engine."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from benchmarks.arms import OwnArm
from benchmarks.load import measure
from benchmarks.peers.arm import PeerArm
from benchmarks.peers.environment import ArmError
from hierchat.engine.local import LocalEngine
from hierchat.runtime.loaded import Hosted
from tests.testing.fake_arms import FakeArm
from tests.testing.questions import SETTINGS, questions, tell
from tests.testing.tiny_chat import END, hosted, tokenizer


def many(places: int) -> Hosted:
    """The tiny model, with room for so many replies at once."""
    one = hosted()
    engine = LocalEngine(one.local.runner.open(), {END}, tokenizer().decode, places)
    return Hosted(one.name, one.model_key, engine, one.prompts, one.vanilla_ms)


@pytest.mark.parametrize("users", [1, 3])
def test_all_users_get_what_one_gets(users: int) -> None:
    model = many(users)
    arms = [OwnArm("vanilla", model), OwnArm("hierchat", model)]
    figures = measure(model, arms, questions(6), SETTINGS, [1, users], tell, repeats=2)
    assert {(row["users"], row["arm"]) for row in figures} == {
        (count, arm) for count in (1, users) for arm in ("vanilla", "hierchat")
    }
    for row in figures:
        assert row["replies"] == 6
        assert row["tokens"] == 6 * SETTINGS.max_new_tokens
        assert row["other_words"] == 0
        assert len(row["served"]) == row["users"]
        assert 0 < row["slowest_over_fastest"] <= 1
        assert row["tokens_per_second"] > 0


def test_a_peer_is_asked_with_all_prompts_at_once() -> None:
    asked = []

    def serve(talks, settings):
        asked.append([len(prompts) for prompts in talks])
        reply = {"tokens": [1, 2], "first": 0.1, "all": 0.2}
        return 0.5, [[reply for _ in prompts] for prompts in talks]

    peer = PeerArm.__new__(PeerArm)
    peer.name, peer.serve = "peer", serve  # type: ignore[method-assign]
    (figures,) = measure(many(1), [peer], questions(5), SETTINGS, [2], tell)
    assert asked == [[1, 1], [3, 2]]  # one that warms up, then the questions
    assert (figures["replies"], figures["tokens"], figures["tokens_per_second"]) == (5, 10, 20.0)
    assert figures["first_token_seconds"] == pytest.approx(0.1)


def test_an_arm_that_answers_one_at_a_time_says_so() -> None:
    with pytest.raises(ArmError, match="one user at a time"):
        measure(many(1), [FakeArm("weak")], questions(2), SETTINGS, [2], tell)


def test_an_error_ends_all(monkeypatch: pytest.MonkeyPatch) -> None:
    model = many(2)
    arm = OwnArm("vanilla", model)

    def out_of_breath(settings):
        raise RuntimeError("out of breath")

    broken = SimpleNamespace(drafter=out_of_breath)
    monkeypatch.setattr(arm, "another", lambda: broken)
    with pytest.raises(RuntimeError, match="out of breath"):
        measure(model, [arm], questions(4), SETTINGS, [2], tell)
