"""Every family that the CPU engine computes: replies with drafts are the words of plain decoding."""

from __future__ import annotations

import pytest

from hierchat.config import GenerationSettings
from hierchat.engine.cpu.runner import CpuRunner
from hierchat.engine.local import LocalEngine
from hierchat.models.formats.blocks import pack
from tests.engine.drafters import Adversary, Noise
from tests.testing.architectures import FAMILIES, model_of
from tests.testing.tiny import CONTEXT, block_model, fresh_steps, random_tokens, text_of, tokens_of


@pytest.mark.parametrize("name", FAMILIES)
def test_drafts_change_no_word(name: str) -> None:
    model = block_model(model_of(FAMILIES[name]), lambda floats: pack(floats, 4))
    sequence = CpuRunner(model, context_length=CONTEXT, threads=2).open()
    assert sequence.exact
    engine, prompt = LocalEngine(sequence, (), text_of), random_tokens(60, 1)
    for temperature in (0.0, 0.8):
        wanted = GenerationSettings(temperature=temperature, max_new_tokens=40, seed=3)
        plain = tokens_of(fresh_steps(engine, prompt, wanted))
        assert len(plain) == 40
        for drafter in (Noise(nodes=12), Adversary(plain)):
            assert tokens_of(fresh_steps(engine, prompt, wanted, drafter)) == plain
