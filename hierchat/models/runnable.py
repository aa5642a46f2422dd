"""What can be computed here: by our own engine (the registry of architectures), and through transformers.

Asked of a configuration alone, so that a model is refused before its weights are fetched, unpacked or read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hierchat.models.architectures.architecture import ACTIVATIONS
from hierchat.models.architectures.names import ROPE_FACTORS
from hierchat.models.architectures.registry import ARCHITECTURES, GGUF_ARCHITECTURES, unknown
from hierchat.models.architectures.rope import SCALINGS, scaling, scaling_type
from hierchat.models.architectures.sizes import heads_of
from hierchat.models.architectures.windows import FULL, SLIDING
from hierchat.models.errors import UnsupportedError
from hierchat.models.formats.block_types import TYPES
from hierchat.models.formats.gguf_config import MODEL_TYPES, gguf_config
from hierchat.models.formats.gguf_head import Head
from hierchat.models.formats.layouts import BLOCK

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


def unsupported(config: Mapping[str, Any]) -> str | None:
    """Why our own engine cannot compute a model of this configuration; None if it can."""
    kind = str(config.get("model_type"))
    if not (architecture := ARCHITECTURES.get(kind)):
        return unknown(kind)
    if (activation := architecture.activation_of(config)) not in ACTIVATIONS:
        return f"activation {activation}"
    if config.get("mlp_bias") or (config.get("attention_bias") and not architecture.biases):
        return "biases of this architecture"
    if config.get("num_local_experts"):
        return "several experts in a layer"
    if (rope := scaling_type(scaling(config))) not in SCALINGS:
        return f"rope scaling {rope}"
    if others := set(config.get("layer_types") or ()) - {FULL, SLIDING}:
        return f"layers of {min(others)}"
    if config.get("use_bidirectional_attention"):
        return "attention to what comes behind"
    if config.get("attn_logit_softcapping") or config.get("final_logit_softcapping"):
        return "scores or logits with a soft cap"
    heads, kv_heads, size = heads_of(config)
    widths = (config["hidden_size"], config["intermediate_size"], heads * size)
    if any(width % BLOCK for width in widths) or size % 16 or heads % kv_heads:
        return f"rows of {', '.join(map(str, widths))} numbers, which are no whole blocks of {BLOCK}"
    return None


def require_supported(config: Mapping[str, Any]) -> None:
    """Raises UnsupportedError with the reason."""
    if reason := unsupported(config):
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


def gguf_unsupported(head: Head) -> str | None:
    """Why our own engine cannot compute a GGUF file; None if it can."""
    config = gguf_config(head)
    if not (architecture := GGUF_ARCHITECTURES.get(head.architecture)):
        return unknown(config["model_type"])
    if not config.get("num_attention_heads"):
        return "layers of different shapes"
    if reason := unsupported(config):
        return reason
    known = {name.gguf for name in architecture.tensors(config.get("num_hidden_layers") or 0)}
    if foreign := {tensor.name for tensor in head.tensors} - known - {ROPE_FACTORS}:
        return f"tensor {min(foreign)}, which {architecture.model_type} does not have"
    odd = sorted({tensor.type for tensor in head.tensors} - set(TYPES))
    return f"block type {odd[0]}" if odd else None


def gguf_refused(head: Head, context_length: int) -> str | None:
    """The same through transformers, which reads the files of some architectures only."""
    if reason := refused(gguf_config(head), context_length):
        return reason
    if head.architecture not in MODEL_TYPES:
        return f"no way is known here to read such a file (known are {', '.join(MODEL_TYPES)})"
    return "it has several experts in a layer" if gguf_config(head).get("num_local_experts") else None
