"""How likely a token is to be accepted as a draft: what was fitted, and what is learned at every step.

growing/acceptance_model.py has the model. Its fixed part comes with the program. `python -m hierchat.makers.fit` fitted
it to replies of the default model. What depends on the model is learned while it runs.
"""

from __future__ import annotations

import struct
import zlib
from functools import cache
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hierchat.drafting.growing.layout import HIDDEN, INPUTS, KNOWN, MAX_MATCH, SLOTS, SOURCES, AcceptanceModel

FITTED = Path(__file__).parent / "acceptance_model.npz"
RATE = np.float32(0.003)
"""How far a lesson moves the weights."""
FORGET = np.float32(0.0002)
"""Part of the way back to what was fitted with each lesson: half of it in 3,500."""
BINS = 20
_HEADER = struct.Struct("<4sBII")
_MAGIC, _VERSION = b"HCac", 2

Calibration = dict[str, list[tuple[float, float, int]]]

SHAPES = {
    "inputs": (SLOTS * INPUTS, HIDDEN),
    "surroundings": (SLOTS * KNOWN, HIDDEN),
    "bias": (HIDDEN,),
    "none_inputs": (SLOTS * KNOWN, HIDDEN),
    "none_bias": (HIDDEN,),
    "score": (HIDDEN + SLOTS * INPUTS + 1,),
    "none": (HIDDEN + 1,),
}
"""The arrays of an AcceptanceModel, as they lie in the file."""


@cache
def fitted() -> AcceptanceModel:
    """The acceptance model that comes with the program; do not change."""
    with np.load(FITTED) as file:
        return AcceptanceModel(**{name: file[name] for name in SHAPES})


class Acceptance:
    """What is known about the sources of one user and model. Keep it from reply to reply."""

    def __init__(self) -> None:
        self.prior = fitted()
        self.model = self.prior._replace(score=self.prior.score.copy(), none=self.prior.none.copy())
        self.curve: NDArray[np.float64] = np.zeros((SLOTS, BINS, 3))
        """By slot and estimated chance: how many likely candidates there were, the sum of their chances, and how many
        were right."""
        self.matches: NDArray[np.float64] = np.zeros((SLOTS, MAX_MATCH + 1, 2))
        """By slot and length of match: how often the likeliest candidate was found by it, and was right."""

    def calibration(self) -> Calibration:
        """Of each source, for every range of chances in which there were candidates: their mean chance, the share
        that was right, and how many they were."""
        found: Calibration = {}
        for source in dict.fromkeys(SOURCES):
            bins = self.curve[[slot for slot in range(SLOTS) if SOURCES[slot] == source]].sum(0)
            if bins.any():
                found[source] = [
                    (chances / number, right / number, int(number))
                    for number, chances, right in bins
                    if number
                ]
        return found

    def by_match(self) -> NDArray[np.float64]:
        """By length of match, whatever the source, the likeliest candidates and how many of them were right:
        [MAX_MATCH + 1, 2]."""
        return self.matches.sum(0)

    def add(self, other: Acceptance) -> None:
        """Count what another one counted, too."""
        self.curve += other.curve
        self.matches += other.matches

    def _learned(self) -> NDArray[np.float64]:
        """All that changes, as one array."""
        return np.concatenate(
            [
                self.model.score - self.prior.score,
                self.model.none - self.prior.none,
                self.curve.ravel(),
                self.matches.ravel(),
            ]
        )

    def to_bytes(self) -> bytes:
        """What was learned, as a difference from what was fitted."""
        payload = zlib.compress(self._learned().astype("<f8").tobytes())
        return _HEADER.pack(_MAGIC, _VERSION, _fingerprint(), zlib.crc32(payload)) + payload

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """What to_bytes wrote. Raises ValueError where it is damaged, or was learned on top of another fit."""
        made = cls()
        if len(data) < _HEADER.size or _HEADER.unpack_from(data)[:3] != (_MAGIC, _VERSION, _fingerprint()):
            raise ValueError("Stored acceptance is of another version.")
        payload = data[_HEADER.size :]
        if zlib.crc32(payload) != _HEADER.unpack_from(data)[3]:
            raise ValueError("Stored acceptance is damaged.")
        learned: NDArray[Any] = np.frombuffer(zlib.decompress(payload), "<f8")
        if learned.size != made._learned().size or not np.isfinite(learned).all():
            raise ValueError("Stored acceptance is damaged.")
        sizes = [made.model.score.size, made.model.none.size, made.curve.size]
        score, none, curve, matches = np.split(learned, np.cumsum(sizes))
        made.model.score[:] += score.astype(np.float32)
        made.model.none[:] += none.astype(np.float32)
        made.curve[:] = curve.reshape(made.curve.shape)
        made.matches[:] = matches.reshape(made.matches.shape)
        return made


@cache
def _fingerprint() -> int:
    return zlib.crc32(FITTED.read_bytes())
