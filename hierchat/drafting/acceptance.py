"""Estimate how likely a draft is to be accepted: fitted by `python -m benchmarks.makers.fit`, and learned at every
step."""

from __future__ import annotations

import struct
import zlib
from functools import cache
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from hierchat.config import GenerationSettings, shipped
from hierchat.drafting.growing.gumbel import reply_key
from hierchat.drafting.growing.kernel_arrays import (
    HIDDEN,
    INPUTS,
    KNOWN,
    MAX_MATCH,
    SLOTS,
    AcceptanceModel,
    Floats,
    SamplingNoise,
)

FITTED = shipped("assets") / "acceptance_model.npz"
RATE = np.float32(0.003)
"""How far a lesson moves the weights."""
FORGET = np.float32(0.0002)
"""Part of the way back to what was fitted with each lesson: half of it in 3,500."""
RECENT_RATE = np.float32(0.1)
BINS = 20
_HEADER = struct.Struct("<4sBII")
_MAGIC, _VERSION = b"HCac", 2

SAMPLING_FEATURES = 3
"""Numbers that say how tokens are chosen; see sampling_features()."""
MAX_TEMPERATURE = 1.5
"""Temperatures above it are taken for it: none were fitted."""

SHAPES = {
    "inputs": (SLOTS * INPUTS, HIDDEN),
    "surroundings": (SLOTS * KNOWN, HIDDEN),
    "bias": (HIDDEN,),
    "none_inputs": (SLOTS * KNOWN, HIDDEN),
    "none_bias": (HIDDEN,),
    "score": (HIDDEN + SLOTS * INPUTS + 1,),
    "none": (HIDDEN + 1,),
}
"""The arrays of an AcceptanceModel, as they lie in the file,"""
SAMPLING_SHAPES = {
    "heat": (SAMPLING_FEATURES, HIDDEN + SLOTS * INPUTS + 1),
    "swing": (SAMPLING_FEATURES, HIDDEN + SLOTS * INPUTS + 1),
    "none_heat": (SAMPLING_FEATURES, HIDDEN + 1),
}
"""and what else lies there: weights for replies that are not greedy, by sampling_features()."""


@cache
def fitted() -> AcceptanceModel:
    """Return the acceptance model that comes with the program; do not change it."""
    return AcceptanceModel(**_arrays(tuple(SHAPES)))


@cache
def _arrays(names: tuple[str, ...]) -> dict[str, Floats]:
    with np.load(FITTED) as file:
        return {name: file[name] for name in names}


class Chosen(NamedTuple):
    """Settings of a reply that tell how its tokens are chosen, as far as drafts are concerned."""

    noise: SamplingNoise
    score: Floats
    """Beside an AcceptanceModel's `score` and"""
    none: Floats
    """`none`: zeros where the likeliest token is chosen."""


def sampling_features(settings: GenerationSettings) -> Floats:
    """Return numbers [SAMPLING_FEATURES] that describe how a reply is sampled; zeros for greedy decoding."""
    if not settings.temperature or settings.top_k == 1:
        return np.zeros(SAMPLING_FEATURES, np.float32)
    cut = max(1.0 - settings.top_p, settings.min_p, 1.0 / settings.top_k if settings.top_k else 0.0)
    return np.array((1.0, min(settings.temperature, MAX_TEMPERATURE), cut), np.float32)


def chosen(settings: GenerationSettings | None) -> Chosen:
    """Return a reply's settings as the acceptance model reads them; None: greedy decoding, or nobody knows."""
    warm = np.zeros(SAMPLING_FEATURES, np.float32) if settings is None else sampling_features(settings)
    arrays = _arrays(tuple(SAMPLING_SHAPES))
    key = np.uint64(reply_key(np.uint64(settings.seed)) if settings is not None and warm[0] else 0)
    return Chosen(
        SamplingNoise(key, warm @ arrays["swing"]), warm @ arrays["heat"], warm @ arrays["none_heat"]
    )


class Acceptance:
    """Learn how often drafts of each source are accepted, for one user and model. Keep it from reply to reply."""

    def __init__(self) -> None:
        self.prior = fitted()
        self.model = self.prior._replace(score=self.prior.score.copy(), none=self.prior.none.copy())
        self.curve: NDArray[np.float64] = np.zeros((SLOTS, BINS, 3))
        """By slot and estimated chance: number of likely candidates, sum of their chances, and how many were right."""
        self.matches: NDArray[np.float64] = np.zeros((SLOTS, MAX_MATCH + 1, 2))
        """By slot and length of match: how often the likeliest candidate was found by it, and was right."""

    def to_bytes(self) -> bytes:
        """Store what was learned, as a difference from what was fitted."""
        model, prior = self.model, self.prior
        learned = (
            model.score - prior.score,
            model.none - prior.none,
            self.curve.ravel(),
            self.matches.ravel(),
        )
        payload = zlib.compress(np.concatenate(learned).astype("<f8").tobytes())
        return _HEADER.pack(_MAGIC, _VERSION, _fingerprint(), zlib.crc32(payload)) + payload

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read what to_bytes wrote. Raises ValueError where it is damaged, or was learned on top of another fit."""
        made = cls()
        if len(data) < _HEADER.size or _HEADER.unpack_from(data)[:3] != (_MAGIC, _VERSION, _fingerprint()):
            raise ValueError("Stored acceptance is of another version.")
        payload = data[_HEADER.size :]
        if zlib.crc32(payload) != _HEADER.unpack_from(data)[3]:
            raise ValueError("Stored acceptance is damaged.")
        learned: NDArray[Any] = np.frombuffer(zlib.decompress(payload), "<f8")
        parts: list[NDArray[Any]] = [made.model.score, made.model.none, made.curve, made.matches]
        ends = np.cumsum([part.size for part in parts])
        if learned.size != ends[-1] or not np.isfinite(learned).all():
            raise ValueError("Stored acceptance is damaged.")
        for part, found in zip(parts, np.split(learned, ends[:-1]), strict=True):
            part += found.reshape(part.shape).astype(part.dtype)
        return made


@cache
def _fingerprint() -> int:
    return zlib.crc32(FITTED.read_bytes())
