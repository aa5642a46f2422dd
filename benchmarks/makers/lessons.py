"""Make lessons for the acceptance model: each position of a recorded reply, with all that the databases know there and
which candidate followed.

In the order of a file the replies become history, and what was asked becomes the user's own text. The texts that ship,
as the model that wrote the replies has them, are the statistics.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.record import Trace, read_traces
from hierchat.config import GenerationSettings
from hierchat.drafting.acceptance import RECENT_RATE, SAMPLING_FEATURES, sampling_features
from hierchat.drafting.drafter import RECENT_PRIOR, databases, runs_of
from hierchat.drafting.growing.evidence import look_far, look_near
from hierchat.drafting.growing.grow import TAIL, first_choices, read, read_around
from hierchat.drafting.growing.gumbel import gumbel_of_one
from hierchat.drafting.growing.kernel_arrays import (
    CANDIDATES,
    HISTORY,
    INPUTS,
    KNOWN,
    PROMPTS,
    SLOTS,
    Floats,
    Integers,
    Known,
    Lookup,
    Places,
    make_growth,
)
from hierchat.drafting.source import TOP, Context, Source, Successors
from hierchat.models.catalogue import read_catalogue
from hierchat.models.load.tokenizer_files import load_tokenizer
from hierchat.runtime.drafters import statistics_sources
from hierchat.texts.corpora import statistics

# Lessons about sampling without sampling anew: what a recorded place would have been followed by under
# other settings and other noise. A recording has the target's likeliest tokens and their probabilities.
# Settings and noise are drawn, and the winner is found as the sampler finds it. All tokens beyond the
# recorded ones are one candidate, which nobody names.


LEAST = 1e-6
OTHER = -1
"""A token that was not recorded."""


class Chance:
    """Draw settings and noise anew for each place."""

    def __init__(self, generator: np.random.Generator) -> None:
        self._generator = generator
        self.draw()

    def draw(self) -> np.uint64:
        """Draw other settings and other noise; return its key."""
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
        self.warm = sampling_features(self.settings)
        self.key = np.uint64(drawn.integers(1, 2**64, dtype=np.uint64))
        return self.key

    def winner(self, tokens: NDArray[np.int32], chances: NDArray[np.float32]) -> int:
        """Return the token that follows; OTHER for all beyond `tokens` [k], the likeliest at temperature 1 with their
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
        noise = [gumbel_of_one(self.key, token) for token in tokens]
        with np.errstate(divide="ignore"):
            scores = np.log(weights) + np.append(noise, self._generator.gumbel())
        best = int(scores.argmax())
        return int(tokens[best]) if best < len(tokens) else OTHER


GREEDY = np.zeros(SAMPLING_FEATURES, np.float32)


class Lessons(NamedTuple):
    """Lessons, one row per position; the inputs as float16, for there are many."""

    inputs: Floats
    """[n, CANDIDATES, SLOTS * INPUTS]"""
    around: Floats
    """[n, SLOTS * KNOWN]"""
    right: Integers
    """[n]: the candidate that followed; CANDIDATES: none of them."""
    noise: Floats
    """[n, CANDIDATES]: the noise of each candidate, and"""
    warm: Floats
    """[n, SAMPLING_FEATURES]: the settings by which it was chosen; zeros for greedy decoding"""


def lessons(traces: Sequence[Trace], statistics: Sequence[Source], chances: Sequence[Chance] = ()) -> Lessons:
    """Make lessons of all positions of all replies, in order, with the tokens that followed; or, of each position, what
    follows by each of `chances`."""
    rows = list(_lessons(traces, statistics, chances))
    return Lessons(*(np.array(column) for column in zip(*rows, strict=True)))


def _look(at: Lookup) -> None:
    look_near(at)
    look_far(at, -1)


def _lessons(
    traces: Sequence[Trace], statistics: Sequence[Source], chances: Sequence[Chance]
) -> Iterator[tuple[Any, Any, int, Any, Any]]:
    history, prompts, successors = Source(HISTORY), Source(PROMPTS), Successors()
    firsts = np.empty(SLOTS, np.int32)
    for trace in traces:
        text = [*trace.prompt, *trace.reply]
        context = Context(trace.prompt)
        recent = np.full(SLOTS, RECENT_PRIOR, np.float32)
        places = None
        for place, token in enumerate(trace.reply):
            known = databases(runs_of([history, prompts, *statistics]), context, successors)
            if places is None:
                places = make_growth(len(known.runs)).places
            places.known[0, :, Known.RECENT] = recent
            tail = context.tokens[-TAIL:]
            for chance in chances or (None,):
                places.keys[0] = chance.draw() if chance else 0
                _look(Lookup(known, places, 0, tail))
                followed = chance.winner(trace.top[place], trace.chances[place]) if chance else token
                yield lesson_of(places, followed, chance.warm if chance else GREEDY)
            if chances:
                places.keys[0] = 0
                _look(Lookup(known, places, 0, tail))
            first_choices(places, 0, firsts)
            named = firsts >= 0
            recent[named] += RECENT_RATE * ((firsts[named] == token) - recent[named])
            if trace.top.shape[1] >= TOP:
                at = len(trace.prompt) + place
                successors.update(text[at - 2 : at], trace.top[place : place + 1, :TOP])
            context.append([token])
        history.add(trace.reply)
        prompts.add(trace.prompt)


def lesson_of(places: Places, token: int, warm: Floats) -> tuple[Any, Any, int, Any, Any]:
    """Return the acceptance model's inputs at row 0, behind which `token` followed."""
    count = int(places.candidates[0])
    inputs = np.zeros((CANDIDATES, SLOTS * INPUTS), np.float32)
    noise = np.zeros(CANDIDATES, np.float32)
    for i in range(count):
        read(places.seen[0, i], places.known[0], inputs[i])
        if places.keys[0]:
            noise[i] = gumbel_of_one(places.keys[0], places.tokens[0, i])
    around = np.empty(SLOTS * KNOWN, np.float32)
    read_around(places.known[0], around)
    found = np.flatnonzero(places.tokens[0, :count] == token)
    right = int(found[0]) if found.size else CANDIDATES
    return inputs.astype(np.float16), around, right, noise, warm


class ModelStatistics:
    """Load the statistics of each model that wrote replies."""

    def __init__(self, corpus: Path | None) -> None:
        self._corpus = corpus
        self._texts: dict[str, list[Source]] = {}

    def lessons(self, paths: Sequence[Path], chances: Sequence[Chance] = ()) -> Lessons:
        """Make the lessons of all files; the replies of one are of one model."""
        files = [read_traces(path) for path in paths]
        taught = [lessons(traces, self._statistics(traces[0].model), chances) for traces in files]
        return Lessons(*(np.concatenate(parts) for parts in zip(*taught, strict=True)))

    def _statistics(self, model: str | None) -> list[Source]:
        """Return the statistics of a model; None: the default model."""
        entry = read_catalogue().entry(model)
        if entry.name not in self._texts:
            found = statistics(entry, load_tokenizer(entry), self._corpus, stored=False)
            self._texts[entry.name] = statistics_sources(found)
        return self._texts[entry.name]
