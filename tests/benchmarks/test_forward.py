"""What `benchmarks forward` counts of a model."""

import pytest

from benchmarks.forward import matrix_bytes, row_bytes
from hierchat.models.formats.blocks import pack
from hierchat.models.runnable import step
from tests.testing.architectures import CONFIGS, model_of
from tests.testing.tiny import block_model


@pytest.mark.parametrize("name", ["qwen3 moe", "gpt-oss"])
def test_a_forward_of_one_row_reads_what_is_awake(name: str) -> None:
    config = CONFIGS[name].to_dict()
    blocks = block_model(model_of(CONFIGS[name]), lambda floats: pack(floats, 8))
    experts, active = (12, 3) if name == "qwen3 moe" else (6, 2)
    several = sum(layer[place].nbytes for layer in blocks.layers for place in ("gate", "up", "down"))
    assert matrix_bytes(blocks) - row_bytes(blocks) == several * (experts - active) // experts
    assert step(config, own=True) == "kernels"
    plain = block_model(model_of(CONFIGS["llama"]))
    assert row_bytes(plain) == matrix_bytes(plain)
