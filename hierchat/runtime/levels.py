"""The draft models that stand below a loaded model: which there are, what they cost, and how often they agree."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from hierchat.drafting.cost import LatencyCurve
from hierchat.drafting.suffix_index import BREAK
from hierchat.engine.draft_model import FewerTokens
from hierchat.engine.engine import UnsupportedModel
from hierchat.engine.local import LocalEngine
from hierchat.engine.runner import CachedSequence
from hierchat.hierarchy.planner import Hierarchy
from hierchat.models.catalogue import Backend, Catalogue, ModelEntry
from hierchat.models.fetch.bring import has_blocks, status
from hierchat.models.load.loaded_model import LoadedModel
from hierchat.models.load.tokenizer_files import read_known, same_tokens
from hierchat.models.progress import BrokenFileError, ModelError, Report, silent
from hierchat.runtime.costs import machine_name, measure_costs
from hierchat.store import StoreError
from hierchat.store.history import LearnedValues
from hierchat.texts.build import Statistics

SAMPLES, SAMPLE = 4, 96
"""Texts, and tokens of each, over which models are compared after loading."""
TEXT = (
    "A lighthouse stands where ships would otherwise come too close to the rocks. Its keeper lit the lamp at dusk and "
    "put it out at dawn, wound the clockwork that turned the lens, and wrote the weather into a book. Today most of "
    "the lamps are electric and light themselves, but the towers are still there, and people climb them for the view."
    "\n\n"
    "Here are three things that you can do on a rainy day:\n\n1. Read a book that you have wanted to read for a long "
    "time.\n2. Bake bread. You need flour, water, salt and yeast, and most of the time you only wait.\n3. Write a "
    "letter to a friend."
)
"""What models are compared over where there is no text that the target wrote."""
_RUNNING = "what it drafted could not be taken back where it was wrong: it keeps a running state"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A draft model that is not there, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class LoadedLevel:
    """A draft model that can be used."""

    name: str
    sequence: CachedSequence
    latency: LatencyCurve
    key: tuple[str, str] = ("", "")
    """Model and machine that costs are kept under."""
    original: CachedSequence | None = None
    """The target's sequence, where this is a rounded copy and can take over what that has read."""


@dataclass(frozen=True, slots=True)
class Levels:
    """Draft models from the smallest up, and what is known of them together with the target."""

    models: tuple[LoadedLevel, ...]
    hierarchy: Hierarchy
    left_out: tuple[LeftOut, ...] = ()
    key: tuple[str, str] | None = None
    """Model and machine that the hierarchy is kept under; None: nothing is kept."""
    users: dict[str, int | None] = field(default_factory=dict)
    """By draft model, whose text its slots hold."""

    @property
    def sequences(self) -> tuple[CachedSequence, ...]:
        return tuple(model.sequence for model in self.models)

    def keep(self, costs: LearnedValues) -> None:
        """Keep costs for the next start; nothing of what `only` made. What cannot be written is learned again."""
        if self.key:
            with suppress(StoreError):
                for model in self.models:
                    costs.keep_latency(*model.key, model.latency.state())
                costs.keep_latency(*self.key, self.hierarchy.state())

    def only(self, names: Sequence[str] | None = None, *, retrieval: bool = False) -> Levels:
        """Return some of the draft models, or all, in the state after loading. `retrieval`: with the databases. Raises
        KeyError."""
        known = self.hierarchy.names[:-1]
        if unknown := [name for name in names or () if name not in known]:
            raise KeyError(unknown[0])
        kept = [level for level, name in enumerate(known) if names is None or name in names]
        models = tuple(self.models[level] for level in kept)
        return Levels(models, self.hierarchy.only(kept, retrieval=retrieval), self.left_out, users=self.users)


def load_levels(
    entry: ModelEntry,
    loaded: LoadedModel,
    engine: LocalEngine,
    statistics: Sequence[Statistics],
    catalogue: Catalogue,
    report: Report = silent,
    costs: LearnedValues | None = None,
) -> Levels:
    """Load what may draft for a model: smaller ones of its family that are on this machine, and a copy of itself in
    lower precision. Nothing is fetched; what cannot be had is left out with the reason."""
    from hierchat.engine.backends import make_runner
    from hierchat.models.load.load_model import load

    target_ms = engine.latency.step_ms(0)[0]
    beside = "cpu" if loaded.device.startswith("cpu") else None  # also where a GPU was given up

    def load_level(name: str, candidate: ModelEntry, backend: Backend | None) -> LoadedLevel:
        source = candidate.source
        local = source.folder or (source.gguf and source.gguf.path)  # raises an error that says what it lacks
        if not local and not status(candidate).present:
            get = f"python -m hierchat models get {candidate.name}"
            raise UnsupportedModel(f"not on this machine; `{get}` fetches it")
        length = min(candidate.context_length or loaded.context_length, loaded.context_length)
        draft = load(candidate.model_copy(update={"context_length": length}), beside, report, backend)
        if reason := same_tokens(loaded.tokenizer, draft.tokenizer):
            raise UnsupportedModel(f"other tokens: {reason}")
        runner = make_runner(draft, report)
        if not runner.drafts:
            raise UnsupportedModel(_RUNNING)
        sequence = _over_all_tokens(runner.open(), candidate, draft, engine.runner.vocabulary)
        latency, key = LatencyCurve(), (draft.model_key, machine_name(draft))
        measure_costs(latency, sequence, *key, costs)
        if (ms := latency.step_ms(0)[0]) >= target_ms:
            slow = f"{ms:.1f} ms each time it runs, the model {target_ms:.1f}"
            raise UnsupportedModel(f"no faster than the model itself: {slow}")
        copied = name.startswith(f"{entry.name}:") and sequence.adopt(engine.sequence, ())
        return LoadedLevel(name, sequence, latency, key, engine.sequence if copied else None)

    found, left_out = list[LoadedLevel](), list[LeftOut]()
    for name, candidate, backend in _candidates(entry, loaded, catalogue):
        try:
            found.append(load_level(name, candidate, backend))
        except (ModelError, UnsupportedModel, MemoryError) as error:
            left_out.append(LeftOut(name, str(error) or "memory ran out"))
    found.sort(key=lambda one: one.latency.step_ms(0)[0])
    names = [*(one.name for one in found), entry.name]
    hierarchy = Hierarchy(names, [*(one.latency for one in found), engine.latency])
    own_key = (loaded.model_key, f"{machine_name(loaded)} under it {' '.join(names[:-1])}")
    with suppress(StoreError, ValueError):  # learned again
        if costs and found and (state := costs.latency(*own_key)):
            hierarchy.restore(state)
    if found and not hierarchy.priors:  # it takes seconds
        models = [*(one.sequence for one in found), engine.sequence]
        hierarchy.priors = agreement(models, samples(statistics, loaded))
    return Levels(tuple(found), hierarchy, tuple(left_out), own_key)


def _over_all_tokens(
    sequence: CachedSequence, entry: ModelEntry, loaded: LoadedModel, vocabulary: int
) -> CachedSequence:
    """Spread a draft model over all of the target's tokens; it may have some of them, or pad to another number. Raises
    BrokenFileError."""
    known = read_known(entry.source.folder.path) if entry.source.folder else None
    if known is not None:
        return FewerTokens(sequence, known, vocabulary)
    tokens = len(loaded.tokenizer)
    if sequence.vocabulary < tokens:
        raise BrokenFileError(
            f"It has {sequence.vocabulary} of {tokens} tokens, and the list of them is missing. Distil the draft again."
        )
    if sequence.vocabulary == vocabulary:
        return sequence
    return FewerTokens(sequence, np.arange(min(sequence.vocabulary, vocabulary)), vocabulary, others=0)


def _candidates(
    entry: ModelEntry, loaded: LoadedModel, catalogue: Catalogue
) -> list[tuple[str, ModelEntry, Backend | None]]:
    found: list[tuple[str, ModelEntry, Backend | None]] = [
        (name, catalogue.entry(name), None) for name in entry.drafts
    ]
    if loaded.device.startswith("cpu"):
        if loaded.backend != "blocks" and has_blocks(entry):
            found.append((f"{entry.name}:blocks", entry, "blocks"))
    elif loaded.quantisation == "none":
        found.append((f"{entry.name}:nf4", entry, "nf4"))
    return found


def samples(statistics: Sequence[Statistics], loaded: LoadedModel) -> list[list[int]]:
    """Choose texts to compare models over: some of those that draft, where there are any."""
    if not statistics:
        tokens: list[int] = loaded.tokenizer(TEXT, add_special_tokens=False)["input_ids"]
        return [tokens[:SAMPLE]]
    texts = statistics[0].tokens
    breaks = np.flatnonzero(texts == BREAK)
    starts = breaks[np.linspace(0, len(breaks) - 2, SAMPLES).astype(int)] + 1
    found = [texts[start : start + SAMPLE] for start in starts.tolist()]
    return [
        text[: int(np.argmax(text == BREAK)) if (text == BREAK).any() else None].tolist() for text in found
    ]


def agreement(
    models: Sequence[CachedSequence], texts: Sequence[Sequence[int]]
) -> dict[tuple[int, int], float]:
    """Measure how often two models have the same top token over these texts: by their numbers, the lower one first."""
    choices = [np.concatenate([_likeliest(model, text) for text in texts]) for model in models]
    return {
        (low, high): float((choices[low] == choices[high]).mean())
        for low, high in combinations(range(len(models)), 2)
    }


def _likeliest(model: CachedSequence, text: Sequence[int]) -> NDArray[np.int64]:
    model.rollback(0)
    rows = model.forward(tuple(text), tuple(range(-1, len(text) - 1)), padded=False)
    return np.array([int(rows[node].argmax()) for node in range(len(text))])
