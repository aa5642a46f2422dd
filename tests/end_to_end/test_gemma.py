"""Gemma 3 as people have it: from a GGUF file, behind a text longer than its window."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from hierchat.config import GenerationSettings
from hierchat.drafting.drafter import Drafter
from hierchat.drafting.source import Source
from hierchat.engine.backends import make_runner
from hierchat.engine.engine import GenerationRequest
from hierchat.engine.local import LocalEngine
from hierchat.models.catalogue import read_catalogue
from hierchat.models.load.load_model import load
from hierchat.models.load.load_torch import load_torch

pytestmark = [pytest.mark.slow, pytest.mark.large, pytest.mark.timeout(1800)]

TEXT = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text(encoding="utf-8")
POSITIONS = 800
"""More than the window of 512."""


def test_gemma_agrees_with_transformers_and_drafts_change_no_word() -> None:
    entry = read_catalogue().entry("gemma-3-270m")
    loaded = load(entry, "cpu")
    assert loaded.backend == "blocks"
    tokens = loaded.tokenizer(TEXT)["input_ids"][:POSITIONS]
    sequence = make_runner(loaded).open()
    assert sequence.exact
    rows = []
    for begin in range(0, POSITIONS, 32):
        part = tokens[begin : begin + 32]
        rows.append(np.array(sequence.forward(part, range(-1, len(part) - 1))))
        sequence.commit(range(len(part)))
    found = torch.from_numpy(np.concatenate(rows)).log_softmax(1)
    judge = load_torch(entry, "cpu", backend="float32").model
    with torch.inference_mode():
        expected = judge(torch.tensor([tokens])).logits[0].log_softmax(1)
    assert (found.argmax(1) == expected.argmax(1)).float().mean() >= 0.995
    assert (expected.exp() * (expected - found)).sum(1).mean() <= 1e-4

    engine = LocalEngine(sequence, loaded.end_ids, loaded.tokenizer.decode)
    for settings in (
        GenerationSettings(temperature=0.0, max_new_tokens=64),
        GenerationSettings(temperature=0.8, max_new_tokens=64, seed=3),
    ):
        plain, drafted = (
            [
                token
                for step in engine.generate(GenerationRequest(tokens, settings, drafter))
                for token in step.tokens
            ]
            for drafter in (None, Drafter([Source.of([tokens])]))
        )
        assert drafted == plain
