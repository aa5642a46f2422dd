"""GLM 4 with experts, such as GLM 4.5 Air. Its files have the layer that guesses further tokens, too."""

from __future__ import annotations

from typing import Any

from hierchat.models.formats.gguf_families.common import common, has, needed
from hierchat.models.formats.gguf_families.family import EXPERTS, SCORE_BIAS, Family
from hierchat.models.formats.gguf_head import Head


def _config(head: Head) -> dict[str, Any]:
    return common(
        head,
        model_type="glm4_moe",
        attention_bias=has(head, "attn_q.bias"),
        use_qk_norm=has(head, "attn_q_norm.weight"),
        first_k_dense_replace=head.of_architecture("leading_dense_block_count") or 0,
        n_routed_experts=needed(head, "expert_count"),
        n_shared_experts=needed(head, "expert_shared_count"),
        num_experts_per_tok=needed(head, "expert_used_count"),
        moe_intermediate_size=needed(head, "expert_feed_forward_length"),
        norm_topk_prob=head.of_architecture("expert_weights_norm"),
        routed_scaling_factor=head.of_architecture("expert_weights_scale"),
        n_group=head.of_architecture("expert_group_count"),
        topk_group=head.of_architecture("expert_group_used_count"),
        num_nextn_predict_layers=0,
    )


FAMILIES = (Family("glm4moe", ("glm4_moe",), _config, lambda config: EXPERTS | SCORE_BIAS),)
