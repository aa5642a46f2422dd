"""A short form of tests/fuzz.py: what was found, and some inputs of every target."""

from __future__ import annotations

import pytest

from hierchat.config import GenerationSettings
from hierchat.engine.generation import Detokenizer, Stopping
from tests.fuzz import CRASHES, TARGETS, run

SOME, FEW = 30, 6
"""Inputs of a target; of one that makes a database for each."""


@pytest.mark.parametrize(("name", "seed"), CRASHES)
def test_what_was_found_stays_mended(name: str, seed: int) -> None:
    assert run(name, seed) is None


def test_a_stop_string_of_characters_that_are_four_tokens_each_ends_a_reply() -> None:
    stopping = Stopping(
        GenerationSettings(stop=("🦊🐻🐼🐨",)), Detokenizer(lambda ids: bytes(ids).decode("utf-8", "replace"))
    )
    assert [stopping.add(byte) for byte in "x🦊🐻🐼🐨".encode()][-2:] == [None, "stop"]


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_but_our_own_errors_comes_of_any_input(name: str) -> None:
    for seed in range(FEW if name == "chats" else SOME):
        assert (wrong := run(name, seed)) is None, f"{name} --seed {seed}\n{wrong}"
