"""A short form of `python -m tests.fuzz`: what was found, and some inputs of every target."""

import pytest

from hierchat.config import GenerationSettings
from hierchat.engine.generation import Detokenizer, Stopping
from tests.fuzz.__main__ import MACHINES, run
from tests.fuzz.inputs import CRASHES, INPUTS

SOME, FEW = 30, 6
"""Inputs of a target; of one that makes a database for each."""


@pytest.mark.parametrize(("name", "seed"), CRASHES)
def test_what_was_found_stays_mended(name: str, seed: int) -> None:
    assert run(name, seed)[1] == ""


def test_a_stop_string_of_characters_that_are_four_tokens_each_ends_a_reply() -> None:
    stopping = Stopping(
        GenerationSettings(stop=("🦊🐻🐼🐨",)), Detokenizer(lambda ids: bytes(ids).decode("utf-8", "replace"))
    )
    assert [stopping.add(byte) for byte in "x🦊🐻🐼🐨".encode()][-2:] == [None, "stop"]


@pytest.mark.parametrize("name", INPUTS)
def test_nothing_but_our_own_errors_comes_of_any_input(name: str) -> None:
    for seed in range(FEW if name == "chats" else SOME):
        _, wrong = run(name, seed)
        assert not wrong, f"{name} --seed {seed}\n{wrong}"


@pytest.mark.parametrize("name", MACHINES)
def test_a_model_of_it_agrees_after_every_step(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MACHINES[name], "examples", 5)
    steps, wrong = run(name, 1)
    assert not wrong, wrong
    assert steps > 20


def test_ten_thousand_operations_on_the_index() -> None:
    for seed in range(2):
        assert run("operations", seed) == (5_000, "")
