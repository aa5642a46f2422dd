"""Choose every token, drafted or not, by one rule: the argmax of processed logits + Gumbel noise of (seed, position);
greedy is temperature 0. A draft is accepted iff it equals that choice, so the reply is a function of prompt,
settings and seed alone."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numpy.typing import NDArray

from hierchat.config import GenerationSettings
from hierchat.drafting.growing import gumbel as noise
from hierchat.drafting.growing.gumbel import MEMBERS, PAGE, WIDTH, Doubles, Ids, gumbel_of_one, members
from hierchat.engine.cpu.llvm import F32, I32, broadcast, call, emits, load, vector
from hierchat.jit import Kernels

FloatArray = NDArray[np.floating]
Float64s = NDArray[np.float64]

COLDEST = 1e-30
"""Colder is no different: only the likeliest can win. Keeps what is divided by the temperature finite."""


class Counts:
    """Counts of the reply's tokens, and those of the prompt, for the penalties, as growing arrays."""

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
        """Take back a token that was added. It stays one of the tokens that were seen."""
        self._said[self._places[token]] -= 1

    @property
    def tokens(self) -> NDArray[np.int64]:
        """Return each token of prompt and reply once."""
        return self._tokens[: len(self._places)]

    @property
    def said(self) -> NDArray[np.float64]:
        return self._said[: len(self._places)]


def adjusted(logits: FloatArray, settings: GenerationSettings, counts: Counts | None = None) -> FloatArray:
    """Apply penalties and bias: floats of the same size; the logits themselves where nothing changes them."""
    row = logits
    if counts is not None and len(counts.tokens) and settings.penalises:
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


def _replaced(row: FloatArray, tokens: NDArray[np.int64], values: FloatArray) -> FloatArray:
    """Copy `row` with other values for some tokens, clipped to its kind of float; -inf stays."""
    limits = np.finfo(row.dtype)
    row = row.copy()
    row[tokens] = np.where(values == -np.inf, values, values.clip(float(limits.min), float(limits.max)))
    return row


def processed(logits: FloatArray, settings: GenerationSettings, counts: Counts | None = None) -> Float64s:
    """Apply all processors in float64: the definition of what the sampler draws from, [vocabulary] but for a constant.
    In order: penalties (repetition, presence, frequency), logit bias, temperature, top-k, top-p, min-p. The best is 0,
    excluded tokens are -inf. Tokens are ordered before temperature, which could round two together."""
    raw = adjusted(logits, settings, counts).astype(np.float64)
    row = raw - raw.max()
    row /= max(settings.temperature, COLDEST)
    if 0 < settings.top_k < len(row):
        row[raw < np.partition(raw, -settings.top_k)[-settings.top_k]] = -np.inf
    if settings.top_p < 1.0:
        order = np.argsort(-raw, kind="stable")  # ties keep vocabulary order
        probabilities = np.exp(row[order])
        probabilities /= probabilities.sum()
        before = np.cumsum(probabilities) - probabilities
        row[order[before >= settings.top_p]] = -np.inf
    if settings.min_p > 0.0:
        row[row < np.log(settings.min_p)] = -np.inf
    return row


# The sampler's choice over a large vocabulary without going through all of it: the same token as the definition's.
# Three things make it quick. Noise comes by blocks whose largest is known (gumbel.py), so that of 152,000 tokens some
# dozens need noise of their own. Top-k, top-p and min-p all keep what is above some logit, so that excluding is a
# comparison. And top-p needs no sorted vocabulary: the winner is asked whether it is in the nucleus, and where it is
# not, neither is what is less likely, and the race is run again above it.

UNSURE = 1e-4
"""Nearer than this to top_p the definition decides, because float32 sums of shares may be off by 3e-5."""
SLACK = 1e-9
"""Bounds and scores are rounded along different ways."""
CHUNK, RUN = 32_768, 8_192
"""Of float32: what stays in a core's cache from one operation to the next; what is summed by one scalar product, which
BLAS takes on one thread."""


def race(values: FloatArray, best: int, settings: GenerationSettings, key: np.uint64) -> int | None:
    """Find the token that the definition chooses; None in the rare case that only the definition can tell.
    `values`: logits after penalties and bias, the largest at `best`; temperature > 0."""
    field = PerturbedLogits(values, best, settings, key)
    kept, floor = values, -math.inf
    if 0 < settings.top_k < len(values):
        kept = largest(values, field.peaks, settings.top_k)
        floor = float(kept.min())
    token = field.winner(floor, len(values))
    while settings.top_p < 1.0 and token != best:
        inside = field.in_nucleus(token, kept, settings.top_p)
        if inside is None:
            return None
        if inside:
            break
        token = field.winner(float(values[token]), token)
    return token


class PerturbedLogits:
    """Hold a row of logits with Gumbel noise; a score is a scaled logit plus noise."""

    def __init__(self, values: FloatArray, best: int, settings: GenerationSettings, key: np.uint64) -> None:
        self.values = values
        self.peaks = block_maxima(values)
        self.best = best
        self.top = float(values[best])
        self.temperature = max(settings.temperature, COLDEST)
        self.least = math.log(settings.min_p) if settings.min_p else -math.inf
        self.key = key

    def winner(self, floor: float, end: int) -> int:
        """Find the token of the best score among those above `floor`, and those on it before token `end`."""
        blocks = np.flatnonzero(self.peaks >= floor)
        drawn, leaders = noise.earliest(self.key, blocks)
        reached = (self._allowed(leaders, floor, end) + drawn).max()
        reached = max(reached, noise.gumbel_of_one(self.key, self.best)) - SLACK
        looked_into = self._scaled(self.peaks[blocks]) + drawn >= reached
        tokens = members(blocks[looked_into])
        scaled = self._allowed(tokens, floor, end)
        near = scaled + drawn[looked_into, None] >= reached
        tokens = tokens[near]
        scores = scaled[near] + noise.gumbel(self.key, tokens)
        return int(tokens[scores == scores.max()].min())

    def in_nucleus(self, token: int, kept: FloatArray, top_p: float) -> bool | None:
        """Return whether tokens likelier than `token` in `kept` have less than top_p; None: too near to say."""
        value = float(self.values[token])
        equals = int(np.count_nonzero(self.values[:token] == value))  # likelier by vocabulary order
        before = equals * math.exp((value - self.top) / self.temperature)
        higher = self.peaks > value
        if kept is self.values and 4 * np.count_nonzero(higher) < len(self.peaks):
            # Mostly it is few blocks that have the likelier tokens, and their maxima tell enough of the others.
            tokens = members(np.flatnonzero(higher))
            above, total = self._weights(self.values[tokens[tokens < len(self.values)]], value)
            total += float(np.exp(self._scaled(self.peaks[~higher])).sum())
            if before + above < (top_p - UNSURE) * total:
                return True
        above, total = self._weights(kept, value)
        share = (before + above) / total
        return None if abs(share - top_p) < UNSURE else share < top_p

    def _weights(self, values: FloatArray, value: float) -> tuple[float, float]:
        """Sum exp(scaled logit), the best one's being 1: of what is above `value`, and of all."""
        length = min(CHUNK, -(-len(values) // RUN) * RUN)
        weights, counted = np.empty(length, np.float32), np.ones((2, length), np.float32)
        sums = np.zeros((2, length // RUN))
        for start in range(0, len(values), CHUNK):
            chunk = values[start : start + CHUNK]
            some = weights[: len(chunk)]
            np.subtract(chunk, self.top, out=some, casting="same_kind")
            some *= np.float32(1 / self.temperature)
            np.exp(some, out=some)
            weights[len(chunk) :] = 0.0
            counted[0, : len(chunk)] = chunk > value
            sums += np.vecdot(weights.reshape(-1, RUN), counted.reshape(2, -1, RUN))
        above, total = sums.sum(axis=1).tolist()
        return above, total

    def _allowed(self, tokens: Ids, floor: float, end: int) -> Doubles:
        """Return the scaled logits of `tokens`; -inf where a token is excluded or beyond the vocabulary."""
        values = self.values.take(tokens, mode="clip")
        scaled = self._scaled(values)
        scaled[tokens >= len(self.values)] = -np.inf
        if self.least > -math.inf:
            scaled[scaled < self.least] = -np.inf
        if floor > -math.inf:
            scaled[(values < floor) | (values == floor) & (tokens >= end)] = -np.inf
        return scaled

    def _scaled(self, values: FloatArray) -> Doubles:
        return np.subtract(values, self.top, dtype=np.float64) / self.temperature


def block_maxima(values: FloatArray) -> FloatArray:
    """Find the largest value of each block of gumbel.py; -inf for one that lies beyond the vocabulary."""
    pages, rest = divmod(len(values), PAGE)
    full, tail = values[: pages * PAGE], values[pages * PAGE :]
    maxima = np.full((pages + 1, WIDTH), -np.inf, values.dtype)
    np.maximum.reduce(full.reshape(pages, MEMBERS, WIDTH), axis=1, out=maxima[:pages])
    rows, columns = divmod(rest, WIDTH)
    np.maximum.reduce(tail[: rows * WIDTH].reshape(rows, WIDTH), axis=0, out=maxima[pages], initial=-np.inf)
    np.maximum(maxima[pages, :columns], tail[rows * WIDTH :], out=maxima[pages, :columns])
    return maxima.ravel()


def largest(values: FloatArray, peaks: FloatArray, count: int) -> FloatArray:
    """Find the `count` largest values and equals of the last of them, in any order, by the blocks' `peaks`."""
    if count < len(peaks):
        tokens = members(np.flatnonzero(peaks >= np.partition(peaks, -count)[-count]))
        values = values[tokens[tokens < len(values)]]
    return values[values >= np.partition(values, -count)[-count]]


SMALL = 4096
"""Up to here the definition itself is quicker than the race."""
FEW = 128
"""Largest top-k for which the sampler selects the likeliest tokens first, and draws noise only for them."""


class BrokenLogits(Exception):
    """A model returned NaN or infinite logits: its checkpoint is damaged."""


def choose(
    logits: FloatArray, position: int, seed: int, settings: GenerationSettings, counts: Counts | None = None
) -> int:
    """Choose the token at `position` (0-based, prompt included). `logits` [vocabulary]: the target's row.
    Pure: equal arguments give equal tokens. Raises BrokenLogits for NaN or an infinite best."""
    key = noise.stream(seed, position)
    few = settings.temperature > 0 and 0 < settings.top_k <= min(FEW, len(logits) - 1)
    changed = settings.logit_bias or (counts is not None and settings.penalises)
    if few and not changed and (token := chosen_of_few(logits, settings, key)) >= 0:
        return token
    best = int(logits.argmax())
    if not math.isfinite(logits[best]):  # argmax returns the first NaN if there is one
        raise BrokenLogits(
            "The model returned logits that are no numbers: its weights are damaged. Delete it and get it again."
        )
    with np.errstate(over="ignore"):  # what is too far below the best is -inf
        if settings.temperature and len(logits) <= SMALL:
            return defined(logits, settings, counts, key)
        values = adjusted(logits, settings, counts)
        if values is not logits:
            best = int(values.argmax())
        if not settings.temperature:
            return best
        if few and changed and (token := chosen_of_few(values, settings, key)) >= 0:
            return token
        raced = race(values, best, settings, key)
        return defined(logits, settings, counts, key) if raced is None else raced


def defined(logits: FloatArray, settings: GenerationSettings, counts: Counts | None, key: np.uint64) -> int:
    """Choose the token by the definition of the rule, for temperatures above 0."""
    return int((processed(logits, settings, counts) + noise.gumbel(key, np.arange(len(logits)))).argmax())


kernel = Kernels(__file__)

BLOCK = 64
"""Values that are compared in one go with the least of those held; few blocks have anything that is larger."""


def top_tokens(row: NDArray[np.float32], count: int) -> NDArray[np.int32]:
    """Find the tokens of the largest logits [count], the lower id first among equals; -1 beyond the vocabulary."""
    found = np.full(count, -1, np.int32)
    _top(np.ascontiguousarray(row), found, np.empty(count, np.float32))
    return found


@emits(types.int32, types.int64, types.float32)
def any_above(b: ir.IRBuilder, address: ir.Value, least: ir.Value) -> ir.Value:
    """Emit: whether any of BLOCK float32 at an address is above `least`, or NaN."""
    above = b.fcmp_unordered(">", load(b, vector(F32, BLOCK), address, 4), broadcast(b, least, BLOCK))
    return b.zext(call(b, f"llvm.vector.reduce.or.v{BLOCK}i1", ir.IntType(1), above), I32)


@kernel
def _top(row: Any, found: Any, values: Any) -> bool:
    count, held, sound = len(found), 0, True
    least = np.float32(-np.inf)
    for begin in range(0, len(row), BLOCK):
        end = min(begin + BLOCK, len(row))
        if held == count and end - begin == BLOCK and not any_above(row.ctypes.data + begin * 4, least):
            continue
        for token in range(begin, end):
            value = row[token]
            if value != value:
                sound = False
            if held < count:
                place = held
                held += 1
            elif value > least:
                place = count - 1
            else:
                continue
            while place > 0 and value > values[place - 1]:
                values[place], found[place] = values[place - 1], found[place - 1]
                place -= 1
            values[place], found[place] = value, token
            least = values[held - 1]
    return sound


def chosen_of_few(values: FloatArray, settings: GenerationSettings, key: np.uint64) -> int:
    """Choose as the definition does among the likeliest `settings.top_k`; -1 if rounding or equal values may decide."""
    if values.dtype != np.float32:
        return -1
    temperature, least = max(settings.temperature, COLDEST), settings.min_p
    least = math.log(least) if least else -math.inf
    return _chosen_of_few(
        np.ascontiguousarray(values), key, settings.top_k, temperature, settings.top_p, least
    )


@kernel
def _chosen_of_few(row: Any, key: Any, count: Any, temperature: Any, top_p: Any, least: Any) -> int:
    tokens, values = np.empty(count + 1, np.int32), np.empty(count + 1, np.float32)
    if not _top(row, tokens, values) or values[count] == values[count - 1] or not np.isfinite(values[0]):
        return -1
    scaled, weights, total = np.empty(count), np.empty(count), 0.0
    for i in range(count):
        scaled[i] = (np.float64(values[i]) - np.float64(values[0])) / temperature
        weights[i] = np.exp(scaled[i])
        total += weights[i]
    before, found = 0.0, -1
    best = second = -np.inf
    for i in range(count):
        share = before / total
        if (abs(share - top_p) < SLACK and top_p < 1.0) or abs(scaled[i] - least) < SLACK:
            return -1
        if (share >= top_p and top_p < 1.0) or scaled[i] < least:
            break
        before += weights[i]
        score = scaled[i] + gumbel_of_one(key, tokens[i])
        if score > best:
            best, second, found = score, best, tokens[i]
        elif score > second:
            second = score
    return found if best - second > SLACK else -1
