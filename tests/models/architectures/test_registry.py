"""Each architecture is a file of its own and a line of the registry; what it declares is what transformers builds."""

from __future__ import annotations

import numpy as np
import pytest
from transformers import AutoConfig, AutoModelForCausalLM

from hierchat.models.architectures import families
from hierchat.models.architectures.families import ARCHITECTURES, GGUF_ARCHITECTURES, HEAD, Architecture
from hierchat.models.architectures.model_config import tensors
from hierchat.models.formats.assemble import whole
from tests.testing.architectures import tensors_of

SHAPE = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "pad_token_id": 0,
    "vocab_size_per_layer_input": 96,
    "hidden_size_per_layer_input": 32,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2}


def test_every_architecture_is_listed_once() -> None:
    written = {name for name, value in vars(families).items() if isinstance(value, Architecture)}
    assert len(written) == len(ARCHITECTURES) == len(GGUF_ARCHITECTURES)


@pytest.mark.parametrize("architecture", ARCHITECTURES.values(), ids=list(ARCHITECTURES))
def test_its_tensors_are_those_of_transformers(architecture: Architecture) -> None:
    config = AutoConfig.for_model(
        architecture.model_type, **SHAPE, **(EXPERTS if architecture.experts else {})
    )
    model = AutoModelForCausalLM.from_config(config)
    state, read = tensors_of(model), set()

    def tensor(name: str) -> np.ndarray:
        read.add(name)
        return state[name]

    for name in tensors(architecture, config.to_dict()):
        whole(name, EXPERTS["num_experts"], tensor)
    assert read == set(state)


@pytest.mark.parametrize("architecture", ARCHITECTURES.values(), ids=list(ARCHITECTURES))
def test_its_tensors_are_known_to_gguf(architecture: Architecture) -> None:
    from gguf import MODEL_ARCH_NAMES, MODEL_TENSORS, TENSOR_NAMES

    if (architecture.gguf or architecture.model_type) not in MODEL_ARCH_NAMES.values():
        pytest.skip("a name that transformers alone gives")
    of = next(
        number
        for number, name in MODEL_ARCH_NAMES.items()
        if name == (architecture.gguf or architecture.model_type)
    )
    stems = {TENSOR_NAMES[kind].format(bid=0) for kind in MODEL_TENSORS[of]}
    config = {"num_hidden_layers": 1, "hidden_size_per_layer_input": 32}
    for name in set(tensors(architecture, config)) - {HEAD}:  # Gemma 2 has none of its own
        assert name.gguf.rsplit(".", 1)[0] in stems
