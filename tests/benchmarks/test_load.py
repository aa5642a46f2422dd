"""benchmarks load and index: several users at one engine, and what a history costs."""

from __future__ import annotations

from benchmarks.arms import OwnArm
from benchmarks.load import measure
from hierchat.engine.local import LocalEngine
from hierchat.runtime.served_model import ServedModel
from tests.testing.questions import SETTINGS, questions, tell
from tests.testing.tiny_chat import END, served, tokenizer


def many(places: int) -> ServedModel:
    """The tiny model, with room for so many replies at once."""
    one = served()
    engine = LocalEngine(one.local.runner.open(), {END}, tokenizer().decode, places)
    return ServedModel(one.name, one.model_key, engine, one.prompts, one.vanilla_ms)


def test_all_users_get_what_one_gets() -> None:
    users = 3
    model = many(users)
    arms = [OwnArm("vanilla", model), OwnArm("hierchat", model)]
    figures = measure(model, arms, questions(3), SETTINGS, [1, users], tell, repeats=2)
    assert {(row["users"], row["arm"]) for row in figures} == {
        (count, arm) for count in (1, users) for arm in ("vanilla", "hierchat")
    }
    for row in figures:
        assert row["replies"] == 3
        assert row["tokens"] == 3 * SETTINGS.max_new_tokens
        assert row["other_words"] == 0
        assert len(row["served"]) == row["users"]
        assert 0 < row["slowest_over_fastest"] <= 1
        assert row["tokens_per_second"] > 0
