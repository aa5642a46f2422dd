"""What a GGUF file's head says of rotary positions, in transformers' terms."""

from __future__ import annotations

from typing import Any

from hierchat.models.architectures.names import LONG_FACTORS
from hierchat.models.formats.gguf_head import Head


def rotary_part(head: Head) -> float | None:
    """Of a head's numbers, where rotary positions do not turn all of them."""
    turned, heads = head.of_architecture("rope.dimension_count"), head.of_architecture("attention.head_count")
    if not turned or not heads:
        return None
    size = head.of_architecture("attention.key_length") or head.of_architecture("embedding_length") // heads
    return turned / size if turned < size else None


def scaling_of(head: Head) -> dict[str, Any] | None:
    """How rotary positions are scaled; None where they are not."""
    kind = head.of_architecture("rope.scaling.type")
    if any(tensor.name == LONG_FACTORS for tensor in head.tensors):
        kind = "longrope"  # older files do not say it
    if kind in (None, "none"):
        return None
    found = {
        "rope_type": kind,
        "factor": head.of_architecture("rope.scaling.factor"),
        "original_max_position_embeddings": head.of_architecture("rope.scaling.original_context_length"),
        "beta_fast": head.of_architecture("rope.scaling.yarn_beta_fast"),
        "beta_slow": head.of_architecture("rope.scaling.yarn_beta_slow"),
        "truncate": False if head.architecture == "gpt-oss" else None,  # as it was trained
    }
    if kind == "longrope":
        found["attention_factor"] = head.of_architecture("rope.scaling.attn_factor")
    if both := head.of_architecture("rope.scaling.yarn_log_multiplier"):
        found |= {"mscale": both, "mscale_all_dim": both}
    found["llama_4_scaling_beta"] = head.of_architecture("attention.temperature_scale")
    return {key: value for key, value in found.items() if value is not None}
