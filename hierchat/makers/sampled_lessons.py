"""Lessons about sampling without sampling anew: what a recorded place would have been followed by under other settings
and other noise.

A recording has the target's likeliest tokens and their probabilities. Settings and noise are drawn, and the winner is
found as the sampler finds it. All tokens beyond the recorded ones are one candidate, which nobody names.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hierchat.config import GenerationSettings
from hierchat.drafting.acceptance import warmth
from hierchat.drafting.growing.dice import gumbel

LEAST = 1e-6
OTHER = -1
"""A token that was not recorded."""


class Chance:
    """Settings and noise, drawn anew for each place."""

    def __init__(self, generator: np.random.Generator) -> None:
        self._generator = generator
        self.draw()

    def draw(self) -> np.uint64:
        """Other settings, other noise: its key."""
        drawn = self._generator
        temperature = float(drawn.uniform(0.3, 1.2))
        self.settings = GenerationSettings(temperature=temperature)
        if drawn.random() < 0.5:
            self.settings = GenerationSettings(
                temperature=temperature,
                top_p=float(drawn.uniform(0.7, 1.0)),
                top_k=int(drawn.choice((0, 0, 10, 20))),
                min_p=float(drawn.choice((0.0, 0.0, 0.05))),
            )
        self.warm = warmth(self.settings)
        self.key = np.uint64(drawn.integers(1, 2**64, dtype=np.uint64))
        return self.key

    def winner(self, tokens: NDArray[np.int32], chances: NDArray[np.float32]) -> int:
        """The token that follows; OTHER for all beyond `tokens` [k], the likeliest at temperature 1 with their
        `chances` [k], highest first."""
        settings, known = self.settings, np.maximum(chances.astype(np.float64), LEAST)
        # Beyond the recorded ones: as many as have the rest of the probability, each half as likely as the last.
        rest, each = max(1.0 - float(known.sum()), 0.0), known[-1] / 2
        weights = np.append(known, each) ** (1.0 / settings.temperature)
        weights[-1] *= rest / each
        if settings.top_k:
            weights[settings.top_k :] = 0.0
        weights /= weights.sum()
        weights[np.cumsum(weights) - weights >= settings.top_p] = 0.0
        weights[weights < settings.min_p * weights[0]] = 0.0
        noise = [gumbel(self.key, token) for token in tokens]
        with np.errstate(divide="ignore"):
            scores = np.log(weights) + np.append(noise, self._generator.gumbel())
        best = int(scores.argmax())
        return int(tokens[best]) if best < len(tokens) else OTHER
