"""What a configuration says of texts, where a model knows pictures or sounds, too, in words for texts alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

KINDS = {
    "gemma4": "gemma4_text",
    "gemma4_unified": "gemma4_text",
    "gemma4_unified_text": "gemma4_text",
}
"""Kinds of models whose texts our own engine computes from safetensors, and as which architecture."""
PREFIX = "model.language_model."
"""Where the tensors of texts stand among others; in place of "model."."""


def of_text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configuration itself, unless it is of one of KINDS."""
    kind = KINDS.get(str(config.get("model_type")))
    if not kind:
        return config
    text = config.get("text_config") or config
    tied = text.get("tie_word_embeddings", config.get("tie_word_embeddings", True))
    return {**text, "model_type": kind, "tie_word_embeddings": tied}
