"""Rotary positions: the cosines and sines of every position, with the scalings that models are trained with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hierchat.models.architectures.families import Architecture
from hierchat.models.architectures.model_config import (
    FULL,
    SLIDING,
    heads_of,
    layer_heads,
    layer_kinds,
    windows,
)
from hierchat.models.progress import UnsupportedError

Floats = NDArray[np.float64]

SCALINGS = ("default", "linear", "llama3", "longrope", "proportional", "yarn")
"""What transformers calls the scalings that `tables` knows."""


def rope_scaling(config: Mapping[str, Any], kind: str = FULL) -> Mapping[str, Any]:
    """Return rotary positions of config.json in layers of a kind: "rope_type", its numbers, perhaps "rope_theta"."""
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return given.get(kind) or given


def rope_type(given: Mapping[str, Any]) -> str:
    """Return which scaling that is."""
    said = str(given.get("rope_type") or given.get("type") or "default")
    return "longrope" if "long_factor" in given else said  # which Phi-3 first called "su", and "yarn"


def rotary_dims(config: Mapping[str, Any], architecture: Architecture) -> int:
    """Return how many numbers of each head rotary positions rotate; the others stay."""
    part = rope_scaling(config).get("partial_rotary_factor") or config.get("partial_rotary_factor")
    return int(heads_of(config)[2] * (part or architecture.partial_rotary))


class RotaryLayout(NamedTuple):
    """Which numbers of a head rotary positions rotate, half-split: each of the first `pairs` with the one `offset`
    behind it. The frequencies of all pairs are spread over `frequency_dims` numbers."""

    pairs: int
    offset: int
    frequency_dims: int


def rotary_layouts(config: Mapping[str, Any], architecture: Architecture) -> list[RotaryLayout]:
    """Return the layout of each of the `rope_tables`."""
    size = rotary_dims(config, architecture)
    usual = RotaryLayout(size // 2, size // 2, size)
    if not architecture.local_rope_base:
        return [usual]
    if not architecture.full_head_dim:
        return [usual, usual]
    sizes = dict(zip(layer_kinds(config, architecture), (one[2] for one in layer_heads(config)), strict=True))
    found = []
    for kind in (FULL, SLIDING):
        given, size = rope_scaling(config, kind), sizes.get(kind, heads_of(config)[2])
        rotated = int((given.get("partial_rotary_factor") or 1.0) * size)
        if rope_type(given) == "proportional":
            found.append(RotaryLayout(rotated // 2, size // 2, size))
        else:
            found.append(RotaryLayout(rotated // 2, rotated // 2, rotated))
    return found


def rope_kinds(config: Mapping[str, Any], architecture: Architecture) -> list[int]:
    """Return which of the `rope_tables` rotates the queries and keys of each layer; -1: none."""
    seen = windows(config, architecture)
    used = [1 if window and architecture.local_rope_base else 0 for window in seen]
    if turned := config.get("no_rope_layers"):  # which tells, despite its name, of those that have some
        return [one if turns else -1 for one, turns in zip(used, turned, strict=False)]
    if every := config.get("no_rope_layer_interval") or architecture.unrotated_every:
        return [-1 if (layer + 1) % every == 0 else one for layer, one in enumerate(used)]
    if architecture.full_unrotated and config.get("sliding_window"):
        return [one if window else -1 for one, window in zip(used, seen, strict=True)]
    return used


def rope_tables(
    config: Mapping[str, Any],
    architecture: Architecture,
    positions: int,
    factors: NDArray[np.float32] | None = None,
    context_length: int = 0,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Compute cosines and sines, float32 [kinds, positions, most pairs]; kinds: all layers, or those without a window
    and those with one. `factors` divide the frequencies of the first where the file holds them ready-made. LongRoPE has
    factors for short texts and for long ones: `context_length`, what a text may grow to, decides for all texts, so that
    no key changes while one grows. Raises UnsupportedError for an unknown scaling."""
    given = rope_scaling(config)
    base = given.get("rope_theta") or config.get("rope_theta") or architecture.rope_base
    kinds = rotary_layouts(config, architecture)
    if rope_type(given) == "longrope":
        given = {**given, "chosen": _longrope(given, config, context_length or positions)}
    found = [_tables(config, given, base, positions, kinds[0], factors)]
    if architecture.local_rope_base:
        given = (config.get("rope_parameters") or {}).get(SLIDING) or {}
        base = given.get("rope_theta") or config.get("rope_local_base_freq") or architecture.local_rope_base
        found.append(_tables(config, given, base, positions, kinds[1], None))
    most = max(kind.pairs for kind in kinds)
    wide = [[np.pad(one, ((0, 0), (0, most - one.shape[1]))) for one in kind] for kind in found]
    cosines, sines = zip(*wide, strict=True)
    return np.stack(cosines), np.stack(sines)


def _tables(
    config: Mapping[str, Any],
    given: Mapping[str, Any],
    base: float,
    positions: int,
    those: RotaryLayout,
    factors: NDArray[np.float32] | None,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return cosines and sines for one kind of layer; float32 [positions, pairs]."""
    plain = base ** -(np.arange(0, 2 * those.pairs, 2, dtype=np.float64) / those.frequency_dims)
    kind = rope_type(given)
    attention_factor = 1.0
    if factors is not None:
        frequencies = plain / factors
    elif kind == "default":
        frequencies = plain
    elif kind == "linear":
        frequencies = plain / given["factor"]
    elif kind == "proportional":
        frequencies = plain / (given.get("factor") or 1.0)
    elif kind == "llama3":
        frequencies = _llama3(plain, given)
    elif kind == "yarn":
        frequencies = _yarn(plain, given, config, base)
        attention_factor = given.get("attention_factor") or _yarn_attention_factor(given)
    elif kind == "longrope":
        frequencies, attention_factor = plain / given["chosen"][0], given["chosen"][1]
    else:
        raise UnsupportedError(f"The CPU engine does not compute rope scaling {kind}.")
    angles = np.arange(positions, dtype=np.float64)[:, None] * frequencies
    cosines, sines = np.cos(angles) * attention_factor, np.sin(angles) * attention_factor
    return cosines.astype(np.float32), sines.astype(np.float32)


def _llama3(plain: Floats, given: Mapping[str, Any]) -> Floats:
    """Llama 3.1: long waves are stretched, short ones left, those between blended."""
    factor, low, high = given["factor"], given["low_freq_factor"], given["high_freq_factor"]
    trained = given["original_max_position_embeddings"]
    waves = 2 * math.pi / plain
    smooth = np.clip((trained / waves - low) / (high - low), 0.0, 1.0)
    return (1 - smooth) * plain / factor + smooth * plain


def _yarn_attention_factor(given: Mapping[str, Any]) -> float:
    """Return what YaRN multiplies cosines and sines by; DeepSeek gives two numbers for it (mscale)."""

    def grown(by: float) -> float:
        return 0.1 * by * math.log(given["factor"]) + 1.0 if given["factor"] > 1 else 1.0

    one, other = given.get("mscale"), given.get("mscale_all_dim")
    return grown(one) / grown(other) if one and other else grown(1.0)


def _longrope(
    given: Mapping[str, Any], config: Mapping[str, Any], context_length: int
) -> tuple[Floats, float]:
    """LongRoPE (Ding et al. 2024): what divides the frequencies, and what multiplies cosines and sines."""
    trained = given.get("original_max_position_embeddings") or config["original_max_position_embeddings"]
    factor = given.get("factor") or config["max_position_embeddings"] / trained
    grown = math.sqrt(1 + math.log(factor) / math.log(trained)) if factor > 1 else 1.0
    chosen = given["long_factor"] if context_length > trained else given["short_factor"]
    return np.asarray(chosen, np.float64), given.get("attention_factor") or grown


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
