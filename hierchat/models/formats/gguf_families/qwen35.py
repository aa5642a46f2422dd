"""Qwen3.5 and 3.6, dense and with experts, and Qwen3-Next: three layers of Gated DeltaNet, one of attention.

Files of Qwen3.5 have the heads of values in turn: the first of each key's, then the second of each. Transformers has
all of a key's heads together. Qwen3-Next's files cut apart what transformers projects at once, key by key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hierchat.models.formats.gguf_families.common import (
    FULL,
    STATE,
    common,
    layers_of,
    needed,
    rotations,
    states,
)
from hierchat.models.formats.gguf_families.family import (
    EXPERTS,
    STATES,
    Config,
    Family,
    Floats,
    Part,
    itself,
    minus_one,
)
from hierchat.models.formats.gguf_head import Head

_EVERY = 4
"""Layers of which one is of attention, where a file does not say it."""
_NORMS = {"norm.weight": Part(minus_one), "linear_attn.norm.weight": Part(itself)}


def _config(head: Head, kind: str, **also: Any) -> dict[str, Any]:
    sizes = states(head)
    layers, every = layers_of(head), head.of_architecture("full_attention_interval") or _EVERY
    recurrent = head.of_layers("attention.recurrent_layers")[:layers] or [
        bool((layer + 1) % every) for layer in range(layers)
    ]
    return common(
        head,
        model_type=kind,
        layer_types=[STATE if one else FULL for one in recurrent],
        linear_conv_kernel_dim=sizes["conv_kernel"],
        linear_key_head_dim=sizes["state_size"],
        linear_value_head_dim=sizes["head"],
        linear_num_key_heads=sizes["group_count"],
        linear_num_value_heads=sizes["time_step_rank"],
        **also,
    )


def _with_experts(head: Head, kind: str, **also: Any) -> dict[str, Any]:
    return _config(
        head,
        kind,
        num_experts=needed(head, "expert_count"),
        num_experts_per_tok=needed(head, "expert_used_count"),
        moe_intermediate_size=needed(head, "expert_feed_forward_length"),
        shared_expert_intermediate_size=needed(head, "expert_shared_feed_forward_length"),
        **also,
    )


def _three_axes(head: Head) -> dict[str, Any]:
    """Rotary positions that pictures have in three; of texts all three are the same."""
    sections = head.of_layers("rope.dimension_sections")[:3] or None
    return {"rope_parameters": rotations(head, mrope_section=sections)}


def _grouped(config: Config, axis: int, size: int | None = None) -> Callable[[Floats], Floats]:
    """Heads of values in turn -> by keys. `size`: numbers of a head."""
    keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    size = size or config["linear_value_head_dim"]

    def by_keys(tensor: Floats) -> Floats:
        before, behind = tensor.shape[:axis], tensor.shape[axis + 1 :]
        heads = tensor.reshape(*before, values // keys, keys, size, *behind)
        return heads.swapaxes(axis, axis + 1).reshape(tensor.shape)

    return by_keys


def _values_grouped(config: Config) -> Callable[[Floats], Floats]:
    """The same of rows of which the first are queries and keys."""
    first = 2 * config["linear_num_key_heads"] * config["linear_key_head_dim"]
    by_keys = _grouped(config, 0)
    return lambda tensor: np.concatenate([tensor[:first], by_keys(tensor[first:])])


def _of_qwen35(config: Config) -> Mapping[str, Part]:
    rows, numbers = _grouped(config, 0), _grouped(config, 0, 1)
    return {
        **_NORMS,
        **EXPERTS,
        "linear_attn.in_proj_qkv.weight": Part(_values_grouped(config)),
        "linear_attn.conv1d.weight": Part(_values_grouped(config)),
        "linear_attn.in_proj_z.weight": Part(rows),
        "linear_attn.in_proj_a.weight": Part(numbers),
        "linear_attn.in_proj_b.weight": Part(numbers),
        "linear_attn.out_proj.weight": Part(_grouped(config, 1), columns=True),
        "linear_attn.A_log": Part(lambda tensor: numbers(STATES["A_log"].make(tensor))),
        "linear_attn.dt_bias": Part(numbers, STATES["dt_bias"].of),
    }


def _of_qwen3next(config: Config) -> Mapping[str, Part]:
    keys = config["linear_num_key_heads"]
    first = keys * config["linear_key_head_dim"]

    def key_by_key(projected: Floats, gate: Floats) -> Floats:
        queries, its_keys, values = np.split(projected, [first, 2 * first])
        apart = [one.reshape(keys, -1, one.shape[-1]) for one in (queries, its_keys, values, gate)]
        return np.concatenate(apart, axis=1).reshape(-1, projected.shape[-1])

    of = ("attn_qkv.weight", "attn_gate.weight")
    return {
        **_NORMS,
        **EXPERTS,
        **STATES,
        "linear_attn.in_proj_qkvz.weight": Part(key_by_key, of, "ssm_in.weight"),
    }


FAMILIES = (
    Family(
        "qwen35",
        ("qwen3_5_text", "qwen3_5"),
        lambda head: _config(head, "qwen3_5_text", **_three_axes(head)),
        _of_qwen35,
    ),
    Family(
        "qwen35moe",
        ("qwen3_5_moe_text", "qwen3_5_moe"),
        lambda head: _with_experts(head, "qwen3_5_moe_text", **_three_axes(head)),
        _of_qwen35,
    ),
    Family("qwen3next", ("qwen3_next",), lambda head: _with_experts(head, "qwen3_next"), _of_qwen3next),
)
