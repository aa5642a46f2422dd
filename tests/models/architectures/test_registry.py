"""Each architecture is a line of the registry, and its tensors have the names that llama.cpp gives them."""

from __future__ import annotations

import pytest
from gguf import MODEL_ARCH_NAMES, MODEL_TENSORS, TENSOR_NAMES

from hierchat.models.architectures.families import ARCHITECTURES, GGUF_ARCHITECTURES, HEAD, Architecture
from hierchat.models.architectures.model_config import tensors
from tests.testing.architectures import CONFIGS


def test_every_architecture_is_listed_once_and_tried() -> None:
    assert len(ARCHITECTURES) == len(GGUF_ARCHITECTURES)
    assert {config.model_type for config in CONFIGS.values()} == set(ARCHITECTURES)


@pytest.mark.parametrize("architecture", ARCHITECTURES.values(), ids=list(ARCHITECTURES))
def test_its_tensors_are_known_to_gguf(architecture: Architecture) -> None:
    kinds = {name: kind for kind, name in MODEL_ARCH_NAMES.items()}
    if (its := architecture.gguf or architecture.model_type) not in kinds:
        pytest.skip("a name that transformers alone gives")
    stems = {TENSOR_NAMES[kind].format(bid=0) for kind in MODEL_TENSORS[kinds[its]]}
    config = {"num_hidden_layers": 1, "hidden_size_per_layer_input": 32}
    for name in set(tensors(architecture, config)) - {HEAD}:  # Gemma 2 has none of its own
        assert name.gguf.rsplit(".", 1)[0] in stems
