"""Layers that keep a running state: what is kept of it, and how it is computed. test_contract.py holds their
words and bits, tests/fuzz/sequence_machine.py those of texts that are taken back."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from hierchat.config import GenerationSettings
from hierchat.engine.engine import GenerationRequest
from hierchat.engine.local import LocalEngine
from hierchat.engine.torch.torch_runner import TorchRunner
from tests.testing.families import tiny_family
from tests.testing.tiny import fresh_steps, random_tokens, text_of, tokens_of


def test_a_chat_goes_on_and_a_reply_is_written_anew_without_reading_it_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runner = TorchRunner(tiny_family("qwen3_5_text"), context_length=240)
    if not runner.exact:
        pytest.skip("no row quantum makes this processor's products exact")
    engine, settings = LocalEngine(runner.open(), (), text_of), GenerationSettings(max_new_tokens=12, seed=1)
    prompt = random_tokens(150, seed=5)
    first = tokens_of(fresh_steps(engine, prompt, settings))
    longer = [*prompt, *first, *random_tokens(10, seed=6)]
    expected = tokens_of(fresh_steps(engine, longer, settings))

    fresh_steps(engine, prompt, settings)
    computed: list[int] = []
    run = TorchRunner.run

    def counted(
        self: TorchRunner, slots: Any, tokens: Sequence[int], *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        computed.append(len(tokens))
        return run(self, slots, tokens, *args, **kwargs)

    monkeypatch.setattr(TorchRunner, "run", counted)
    assert tokens_of(engine.generate(GenerationRequest(prompt, settings))) == first  # anew
    assert computed == [1] * len(first)
    computed.clear()
    assert tokens_of(engine.generate(GenerationRequest(longer, settings))) == expected  # going on
    assert computed == [10, *[1] * len(expected)]
    computed.clear()
    assert tokens_of(
        engine.generate(GenerationRequest([*longer[:140], 3], settings))
    )  # from within the prompt: from the last mark
    assert computed[0] == 140 - 128
