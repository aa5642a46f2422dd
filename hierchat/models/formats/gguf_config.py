"""What a GGUF file's head says of the model, in transformers' terms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hierchat.models.architectures.names import EMBEDDING, HEAD
from hierchat.models.architectures.registry import GGUF_ARCHITECTURES
from hierchat.models.architectures.windows import FULL
from hierchat.models.formats.gguf_head import Head

MODEL_TYPES = {
    **{name: architecture.model_type for name, architecture in GGUF_ARCHITECTURES.items()},
    "gpt2": "gpt2",
    "phi3": "phi3",
    "qwen2moe": "qwen2_moe",
    "starcoder2": "starcoder2",
}
"""Architectures of GGUF files that we can compute: transformers' name for each. Those that are no entry of the registry
run through transformers."""


_LAYERS_OF_27B = 62
"""By which llama.cpp, too, knows the one Gemma 3 that divides scores by the root of another number than a head's
size."""


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
    """A GGUF file's configuration in transformers' terms, as far as it is asked for here."""
    kind = MODEL_TYPES.get(head.architecture, head.architecture.replace("-", "_"))
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
        "query_pre_attn_scalar": _query_scalar(head) if kind == "gemma3_text" else None,
        "attn_logit_softcapping": head.of_architecture("attn_logit_softcapping"),
        "final_logit_softcapping": head.of_architecture("final_logit_softcapping"),
        **_experts(head, kind),
        "rope_scaling": _scaling(head),
    }
    return {key: value for key, value in found.items() if value is not None}


def _experts(head: Head, kind: str) -> dict[str, Any]:
    """How many experts a layer has, how many a token wakes, and how wide one is."""
    experts, active = (head.of_architecture(f"expert_{key}") for key in ("count", "used_count"))
    width = head.of_architecture("expert_feed_forward_length")
    if kind == "gpt_oss":
        said = {"num_local_experts": experts, "num_experts_per_tok": active}
        return said | ({"intermediate_size": width} if width else {})
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


def _query_scalar(head: Head) -> int | None:
    """The square of what Gemma 3 divides scores by, which its files do not say."""
    if head.of_architecture("block_count") == _LAYERS_OF_27B:
        return int(head.of_architecture("embedding_length") // head.of_architecture("attention.head_count"))
    return head.of_architecture("attention.key_length")


def _scaling(head: Head) -> dict[str, Any] | None:
    if (kind := head.of_architecture("rope.scaling.type")) in (None, "none"):
        return None
    found = {
        "rope_type": kind,
        "factor": head.of_architecture("rope.scaling.factor"),
        "original_max_position_embeddings": head.of_architecture("rope.scaling.original_context_length"),
        "truncate": False if head.architecture == "gpt-oss" else None,  # as it was trained
    }
    return {key: value for key, value in found.items() if value is not None}


WHOLE = ("gpt-oss", "llama", "mistral", "qwen2", "qwen3", "qwen3moe")
"""Architectures of GGUF files of which `whole_config` has everything that the CPU engine reads."""


def whole_config(head: Head) -> dict[str, Any] | None:
    """config.json and generation_config.json in one, as transformers would make them of this file; None where only
    transformers can."""
    shapes = {tensor.name: tensor.shape for tensor in head.tensors}
    epsilon = head.of_architecture("attention.layer_norm_rms_epsilon")
    if head.architecture not in WHOLE or EMBEDDING.gguf not in shapes or epsilon is None:
        return None
    base = head.of_architecture("rope.freq_base")
    said = gguf_config(head)
    scaled = said.pop("rope_scaling", {})
    return (
        {"sliding_window": None}
        | said
        | {
            "hidden_act": "silu",
            "rms_norm_eps": epsilon,
            "rope_parameters": {"rope_type": "default", "rope_theta": base or 10000.0} | scaled,
            "tie_word_embeddings": HEAD.gguf not in shapes,
            "vocab_size": shapes[EMBEDDING.gguf][-1],
            **{
                f"{name}_token_id": head.values.get(f"tokenizer.ggml.{key}_token_id")
                for name, key in (("bos", "bos"), ("pad", "padding"))
            },
            "eos_token_id": end_tokens(head),
        }
    )


def end_tokens(head: Head) -> int | list[int] | None:
    """What ends a text, a turn or a message, as a generation configuration has it."""
    said = (head.values.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom"))
    ends = list(dict.fromkeys(end for end in said if end is not None))
    return ends if len(ends) > 1 else next(iter(ends), None)
