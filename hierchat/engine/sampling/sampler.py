"""The one rule that chooses every token, drafted or not.

The token at position t is the argmax over the vocabulary of processed logits + Gumbel noise drawn from (seed, t);
greedy is temperature 0 (reference: Gumbel-max trick). A draft is accepted iff it equals that choice, so the reply is
a function of prompt, settings and seed alone.
"""

from __future__ import annotations

import math

import numpy as np

from hierchat.config import GenerationSettings
from hierchat.engine.sampling.noise import gumbel_of_first, stream
from hierchat.engine.sampling.processors import Counts, FloatArray, adjusted, processed
from hierchat.engine.sampling.race import race

SMALL = 4096
"""Up to here the definition itself is quicker than the race."""


class BrokenLogits(Exception):
    """The model returned NaN or infinite logits: its checkpoint is damaged."""


def choose(
    logits: FloatArray, position: int, seed: int, settings: GenerationSettings, counts: Counts | None = None
) -> int:
    """The token at `position` (0-based, prompt included).

    `logits`: [vocabulary], the target's row for this position. Pure: nothing is changed, equal arguments give equal
    tokens. Raises BrokenLogits when the row holds NaN or an infinite best.
    """
    best = int(logits.argmax())
    if not math.isfinite(logits[best]):  # argmax returns the first NaN if there is one
        raise BrokenLogits(
            "The model returned logits that are no numbers: its weights are damaged. Delete it and get it again."
        )
    key = stream(seed, position)
    with np.errstate(over="ignore"):  # what is too far below the best is -inf
        if settings.temperature and len(logits) <= SMALL:
            return defined(logits, settings, counts, key)
        values = adjusted(logits, settings, counts)
        if values is not logits:
            best = int(values.argmax())
        if not settings.temperature:
            return best
        token = race(values, best, settings, key)
        return defined(logits, settings, counts, key) if token is None else token


def defined(logits: FloatArray, settings: GenerationSettings, counts: Counts | None, key: int) -> int:
    """The choice as it is defined, for temperatures above 0."""
    return int((processed(logits, settings, counts) + gumbel_of_first(key, len(logits))).argmax())
