"""What a GGUF file's head says of the model, in transformers' terms."""

from __future__ import annotations

from typing import Any

from hierchat.models.architectures.registry import GGUF_ARCHITECTURES
from hierchat.models.formats.gguf_head import Head

MODEL_TYPES = {
    **{name: architecture.model_type for name, architecture in GGUF_ARCHITECTURES.items()},
    "gpt2": "gpt2",
    "phi3": "phi3",
    "qwen2moe": "qwen2_moe",
    "qwen3moe": "qwen3_moe",
    "starcoder2": "starcoder2",
}
"""Architectures of GGUF files that we can compute: transformers' name for each. Those that are no entry of the registry
run through transformers."""


def gguf_config(head: Head) -> dict[str, Any]:
    """A GGUF file's configuration in transformers' terms, as far as it is asked for here."""
    kind = MODEL_TYPES.get(head.architecture, head.architecture.replace("-", "_"))
    scaling = head.of_architecture("rope.scaling.type")
    experts = head.of_architecture("expert_count")
    found = {
        "model_type": kind,
        "hidden_size": head.of_architecture("embedding_length"),
        "intermediate_size": head.of_architecture("feed_forward_length"),
        "num_hidden_layers": head.of_architecture("block_count"),
        "num_attention_heads": head.of_architecture("attention.head_count"),
        "num_key_value_heads": head.of_architecture("attention.head_count_kv"),
        "head_dim": head.of_architecture("attention.key_length"),
        "max_position_embeddings": head.of_architecture("context_length"),
        "sliding_window": head.of_architecture("attention.sliding_window"),
        "attn_logit_softcapping": head.of_architecture("attn_logit_softcapping"),
        "num_local_experts": None if kind.endswith("_moe") else experts,
        "rope_scaling": {"rope_type": scaling} if scaling not in (None, "none") else None,
    }
    return {key: value for key, value in found.items() if value is not None}
