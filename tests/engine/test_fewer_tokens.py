"""A model that knows only some tokens, as a target over all of them; test_contract.py holds its words and bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hierchat.engine.draft_model import NEVER, FewerTokens
from hierchat.models.progress import BrokenFileError
from tests.engine.test_contract import ALL, KNOWN
from tests.testing.tiny import VOCABULARY, Backend, bits, tiny_target

FEW = VOCABULARY - 1
"""Tokens that the tiny model knows; its last number stands for all others."""
UNKNOWN = sorted(set(range(ALL)) - set(KNOWN.tolist()))
TREE = (-1, 0, 0, 1, 3)


@pytest.mark.parametrize("backend", ["llama-float32", "qwen3-blocks"])
def test_known_tokens_have_their_numbers_and_unknown_ones_are_never_chosen(backend: Backend) -> None:
    inner = tiny_target(backend)
    target = FewerTokens(inner, KNOWN, ALL)
    prompt = [int(KNOWN[40]), UNKNOWN[3], int(KNOWN[2])]
    block = [UNKNOWN[5], int(KNOWN[0]), int(KNOWN[11]), UNKNOWN[9], int(KNOWN[FEW - 1])]
    inner.read([40, FEW, 2])
    expected = bits(inner, [FEW, 0, 11, FEW, FEW - 1], TREE)
    inner.rollback(0)
    target.read(prompt)
    assert (target.tokens, inner.tokens) == (prompt, [40, FEW, 2])
    found = bits(target, block, TREE)
    assert (found.shape, found.dtype) == ((len(block), ALL), np.float32)
    np.testing.assert_array_equal(found[:, KNOWN], expected[:, :FEW])
    assert (found[:, UNKNOWN] == NEVER).all()


@pytest.mark.parametrize(
    ("known", "vocabulary"),
    [(KNOWN[1:], ALL), (np.arange(VOCABULARY), ALL), (KNOWN, int(KNOWN[-1]))],
    ids=["too few", "too many", "beyond the vocabulary"],
)
def test_a_list_of_another_model_is_refused(known: Any, vocabulary: int) -> None:
    with pytest.raises(BrokenFileError, match="Distil the draft again"):
        FewerTokens(tiny_target(), known, vocabulary)
