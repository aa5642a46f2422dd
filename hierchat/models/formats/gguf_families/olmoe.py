"""OLMoE: experts in every layer, norms of whole queries and keys."""

from __future__ import annotations

from typing import Any

from hierchat.models.formats.gguf_families.common import common, needed
from hierchat.models.formats.gguf_families.family import EXPERTS, Family
from hierchat.models.formats.gguf_head import Head


def _config(head: Head) -> dict[str, Any]:
    return common(
        head,
        model_type="olmoe",
        num_experts=needed(head, "expert_count"),
        num_experts_per_tok=needed(head, "expert_used_count"),
        clip_qkv=head.of_architecture("attention.clamp_kqv"),
        norm_topk_prob=False,
    )


FAMILIES = (Family("olmoe", ("olmoe",), _config, lambda config: EXPERTS),)
