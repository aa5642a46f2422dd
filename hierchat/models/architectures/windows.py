"""How far back the layers of a decoder see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hierchat.models.architectures.architecture import Architecture

FULL, SLIDING = "full_attention", "sliding_attention"
"""What transformers calls the kinds of layers that the CPU engine computes."""


def layer_kinds(config: Mapping[str, Any], architecture: Architecture) -> list[str]:
    """What each layer's attention is, in transformers' words, also where an older config.json does not name it."""
    if kinds := config.get("layer_types"):
        return list(kinds)
    layers = range(config["num_hidden_layers"])
    if not _window(config, architecture):
        return [FULL for _ in layers]
    period = config.get("sliding_window_pattern") or architecture.full_every
    if isinstance(period, str):  # EXAONE's "LLLG"
        period = len(period)
    full = config.get("max_window_layers") or 0  # Qwen's first layers have none
    return [FULL if layer < full or (period and (layer + 1) % period == 0) else SLIDING for layer in layers]


def windows(config: Mapping[str, Any], architecture: Architecture) -> list[int]:
    """Positions that each layer sees of those up to its own, which counts; 0: all of them."""
    window = _window(config, architecture)
    return [window if kind == SLIDING else 0 for kind in layer_kinds(config, architecture)]


def _window(config: Mapping[str, Any], architecture: Architecture) -> int:
    return config.get("sliding_window") or 0 if config.get("use_sliding_window", architecture.window) else 0
