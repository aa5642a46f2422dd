"""Gemma 3n, of texts: four streams side by side (AltUp), inputs of layers, keys that layers share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from hierchat.models.architectures.names import LAYER_EMBEDDING
from hierchat.models.formats.gguf_families.common import FULL, SLIDING, by_layer, common, needed, rotations
from hierchat.models.formats.gguf_families.family import Config, Family, Floats, Part
from hierchat.models.formats.gguf_head import Head

_LOCAL_BASE = 10_000.0
"""Of rotary positions in layers with a window, where a file does not say it."""


def _config(head: Head) -> dict[str, Any]:
    shapes = {tensor.name: tensor.shape for tensor in head.tensors}
    scales = by_layer(head, "activation_sparsity_scale")
    whole = rotations(head)
    whole.pop("partial_rotary_factor")
    local = head.of_architecture("rope.freq_base_swa") or _LOCAL_BASE
    return common(
        head,
        model_type="gemma3n_text",
        intermediate_size=by_layer(head, "feed_forward_length"),
        sliding_window=needed(head, "attention.sliding_window"),
        layer_types=[SLIDING if one else FULL for one in by_layer(head, "attention.sliding_window_pattern")],
        rope_parameters={FULL: whole, SLIDING: {"rope_type": "default", "rope_theta": local}},
        final_logit_softcapping=head.of_architecture("final_logit_softcapping"),
        vocab_size_per_layer_input=shapes[LAYER_EMBEDDING.gguf][-1]
        if LAYER_EMBEDDING.gguf in shapes
        else None,
        hidden_size_per_layer_input=needed(head, "embedding_length_per_layer_input"),
        altup_active_idx=needed(head, "altup.active_idx"),
        altup_num_inputs=needed(head, "altup.num_inputs"),
        num_kv_shared_layers=needed(head, "attention.shared_kv_layers"),
        laurel_rank=shapes["blk.0.laurel_l.weight"][1] if "blk.0.laurel_l.weight" in shapes else None,
        activation_sparsity_pattern=[_share(one) for one in scales],
    )


def _share(deviations: float) -> float:
    """Of a normal distribution, what lies below so many standard deviations; files have these."""
    return round((1 + math.erf(deviations / math.sqrt(2))) / 2, 6)


def _parts(config: Config) -> Mapping[str, Part]:
    def one(stream: int, name: str) -> Part:
        def taken(tensor: Floats) -> Floats:
            return np.asarray(tensor[stream])

        return Part(taken, (name,))

    return {
        f"{said}.{stream}.weight": one(stream, f"{name}.weight")
        for said, name in (
            ("altup_projections", "altup_proj"),
            ("altup_unembed_projections", "altup_unembd_proj"),
        )
        for stream in range(config["altup_num_inputs"] - 1)
    }


FAMILIES = (
    Family(
        "gemma3n",
        ("gemma3n_text", "gemma3n"),
        _config,
        _parts,
        unused=("attn_k.weight", "attn_v.weight", "attn_k_norm.weight"),
    ),
)
