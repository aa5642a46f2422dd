"""The same promises on CUDA."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from hierchat.config import GenerationSettings
from hierchat.drafting.context import ContextSource
from hierchat.drafting.drafter import Drafter
from hierchat.engine.engine import Engine
from hierchat.engine.torch_target import TorchTarget
from tests.engine.drafters import Buried, TreeDrafter
from tests.tiny import Kind, fresh_steps, random_tokens, text_of, tiny_model, tokens_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def assert_same_words(target: TorchTarget) -> None:
    """Drafts change no word where the target is exact; where it is not, they still bring a whole reply."""
    engine = Engine(target, (), text_of)
    for temperature in (0.0, 0.8):
        wanted = GenerationSettings(temperature=temperature, max_new_tokens=32)
        prompt = random_tokens(118, vocabulary=12)
        vanilla = tokens_of(fresh_steps(engine, prompt, wanted))
        assert len(vanilla) == 32
        for drafter in (Drafter([ContextSource()]), TreeDrafter(), Buried(vanilla)):
            reply = tokens_of(fresh_steps(engine, prompt, wanted, drafter))
            assert reply == vanilla if target.exact else len(reply) == 32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_speculative_equals_vanilla(kind: Kind, dtype: torch.dtype) -> None:
    target = TorchTarget(tiny_model(kind).to("cuda", dtype))
    assert target.device.type == "cuda"
    assert target.backend == str(dtype).removeprefix("torch.")  # nothing is packed for the CPU
    assert_same_words(target)


def test_nf4(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    tiny_model().save_pretrained(tmp_path)
    how = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
    )
    model = AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=torch.bfloat16, device_map={"": "cuda"}, quantization_config=how
    )
    kinds = {type(module).__name__ for module in model.modules()}
    assert "Linear4bit" in kinds
    assert_same_words(TorchTarget(model.eval()))
