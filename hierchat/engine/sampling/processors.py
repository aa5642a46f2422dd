"""Logits processors, written down plainly in float64: the definition of what the sampler draws from.

In order: repetition / presence / frequency penalty, logit bias, temperature, top-k, top-p, min-p.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from hierchat.config import GenerationSettings

FloatArray = NDArray[np.floating]
Floats = NDArray[np.float64]

COLDEST = 1e-30
"""Colder is no different: only the likeliest can win. Keeps what is divided by the temperature finite."""


class Counts:
    """How often each token stands in the reply so far, and which tokens stand in the prompt, for the penalties.

    Held as arrays that grow, since the penalties go through all of it for every token.
    """

    def __init__(self, prompt: Iterable[int] = (), reply: Iterable[int] = ()) -> None:
        self._places = {token: place for place, token in enumerate(dict.fromkeys(prompt))}
        self._tokens = np.fromiter(self._places, np.int64, len(self._places))
        self._said = np.zeros(len(self._places))
        for token in reply:
            self.add(token)

    def add(self, token: int) -> None:
        place = self._places.setdefault(token, len(self._places))
        if place == len(self._tokens):
            spare = max(64, place)
            self._tokens = np.concatenate((self._tokens, np.zeros(spare, np.int64)))
            self._said = np.concatenate((self._said, np.zeros(spare)))
        self._tokens[place] = token
        self._said[place] += 1

    def remove(self, token: int) -> None:
        """It was added, and does not stand. It goes on counting as one of the tokens that were seen."""
        self._said[self._places[token]] -= 1

    @property
    def tokens(self) -> NDArray[np.int64]:
        """Every token of prompt and reply once."""
        return self._tokens[: len(self._places)]

    @property
    def said(self) -> NDArray[np.float64]:
        """How often the reply has each of `tokens`."""
        return self._said[: len(self._places)]


def adjusted(logits: FloatArray, settings: GenerationSettings, counts: Counts | None = None) -> FloatArray:
    """Logits after penalties and bias, as floats of the same size; the logits themselves where nothing changes them."""
    row = logits
    if counts is not None and len(counts.tokens) and _penalised(settings):
        values = row[counts.tokens].astype(np.float64)
        if (divisor := settings.repetition_penalty) != 1.0:
            values = np.where(values > 0, values / divisor, values * divisor)
        values -= settings.presence_penalty * (counts.said > 0) + settings.frequency_penalty * counts.said
        row = _replaced(row, counts.tokens, values)
    if settings.logit_bias:
        tokens = np.fromiter(settings.logit_bias, np.int64)
        if beyond := tokens[(tokens < 0) | (tokens >= len(row))].tolist():
            raise ValueError(
                f"logit_bias names token {beyond[0]}, but the model has tokens 0 to {len(row) - 1}."
            )
        row = _replaced(row, tokens, row[tokens] + np.fromiter(settings.logit_bias.values(), np.float64))
    return row


def _penalised(settings: GenerationSettings) -> bool:
    return (
        settings.repetition_penalty != 1.0
        or settings.presence_penalty != 0.0
        or settings.frequency_penalty != 0.0
    )


def _replaced(row: FloatArray, tokens: NDArray[np.int64], values: FloatArray) -> FloatArray:
    """A copy of `row` with other values for some tokens.

    What a strong bias makes too large for the row's kind of float becomes its largest; what is -inf stays out.
    """
    limits = np.finfo(row.dtype)
    row = row.copy()
    row[tokens] = np.where(values == -np.inf, values, values.clip(float(limits.min), float(limits.max)))
    return row


def processed(logits: FloatArray, settings: GenerationSettings, counts: Counts | None = None) -> Floats:
    """Logits after all processors, [vocabulary], but for a constant: the best is 0. Excluded tokens are -inf.

    Tokens are put in order before temperature divides them, which does not change the order but could round two
    neighbours together.
    """
    raw = adjusted(logits, settings, counts).astype(np.float64)
    row = raw - raw.max()
    row /= max(settings.temperature, COLDEST)
    if 0 < settings.top_k < len(row):
        row[raw < np.partition(raw, -settings.top_k)[-settings.top_k]] = -np.inf
    if settings.top_p < 1.0:
        _keep_top_p(row, raw, settings.top_p)
    if settings.min_p > 0.0:
        row[row < np.log(settings.min_p)] = -np.inf
    return row


def _keep_top_p(row: Floats, raw: Floats, top_p: float) -> None:
    """Keep the smallest set of most probable tokens whose probability reaches top_p; ties keep vocabulary order."""
    order = np.argsort(-raw, kind="stable")
    probabilities = np.exp(row[order])
    probabilities /= probabilities.sum()
    before = np.cumsum(probabilities) - probabilities
    row[order[before >= top_p]] = -np.inf
