"""Rotary positions: the cosines and sines of every position, with the scalings that models are trained with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hierchat.models.architectures.architecture import Architecture
from hierchat.models.architectures.sizes import heads_of
from hierchat.models.architectures.windows import FULL, SLIDING
from hierchat.models.errors import UnsupportedError

Floats = NDArray[np.float64]

SCALINGS = ("default", "linear", "llama3", "yarn")
"""What transformers calls the scalings that `tables` knows."""


def scaling(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """What config.json says of rotary positions in layers without a window: "rope_type" and its numbers, perhaps
    "rope_theta"."""
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return given.get(FULL) or given


def scaling_type(given: Mapping[str, Any]) -> str:
    """Which scaling that is."""
    return str(given.get("rope_type") or given.get("type") or "default")


def tables(
    config: Mapping[str, Any],
    architecture: Architecture,
    positions: int,
    factors: NDArray[np.float32] | None = None,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Cosines and sines, float32 [kinds, positions, head_dim / 2]; kinds: all layers, or those without a window and
    those with one. `factors` divide the frequencies of the first where the file holds them ready-made.

    Raises UnsupportedError for a scaling that is not known here.
    """
    given = scaling(config)
    base = given.get("rope_theta") or config.get("rope_theta") or architecture.rope_base
    found = [_tables(config, given, base, positions, factors)]
    if architecture.local_rope_base:
        given = (config.get("rope_parameters") or {}).get(SLIDING) or {}
        base = given.get("rope_theta") or config.get("rope_local_base_freq") or architecture.local_rope_base
        found.append(_tables(config, given, base, positions, None))
    cosines, sines = zip(*found, strict=True)
    return np.stack(cosines), np.stack(sines)


def _tables(
    config: Mapping[str, Any],
    given: Mapping[str, Any],
    base: float,
    positions: int,
    factors: NDArray[np.float32] | None,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Of one kind of layer; float32 [positions, head_dim / 2]."""
    size = heads_of(config)[2]
    plain = base ** -(np.arange(0, size, 2, dtype=np.float64) / size)
    kind = scaling_type(given)
    loudness = 1.0
    if factors is not None:
        frequencies = plain / factors
    elif kind == "default":
        frequencies = plain
    elif kind == "linear":
        frequencies = plain / given["factor"]
    elif kind == "llama3":
        frequencies = _llama3(plain, given)
    elif kind == "yarn":
        frequencies = _yarn(plain, given, config, base)
        loudness = given.get("attention_factor") or 0.1 * math.log(given["factor"]) + 1.0
    else:
        raise UnsupportedError(f"The CPU engine does not compute rope scaling {kind}.")
    angles = np.arange(positions, dtype=np.float64)[:, None] * frequencies
    return (np.cos(angles) * loudness).astype(np.float32), (np.sin(angles) * loudness).astype(np.float32)


def _llama3(plain: Floats, given: Mapping[str, Any]) -> Floats:
    """Llama 3.1: long waves are stretched, short ones left, those between blended."""
    factor, low, high = given["factor"], given["low_freq_factor"], given["high_freq_factor"]
    trained = given["original_max_position_embeddings"]
    waves = 2 * math.pi / plain
    smooth = np.clip((trained / waves - low) / (high - low), 0.0, 1.0)
    return (1 - smooth) * plain / factor + smooth * plain


def _yarn(plain: Floats, given: Mapping[str, Any], config: Mapping[str, Any], base: float) -> Floats:
    """YaRN (Peng et al. 2023): a ramp over the dimensions between interpolation and none."""
    trained = given.get("original_max_position_embeddings") or config["max_position_embeddings"]
    size = 2 * len(plain)

    def dimension(rotations: float) -> float:
        return size * math.log(trained / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low, high = dimension(given.get("beta_fast") or 32.0), dimension(given.get("beta_slow") or 1.0)
    if given.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    ramp = np.clip((np.arange(len(plain)) - low) / max(high - low, 0.001), 0.0, 1.0)
    return plain / given["factor"] * ramp + plain * (1 - ramp)
