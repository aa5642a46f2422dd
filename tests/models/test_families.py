"""Every kind of text model that transformers knows, tiny and random: it answers, or its reason is a sentence."""

from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import plain_kernels
from hierchat.config import GenerationSettings
from hierchat.engine.cuda.cuda_runner import CudaRunner
from hierchat.engine.local import LocalEngine
from hierchat.engine.torch.plain import PlainRunner
from hierchat.engine.torch.torch_runner import TorchRunner
from hierchat.models.runnable import (
    ALWAYS_EXPERTS,
    KEEPING_STATES,
    SLOTTED,
    UNGRAPHED,
    graphed,
    refused,
    slotted,
)
from tests.engine.drafters import Adversary, Noise
from tests.testing.families import KINDS, tiny_family
from tests.testing.tiny import fresh_steps, random_tokens, text_of, tokens_of

assert plain_kernels  # by which the processor computes
CONTEXT = 240
TEXT = random_tokens(40, seed=1, vocabulary=90)
FAMOUS = ("gemma2", "gemma4_text", "gpt2", "gpt_oss", "llama4_text")
"""Windows, sinks, soft caps, chunks, keys that layers share: tried at every run; all others at night."""
RECURRENT = ("mamba2", "qwen3_next", "rwkv")
"""Recurrent ones that are tried at every run."""
UNMADE = frozenset([
    "bailing_hybrid", "blt", "cohere_compass_text", "deepseek_v2", "dots3_note", "dots3_note_text", "gemma3n",
    "nemotron", "qwen4_exp", "qwen4_exp_text",
])  # fmt: skip
"""Kinds that nobody here has made small yet."""


def last_logits(model: Any, text: list[int]) -> np.ndarray:
    with torch.inference_mode():
        return model(torch.tensor([text]), use_cache=False).logits[0, -1].float().numpy()


def assert_near(found: np.ndarray, expected: np.ndarray) -> None:
    assert np.abs(found - expected).max() <= 0.01 * expected.std()


def assert_answers_plainly(kind: str) -> None:
    """As transformers alone does, also after a turn was taken back, and the same words with a drafter."""
    model = tiny_family(kind)
    runner = PlainRunner(model, context_length=CONTEXT)
    sequence = runner.open()
    sequence.read(TEXT[:20])
    sequence.read(TEXT[20:30])
    rows = sequence.forward([5, 6, 7], [-1, 0, -1])
    # Without a cache these two differ by themselves
    if runner.way != "anew" or kind not in ("recurrent_gemma", "xlnet"):
        assert_near(rows[1], last_logits(model, [*TEXT[:30], 5, 6]))
    sequence.commit([0])
    assert np.array_equal(sequence.forward([6], [-1])[0], rows[1])
    sequence.commit([0])
    for length in (30, 24, 0):
        sequence.rollback(length)
        sequence.read(TEXT[length:30])
        assert_near(sequence.forward([7], [-1])[0], rows[2])
    engine = LocalEngine(sequence, (), text_of)
    wanted = GenerationSettings(temperature=0.8, max_new_tokens=6, seed=3)
    first, second = fresh_steps(engine, TEXT, wanted), fresh_steps(engine, TEXT, wanted, Noise(nodes=4))
    assert tokens_of(first) == tokens_of(second)
    assert {one.width for one in second if one.tokens} == {1}


def assert_right_over_slots(kind: str) -> None:
    """Every node of a tree as transformers alone computes it, and the same words with any drafts if it claims that."""
    model = tiny_family(kind)
    text = TEXT[:30]
    branches = {0: [5], 1: [7], 2: [7, 8], 3: [5, 9], 4: [7, 8, 10]}
    expected = {node: last_logits(model, [*text, *path]) for node, path in branches.items()}
    runner = TorchRunner(model, context_length=CONTEXT, packed=False)
    sequence = runner.open()
    sequence.read(text[:13])
    sequence.read(text[13:])
    assert_near(sequence.forward([5], [-1], padded=False)[0], expected[0])
    rows = sequence.forward([5, 7, 8, 9, 10], [-1, -1, 1, 0, 2])
    for node, logits in expected.items():
        assert_near(rows[node], logits)
    sequence.commit([1, 2])
    assert_near(sequence.forward([10], [-1])[0], expected[4])
    if not runner.exact:
        return
    engine = LocalEngine(sequence, (), text_of)
    for settings in ({}, {"temperature": 0.8}):
        wanted = GenerationSettings(max_new_tokens=16, seed=1, **settings)  # type: ignore[arg-type]
        plain = tokens_of(fresh_steps(engine, TEXT, wanted))
        for drafter in (Noise(nodes=12), Adversary(plain)):
            assert tokens_of(fresh_steps(engine, TEXT, wanted, drafter)) == plain


@pytest.mark.parametrize("kind", FAMOUS)
def test_windows_sinks_and_shared_keys_in_trees(kind: str) -> None:
    assert kind in SLOTTED
    assert_right_over_slots(kind)


@pytest.mark.parametrize("kind", RECURRENT)
def test_recurrent_models_answer_without_drafts(kind: str) -> None:
    assert_answers_plainly(kind)


@pytest.mark.large
@pytest.mark.parametrize("kind", sorted(SLOTTED))
def test_all_that_are_listed_are_right_over_slots(kind: str) -> None:
    model = tiny_family(kind)
    assert slotted(model.config.to_dict(), "cuda")
    assert_right_over_slots(kind)


@pytest.mark.large
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_answers_or_says_why_not(kind: str) -> None:
    if reason := refused({"model_type": kind}):
        assert reason.startswith("it ")
    elif kind not in UNMADE:
        assert_answers_plainly(kind)


@pytest.mark.large
@pytest.mark.parametrize("kind", sorted((SLOTTED | KEEPING_STATES) - UNGRAPHED - ALWAYS_EXPERTS))
def test_all_that_are_listed_are_right_over_static_slots(kind: str) -> None:
    model = tiny_family(kind)
    assert graphed(model.config.to_dict())
    expected = last_logits(model, [*TEXT[:30], 7, 8])
    sequence = CudaRunner(model, context_length=CONTEXT, regime=(16, 16)).open()
    sequence.read(TEXT[:30])
    assert_near(sequence.forward([5, 7, 8], [-1, -1, 1])[2], expected)
