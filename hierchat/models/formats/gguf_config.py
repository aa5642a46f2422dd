"""What a GGUF file's head says of the model, in transformers' terms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hierchat.models.architectures.architecture import EMBEDDING, HEAD, MATRICES, Architecture
from hierchat.models.architectures.families import ARCHITECTURES, GGUF_ARCHITECTURES
from hierchat.models.architectures.model_config import FULL, SLIDING, require_plausible
from hierchat.models.formats.gguf_families import FAMILIES, partial_rotary, scaling_of
from hierchat.models.formats.gguf_head import Head
from hierchat.models.progress import NONSENSE, BrokenFileError

MODEL_TYPES = {
    **{name: architecture.model_type for name, architecture in GGUF_ARCHITECTURES.items()},
    "gpt2": "gpt2",
    "qwen2moe": "qwen2_moe",
    "starcoder2": "starcoder2",
}
"""Architectures of GGUF files that we can compute: transformers' name for each. Those that are no entry of the registry
run through transformers."""
READ_BY_TRANSFORMERS = frozenset(
    [
        "gemma2",
        "gemma3",
        "gpt2",
        "llama",
        "mistral",
        "phi3",
        "qwen2",
        "qwen2moe",
        "qwen3",
        "qwen3moe",
        "starcoder2",
    ]
)
"""Those of them that transformers, too, can read."""


_LAYERS_OF_27B = {"gemma2": 46, "gemma3_text": 62}
"""By which llama.cpp, too, knows the one Gemma 2 and the one Gemma 3 that divide scores by the root of another number
than a head's size."""
_WINDOW_OF_GEMMA_2, _PERIOD_OF_GEMMA_4 = 4096, 6
"""Where a file does not name them."""


def completed(config: Mapping[str, Any], head: Head) -> dict[str, Any]:
    """What transformers makes of a GGUF file, with what it leaves out (scaled rotary positions) and without what it
    makes up (a window)."""
    said = gguf_config(head)
    scaled = said.pop("rope_scaling", {})
    parameters = dict(config.get("rope_parameters") or {})
    if FULL in parameters:
        parameters[FULL] = parameters[FULL] | scaled
    else:
        parameters |= scaled
    return {**config, "sliding_window": None, **said, "rope_parameters": parameters}


def gguf_config(head: Head) -> dict[str, Any]:
    """A GGUF file's configuration in transformers' terms, as far as it is asked for here; of FAMILIES all of it. Raises
    BrokenFileError where the file says too little of it, or numbers that cannot be."""
    try:
        require_plausible(
            {"num_hidden_layers": head.of_architecture("block_count")}
        )  # others are made from it
        family = FAMILIES.get(head.architecture)
        config = family.config(head) if family else _config(head)
        require_plausible(config)
    except NONSENSE as error:
        why = f" ({error})" if type(error) is ValueError else ""
        raise BrokenFileError(
            f"A GGUF file of {head.architecture} does not say all of what it is{why}. Choose another file."
        ) from error
    return config


def _config(head: Head) -> dict[str, Any]:
    kind = MODEL_TYPES.get(head.architecture, head.architecture.replace("-", "_"))
    window = head.of_architecture("attention.sliding_window")
    if kind == "olmo2" and window:
        kind = "olmo3"
    elif kind == "gemma2":
        window = window or _WINDOW_OF_GEMMA_2
    found = {
        "model_type": kind,
        "hidden_size": head.of_architecture("embedding_length"),
        "intermediate_size": head.of_architecture("feed_forward_length"),
        "num_hidden_layers": head.of_architecture("block_count"),
        "num_attention_heads": head.of_architecture("attention.head_count"),
        "num_key_value_heads": head.of_architecture("attention.head_count_kv"),
        "head_dim": head.of_architecture("attention.key_length"),
        "max_position_embeddings": head.of_architecture("context_length"),
        "sliding_window": window,
        "query_pre_attn_scalar": _query_scalar(head, kind) if kind in _LAYERS_OF_27B else None,
        "attn_logit_softcapping": head.of_architecture("attn_logit_softcapping"),
        "final_logit_softcapping": head.of_architecture("final_logit_softcapping"),
        **_experts(head, kind),
        "rope_scaling": scaling_of(head),
        "partial_rotary_factor": partial_rotary(head),
        **(_multipliers(head) if kind == "granite" else {}),
        **(_of_gemma4(head) if kind == "gemma4_text" else {}),
    }
    return {key: value for key, value in found.items() if value is not None}


def _experts(head: Head, kind: str) -> dict[str, Any]:
    """How many experts a layer has, how many a token wakes, and how wide one is."""
    experts, active = (head.of_architecture(f"expert_{key}") for key in ("count", "used_count"))
    width = head.of_architecture("expert_feed_forward_length")
    if kind == "gpt_oss":
        said = {"num_local_experts": experts, "num_experts_per_tok": active}
        return said | ({"intermediate_size": width} if width else {})
    if kind == "gemma4_text":
        said = {"num_experts": experts, "top_k_experts": active, "moe_intermediate_size": width}
        return {**said, "enable_moe_block": bool(experts)}
    if kind != "qwen3_moe":
        return {"num_local_experts": None if kind.endswith("_moe") else experts}
    if not width and active:
        width = head.of_architecture("feed_forward_length") // active
    return {
        "num_experts": experts,
        "num_experts_per_tok": active,
        "moe_intermediate_size": width,
        "norm_topk_prob": True,  # as llama.cpp has it, whose files do not say
    }


def _of_gemma4(head: Head) -> dict[str, Any]:
    """What differs from layer to layer, as far as the head says it."""
    layers, tensors = head.of_architecture("block_count") or 0, {tensor.name for tensor in head.tensors}
    every = head.of_architecture("attention.sliding_window_pattern") or _PERIOD_OF_GEMMA_4
    windowed = head.of_layers("attention.sliding_window_pattern") or [
        bool((layer + 1) % every) for layer in range(layers)
    ]
    full = [layer for layer, has_window in enumerate(windowed) if not has_window]
    wide = head.of_layers("feed_forward_length")
    key_values = head.of_layers("attention.head_count_kv")
    found = {
        "layer_types": [SLIDING if has_window else FULL for has_window in windowed],
        "head_dim": head.of_architecture("attention.key_length_swa"),
        "global_head_dim": head.of_architecture("attention.key_length"),
        "attention_k_eq_v": bool(full) and MATRICES["v"].of(full[0]).gguf not in tensors,
        "num_kv_shared_layers": head.of_architecture("attention.shared_kv_layers") or 0,
        "hidden_size_per_layer_input": head.of_architecture("embedding_length_per_layer_input") or 0,
        "use_double_wide_mlp": len(set(wide)) > 1,
        "hidden_activation": "gelu_pytorch_tanh",
    }
    if wide:
        found["intermediate_size"] = wide[0]
    if key_values:
        found["num_key_value_heads"] = key_values[windowed.index(True) if any(windowed) else 0]
        found["num_global_key_value_heads"] = key_values[full[0]] if full else None
    return found


def _multipliers(head: Head) -> dict[str, float | None]:
    return {
        "embedding_multiplier": head.of_architecture("embedding_scale"),
        "residual_multiplier": head.of_architecture("residual_scale"),
        "attention_multiplier": head.of_architecture("attention.scale"),
        "logits_scaling": head.of_architecture("logit_scale"),
    }


def _query_scalar(head: Head, kind: str) -> int | None:
    """The square of what Gemma divides scores by, which its files do not say."""
    if head.of_architecture("block_count") == _LAYERS_OF_27B[kind]:
        return int(head.of_architecture("embedding_length") // head.of_architecture("attention.head_count"))
    return head.of_architecture("attention.key_length")


WHOLE = frozenset(GGUF_ARCHITECTURES) - {"gemma2", "gemma3"}
"""Architectures of GGUF files of which `whole_config` has everything that the CPU engine reads."""


def whole_config(head: Head) -> dict[str, Any] | None:
    """config.json and generation_config.json in one, as transformers would make them of this file; None where only
    transformers can."""
    shapes = {tensor.name: tensor.shape for tensor in head.tensors}
    epsilon = head.of_architecture("attention.layer_norm_rms_epsilon")
    if head.architecture not in WHOLE or EMBEDDING.gguf not in shapes or epsilon is None:
        return None
    said = gguf_config(head)
    architecture = ARCHITECTURES[said["model_type"]]
    base = head.of_architecture("rope.freq_base") or architecture.rope_base
    local = head.of_architecture("rope.freq_base_swa")
    if architecture.optional_biases:
        said["attention_bias"] = MATRICES["q"].of(0, "bias").gguf in shapes
    scaled = said.pop("rope_scaling", {})
    return (
        {"sliding_window": None}
        | said
        | {
            "hidden_act": "silu",
            "rms_norm_eps": epsilon,
            "rope_parameters": _rotations(architecture, base, scaled, local),
            "tie_word_embeddings": HEAD.gguf not in shapes,
            "vocab_size": shapes[EMBEDDING.gguf][-1],
            **{
                f"{name}_token_id": head.values.get(f"tokenizer.ggml.{key}_token_id")
                for name, key in (("bos", "bos"), ("pad", "padding"))
            },
            "eos_token_id": end_tokens(head),
        }
    )


def _rotations(
    architecture: Architecture, base: float, scaled: dict[str, Any], local: float | None
) -> dict[str, Any]:
    """As config.json has it: of all layers, or of those without a window and those with one, which are not scaled."""
    given = {"rope_type": "default", "rope_theta": base}
    if architecture.full_head_dim:  # read_gguf finds out which part of a head they turn
        scaled, local = {"rope_type": "proportional"}, local or architecture.local_rope_base
    windowed = given | ({"rope_theta": local} if local else {})
    return {FULL: given | scaled, SLIDING: windowed} if architecture.local_rope_base else given | scaled


def end_tokens(head: Head) -> int | list[int] | None:
    """What ends a text, a turn or a message, as a generation configuration has it."""
    said = (head.values.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom"))
    ends = list(dict.fromkeys(end for end in said if end is not None))
    return ends if len(ends) > 1 else next(iter(ends), None)
