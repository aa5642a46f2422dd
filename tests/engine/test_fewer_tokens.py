"""A model that knows only some tokens, as a target over all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from hierchat.config import GenerationSettings
from hierchat.engine.draft_model import NEVER, FewerTokens
from hierchat.engine.local import LocalEngine
from hierchat.models.progress import BrokenFileError
from tests.testing.tiny import VOCABULARY, Backend, fresh_steps, text_of, tiny_target, tokens_of

ALL = 150
"""Tokens of the model above."""
FEW = VOCABULARY - 1
"""Tokens that the tiny model knows; its last number stands for all others."""
KNOWN = np.sort(np.random.default_rng(3).permutation(ALL)[:FEW])
NUMBERS = {int(token): number for number, token in enumerate(KNOWN)}
UNKNOWN = sorted(set(range(ALL)) - set(NUMBERS))
TREE = (-1, 0, 0, 1, 3)
SAMPLED = {"temperature": 1.5, "top_p": 0.95, "seed": 3, "repetition_penalty": 1.2, "presence_penalty": 0.5}


def fewer(backend: Backend = "llama-float32") -> tuple[FewerTokens, Any]:
    """Over all tokens, and the tiny target within."""
    inner = tiny_target(backend)
    return FewerTokens(inner, KNOWN, ALL), inner


def own(tokens: Sequence[int]) -> list[int]:
    """The tiny model's numbers of them."""
    return [NUMBERS.get(token, FEW) for token in tokens]


def test_known_tokens_have_their_numbers_and_all_others_the_last() -> None:
    target, inner = fewer()
    known, unknown = int(KNOWN[7]), UNKNOWN[0]
    target.read([known, unknown, UNKNOWN[-1], int(KNOWN[-1])])
    assert inner.tokens == [7, FEW, FEW, FEW - 1]
    assert target.tokens == [known, unknown, UNKNOWN[-1], int(KNOWN[-1])]


@pytest.mark.parametrize("backend", ["llama-float32", "qwen3-blocks"])
def test_rows_are_the_models_own_and_never_choose_an_unknown_token(backend: Backend) -> None:
    target, inner = fewer(backend)
    prompt = [int(KNOWN[40]), UNKNOWN[3], int(KNOWN[2])]
    block = [UNKNOWN[5], int(KNOWN[0]), int(KNOWN[11]), UNKNOWN[9], int(KNOWN[FEW - 1])]
    inner.read(own(prompt))
    expected = np.array([inner.forward(own(block), TREE)[node] for node in range(len(block))])
    inner.rollback(0)
    target.read(prompt)
    rows = target.forward(block, TREE)
    assert len(rows) == len(block)
    for node, row in enumerate(expected):
        assert rows[node].shape == (ALL,)
        assert rows[node].dtype == np.float32
        np.testing.assert_array_equal(rows[node][KNOWN], row[:FEW])
        assert (rows[node][UNKNOWN] == NEVER).all()


@pytest.mark.parametrize("sampling", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_replies_are_made_of_known_tokens(sampling: dict[str, Any]) -> None:
    target, _ = fewer()
    prompt = [UNKNOWN[0], int(KNOWN[5]), UNKNOWN[1]]
    chosen = GenerationSettings(max_new_tokens=40, **sampling)
    reply = tokens_of(fresh_steps(LocalEngine(target, (), text_of), prompt, chosen))
    assert len(reply) == 40
    assert set(reply) <= set(NUMBERS)


@pytest.mark.parametrize(
    ("known", "vocabulary"),
    [(KNOWN[1:], ALL), (np.arange(VOCABULARY), ALL), (KNOWN, int(KNOWN[-1]))],
    ids=["too few", "too many", "beyond the vocabulary"],
)
def test_a_list_of_another_model_is_refused(known: Any, vocabulary: int) -> None:
    with pytest.raises(BrokenFileError, match="Distil the draft again"):
        FewerTokens(tiny_target(), known, vocabulary)
