"""The one rule that chooses every token, drafted or not.

The token at position t is the argmax over the vocabulary of processed logits + Gumbel noise drawn from (seed, t);
greedy is temperature 0 (reference: Gumbel-max trick). A draft is accepted iff it equals that choice, so the reply is
a function of prompt, settings and seed alone.

Processors in order: repetition / presence / frequency penalty, logit bias, temperature, top-k, top-p, min-p.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from hierchat.config import GenerationSettings

FloatArray = NDArray[np.floating]

# Gumbel noise of a double in (2^-53, 1) lies within [-3.7, 36.8]: a token this far below the best cannot win.
NOISE_SPAN = 41.0


class BrokenLogits(RuntimeError):
    """The model returned NaN or infinite logits: its checkpoint is damaged."""


class Counts:
    """How often each token stands in the prompt and in the reply so far, for the penalties."""

    def __init__(self, prompt: Iterable[int] = (), reply: Iterable[int] = ()) -> None:
        self.prompt = frozenset(prompt)
        self.reply = Counter(reply)

    def add(self, token: int) -> None:
        self.reply[token] += 1


def choose(
    logits: FloatArray, position: int, seed: int, settings: GenerationSettings, counts: Counts | None = None
) -> int:
    """The token at `position` (0-based, prompt included).

    `logits`: [vocabulary], the target's row for this position. Pure: nothing is changed, equal arguments give equal
    tokens. Raises BrokenLogits when the row holds NaN or an infinite best.
    """
    best = int(logits.argmax())
    if not np.isfinite(logits[best]):  # argmax returns the first NaN if there is one
        raise BrokenLogits(
            "The model returned logits that are no numbers: its weights are damaged. Delete it and get it again."
        )
    if settings.temperature == 0 and not (settings.logit_bias or _penalised(settings)):
        return best
    row = processed(logits, settings, counts)
    if settings.temperature == 0:
        return int(row.argmax())
    candidates = np.flatnonzero(row > row.max() - NOISE_SPAN)
    noise = gumbel(seed, position, len(row))[candidates]
    return int(candidates[(row[candidates] + noise).argmax()])


def gumbel(seed: int, position: int, size: int) -> NDArray[np.float64]:
    """Standard Gumbel noise of (seed, position), [size]. Counter-based: any position at any time."""
    uniform = np.random.Generator(np.random.Philox(key=[seed & (2**64 - 1), position])).random(size)
    np.maximum(uniform, 2.0**-54, out=uniform)
    return -np.log(-np.log(uniform))


def processed(
    logits: FloatArray, settings: GenerationSettings, counts: Counts | None = None
) -> NDArray[np.float64]:
    """Logits after all processors, [vocabulary]; excluded tokens are -inf."""
    row = logits.astype(np.float64)
    if counts is not None and _penalised(settings):
        _penalise(row, settings, counts)
    for token, bias in settings.logit_bias.items():
        if not 0 <= token < len(row):
            raise ValueError(f"logit_bias names token {token}, but the model has tokens 0 to {len(row) - 1}.")
        row[token] += bias
    if settings.temperature == 0:
        return row
    row /= settings.temperature
    if 0 < settings.top_k < len(row):
        row[row < np.partition(row, -settings.top_k)[-settings.top_k]] = -np.inf
    if settings.top_p < 1.0:
        _keep_top_p(row, settings.top_p)
    if settings.min_p > 0.0:
        row[row < row.max() + np.log(settings.min_p)] = -np.inf
    return row


def _penalised(settings: GenerationSettings) -> bool:
    return (
        settings.repetition_penalty != 1.0
        or settings.presence_penalty != 0.0
        or settings.frequency_penalty != 0.0
    )


def _penalise(row: NDArray[np.float64], settings: GenerationSettings, counts: Counts) -> None:
    if settings.repetition_penalty != 1.0:
        seen = np.fromiter(counts.prompt | counts.reply.keys(), dtype=np.int64)
        values = row[seen]
        row[seen] = np.where(
            values > 0, values / settings.repetition_penalty, values * settings.repetition_penalty
        )
    for token, count in counts.reply.items():
        row[token] -= settings.presence_penalty + settings.frequency_penalty * count


def _keep_top_p(row: NDArray[np.float64], top_p: float) -> None:
    """Keep the smallest set of most probable tokens whose probability reaches top_p; ties keep vocabulary order."""
    order = np.argsort(-row, kind="stable")
    probabilities = np.exp(row[order] - row[order[0]])
    probabilities /= probabilities.sum()
    before = np.cumsum(probabilities) - probabilities
    row[order[before >= top_p]] = -np.inf
