"""A draft model of llama.cpp, over a model that counts."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from benchmarks.peers.programs.llama_cpp import DraftModel, hold

WORDS, CONTEXT = 50, 32
UNSURE = 20
"""Behind this token the model is not sure that the next one follows."""


class Counting:
    """As a Llama: the next number follows each number. `evaluated`: what each call got, and whether it kept all
    logits."""

    def __init__(self) -> None:
        self.n_tokens = 0
        self.input_ids = np.zeros(CONTEXT, np.intc)
        self.evaluated: list[tuple[list[int], bool]] = []
        self._logits_all = True
        self._ctx = self

    def n_ctx(self) -> int:
        return CONTEXT

    def n_vocab(self) -> int:
        return WORDS

    def eval(self, tokens: list[int]) -> None:
        self.evaluated.append((list(tokens), self._logits_all))
        self.input_ids[self.n_tokens : self.n_tokens + len(tokens)] = tokens
        self.n_tokens += len(tokens)

    def get_logits_ith(self, place: int) -> Any:
        assert place == -1
        last = int(self.input_ids[self.n_tokens - 1])
        self.logits = np.zeros(WORDS, np.float32)
        self.logits[(last + 1) % WORDS] = 1.0 if last == UNSURE else 10.0
        return self.logits.ctypes.data_as(ctypes.POINTER(ctypes.c_float))

    @property
    def read(self) -> list[int]:
        """All that was evaluated since this was asked last."""
        found = [token for tokens, _ in self.evaluated for token in tokens]
        self.evaluated.clear()
        return found


def drafted(model: DraftModel, *tokens: int) -> list[int]:
    return model(np.array(tokens, np.intc)).tolist()


def test_a_draft_follows_the_model_as_far_as_it_may_and_is_sure() -> None:
    model = DraftModel(Counting(), most=4, sure=0.75)
    assert drafted(model, 3, 4, 5) == [6, 7, 8, 9]
    assert drafted(model, 3, 4, 18) == [19, 20]
    assert drafted(model, 3, UNSURE) == []
    assert drafted(DraftModel(Counting(), most=4, sure=0.0), 3, 19) == [20, 21, 22, 23]


def test_what_the_target_accepted_is_not_evaluated_again() -> None:
    llama = Counting()
    model = DraftModel(llama, most=3, sure=0.5)
    assert drafted(model, 1, 2, 3) == [4, 5, 6]
    assert llama.read == [1, 2, 3, 4, 5]
    assert drafted(model, 1, 2, 3, 4, 5, 6, 7) == [8, 9, 10]  # all, and the target's own token
    assert llama.read == [6, 7, 8, 9]
    assert drafted(model, 1, 2, 3, 4, 40) == [41, 42, 43]  # one of three
    assert llama.read == [40, 41, 42]
    assert drafted(model, 30) == [31, 32, 33]  # another text
    assert llama.read == [30, 31, 32]


def test_a_draft_ends_with_the_context() -> None:
    llama = Counting()
    tokens = drafted(DraftModel(llama, most=9, sure=0.0), *range(CONTEXT - 2))
    assert len(tokens) == 3
    assert llama.n_tokens == CONTEXT


def test_a_prompt_is_read_without_its_logits() -> None:
    llama = Counting()
    hold(llama, [1, 2, 3])
    hold(llama, [1, 2, 3])
    hold(llama, [1, 2, 7, 8])
    assert llama.evaluated == [([1, 2, 3], False), ([7, 8], False)]
    assert llama._logits_all
