"""What can be computed here: one table for our own engine, one for the way through transformers.

Asked of a configuration alone, so that a model is refused before its weights are fetched, unpacked or read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hierchat.models.errors import UnsupportedError
from hierchat.models.formats.block_model import heads_of
from hierchat.models.formats.block_types import TYPES
from hierchat.models.formats.gguf_head import Head
from hierchat.models.formats.quantised_blocks import BLOCK

ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")
"""What our own engine computes, as transformers calls it."""
ROPE_SCALINGS = ("default", "linear", "llama3", "yarn")

_WINDOW = "some of its layers have a sliding window, which cannot be taken back where a draft was wrong"
_STATE = "its layers keep a running state, which cannot be taken back where a draft was wrong"
_OWN_ATTENTION = "it computes attention in a way of its own, in which drafts cannot be verified"
_NO_CHAT = "it is made to turn one text into another, not to chat"
REFUSED = {
    **dict.fromkeys(("cohere2", "gemma2", "gemma3", "gemma3_text", "gemma3n", "gemma4", "gpt_oss"), _WINDOW),
    **dict.fromkeys(("jamba", "lfm2", "mamba", "mamba2", "qwen3_next", "recurrent_gemma", "rwkv"), _STATE),
    **dict.fromkeys(
        ("bloom", "codegen", "gpt_bigcode", "gptj", "mpt", "nemotron", "stablelm"), _OWN_ATTENTION
    ),
    **dict.fromkeys(("bart", "t5", "umt5"), _NO_CHAT),
}
"""What transformers knows and we cannot compute with it, and why."""
GGUF = {
    **{name: name for name in (*ARCHITECTURES, "gpt2", "phi3", "starcoder2")},
    "qwen2moe": "qwen2_moe",
    "qwen3moe": "qwen3_moe",
}
"""Architectures of GGUF files that we can compute: transformers' name for each."""


def unsupported(config: Mapping[str, Any], context_length: int) -> str | None:
    """Why our own engine cannot compute a model of this configuration; None if it can."""
    kind = config.get("model_type")
    if kind not in ARCHITECTURES:
        return f"architecture {kind}"
    if config.get("hidden_act", "silu") != "silu":
        return f"activation {config['hidden_act']}"
    if config.get("mlp_bias") or (config.get("attention_bias") and kind != "qwen2"):
        return "biases of this architecture"
    if config.get("num_local_experts"):
        return "several experts in a layer"
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if (rope := scaling.get("rope_type") or scaling.get("type") or "default") not in ROPE_SCALINGS:
        return f"rope scaling {rope}"
    window = config.get("sliding_window") if config.get("use_sliding_window", kind == "mistral") else None
    if window and window < context_length:
        return f"a sliding window of {window}"
    heads, kv_heads, size = heads_of(config)
    widths = (config["hidden_size"], config["intermediate_size"], heads * size)
    if any(width % BLOCK for width in widths) or size % 16 or heads % kv_heads:
        return f"rows of {', '.join(map(str, widths))} numbers, which are no whole blocks of {BLOCK}"
    return None


def require_supported(config: Mapping[str, Any], context_length: int) -> None:
    """Raises UnsupportedError with the reason."""
    if reason := unsupported(config, context_length):
        raise UnsupportedError(f"The CPU engine does not compute {reason}.")


def refused(config: Mapping[str, Any], context_length: int) -> str | None:
    """Why a model of this configuration cannot be computed through transformers; None where nothing speaks against it.

    Drafts that were not kept must leave no trace, and every row of a block must be computed by itself.
    """
    kind = str(config.get("model_type"))
    if kind in REFUSED:
        return REFUSED[kind]
    layers = set(config.get("layer_types") or ["full_attention"])
    # Some configurations name a window and no layers (Mistral); one as wide as the context hides nothing.
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    hides = bool(window and window < context_length and not config.get("layer_types"))
    if hides or "sliding_attention" in layers:
        return _WINDOW
    if layers != {"full_attention"}:
        return _STATE
    return _OWN_ATTENTION if config.get("attn_logit_softcapping") else None


def gguf_config(head: Head) -> dict[str, Any]:
    """A GGUF file's configuration in transformers' terms, as far as it is asked for here."""
    kind = GGUF.get(head.architecture, head.architecture.replace("-", "_"))
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


def gguf_unsupported(head: Head, context_length: int) -> str | None:
    """Why our own engine cannot compute a GGUF file; None if it can."""
    config = gguf_config(head)
    odd = sorted({tensor.type for tensor in head.tensors} - set(TYPES))
    if config["model_type"] in ARCHITECTURES and not config.get("num_attention_heads"):
        return "layers of different shapes"
    return unsupported(config, context_length) or (f"block type {odd[0]}" if odd else None)


def gguf_refused(head: Head, context_length: int) -> str | None:
    """The same through transformers, which reads the files of some architectures only."""
    if reason := refused(gguf_config(head), context_length):
        return reason
    if head.architecture not in GGUF:
        return "no way is known here to read such a file"
    return "it has several experts in a layer" if gguf_config(head).get("num_local_experts") else None
