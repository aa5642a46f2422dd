"""Rotary positions: the cosines and sines of every position, with the scalings that models are trained with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hierchat.models.architectures.sizes import heads_of
from hierchat.models.errors import UnsupportedError

Floats = NDArray[np.float64]

SCALINGS = ("default", "linear", "llama3", "yarn")
"""What transformers calls the scalings that `tables` knows."""


def tables(
    config: Mapping[str, Any], positions: int, factors: NDArray[np.float32] | None = None
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Cosines and sines, float32 [positions, head_dim / 2]. `factors` divide the frequencies where the file holds
    them ready-made. Raises UnsupportedError for a scaling that is not known here."""
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    base = given.get("rope_theta") or config.get("rope_theta") or 10000.0
    size = heads_of(config)[2]
    plain = base ** -(np.arange(0, size, 2, dtype=np.float64) / size)
    kind = given.get("rope_type") or given.get("type") or "default"
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

    low = max(math.floor(dimension(given.get("beta_fast") or 32.0)), 0)
    high = min(math.ceil(dimension(given.get("beta_slow") or 1.0)), size - 1)
    ramp = np.clip((np.arange(len(plain)) - low) / max(high - low, 0.001), 0.0, 1.0)
    return plain / given["factor"] * ramp + plain * (1 - ramp)
