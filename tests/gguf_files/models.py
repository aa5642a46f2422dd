"""Tiny random models of the families whose GGUF files we read into transformers' modules."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM

from tests.testing.families import tiny_config

STEP = 2.0**-8
"""All weights are whole multiples of it, at most 127 of them: so eight bits hold them, in whatever order."""
VOCABULARY = 272
_SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": VOCABULARY - 4, "max_position_embeddings": 256,
}  # fmt: skip
_TWO_TO_ONE = {"linear_num_key_heads": 2, "linear_num_value_heads": 6, "layer_types": None}
_GRANITE = {
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.2,
    "logits_scaling": 4.0,
}
_HYBRID = {**_GRANITE, "mamba_n_groups": 2, "position_embedding_type": None}
_NEMOTRON = {"chunk_size": 128}
"""Positions at a time, as many as transformers takes where nothing says it: sums depend on it, files lack it."""
_NO_EXPERTS = {
    "n_routed_experts": 8,
    "moe_intermediate_size": 7688,
    "moe_shared_expert_intermediate_size": 7688,
}
"""What transformers says of experts where there are none."""
_EXPERTS = {"intermediate_size": 32, "routed_scaling_factor": 2.5}
_LATENT = {"n_routed_experts": 8, "n_group": 2, "moe_latent_size": 32}
"""Experts in two groups, of another width than their layer."""
_SLIDING, _FULL = "sliding_attention", "full_attention"
_GEMMA3N = {
    "vocab_size_per_layer_input": VOCABULARY, "num_hidden_layers": 5, "intermediate_size": [96, 96, 96, 64, 64],
    "layer_types": [_SLIDING, _FULL, _SLIDING, _SLIDING, _FULL], "laurel_rank": 32,
    "activation_sparsity_pattern": [0.95, 0.95, 0.0, 0.0, 0.0],
}  # fmt: skip
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "qwen35": ("qwen35", "qwen3_5_text", _TWO_TO_ONE),
    "qwen35, heads alike": ("qwen35", "qwen3_5_text", {"layer_types": None, "tie_word_embeddings": True}),
    "qwen35moe": ("qwen35moe", "qwen3_5_moe_text", _TWO_TO_ONE),
    "qwen3next": ("qwen3next", "qwen3_next", _TWO_TO_ONE),
    "granitehybrid": ("granitehybrid", "granitemoehybrid", _HYBRID),
    "granitehybrid, experts": ("granitehybrid", "granitemoehybrid, experts", _HYBRID),
    "granitemoe": ("granitemoe", "granitemoe", _GRANITE),
    "granitemoe, shared": ("granitemoe", "granitemoeshared", _GRANITE),
    "lfm2": ("lfm2", "lfm2", {"block_auto_adjust_ff_dim": False}),
    "lfm2moe": ("lfm2moe", "lfm2_moe", {}),
    "nemotron_h": ("nemotron_h", "nemotron_h", {**_NEMOTRON, "n_groups": 2, **_NO_EXPERTS}),
    "nemotron_h_moe": ("nemotron_h_moe", "nemotron_h, experts", {**_NEMOTRON, **_EXPERTS}),
    "nemotron_h_moe, latent": ("nemotron_h_moe", "nemotron_h, experts", {**_NEMOTRON, **_EXPERTS, **_LATENT}),
    "cohere2": ("cohere2", "cohere2", {"num_hidden_layers": 5, "layer_types": None, "logit_scale": 0.25}),
    "gemma3n": ("gemma3n", "gemma3n_text", _GEMMA3N),
    "olmoe": ("olmoe", "olmoe", {}),
    "qwen2moe": ("qwen2moe", "qwen2_moe", {}),
    "glm4moe": ("glm4moe", "glm4_moe", {"head_dim": 16, "use_qk_norm": True, "routed_scaling_factor": 2.5}),
    "glm4moe, biases": ("glm4moe", "glm4_moe", {"head_dim": 16, "attention_bias": True}),
}
"""By a name: the architecture in files, transformers' name of the kind, and what its configuration says besides."""
DAILY = (
    "qwen35", "granitehybrid", "granitemoe, shared", "lfm2moe", "nemotron_h_moe", "cohere2", "gemma3n", "glm4moe",
)  # fmt: skip
"""Families whose heads and tensors say different things; files of the others are tried whole once a night."""
GUESSING = {"qwen35", "glm4moe"}
"""Written with a layer behind the others that guesses further tokens."""


def as_stored(logarithms: NDArray[np.float32]) -> NDArray[np.float32]:
    """What comes back where a file holds the exponential."""
    return np.log(np.exp(logarithms).astype(np.float64)).astype(np.float32)


def tiny_module(name: str, **changed: Any) -> Any:
    """Random, with norms and biases that are neither ones nor zeros."""
    _, kind, also = FAMILIES[name]
    config = tiny_config(kind, **_SHAPE, **also | changed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)
        make_whole(model.state_dict())
    return model


def make_whole(tensors: Mapping[str, torch.Tensor]) -> None:
    """Change random tensors so that eight bits hold them."""
    for said, tensor in tensors.items():
        if said.endswith("A_log"):
            while not np.array_equal(tensor, again := as_stored(tensor.numpy())):
                tensor.copy_(torch.from_numpy(again))
            continue
        if re.search(r"norm|bias|scale|\.D$", said):
            tensor.normal_(0.0 if "bias" in said else 1.0, 0.3)
        if re.search(r"(gate|router)\.weight$", said):  # or all experts are wanted alike
            tensor.normal_(0.0, 0.3)
        most = 127 if tensor.ndim > 1 else 512
        tensor.copy_((tensor / STEP).round().clamp(-most, most) * STEP)
