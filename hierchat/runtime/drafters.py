"""Make what drafts for a model, for the program and every measurement: databases, and draft models below it."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import combinations
from threading import Event

import numpy as np
from safetensors import SafetensorError

from hierchat.config import GenerationSettings
from hierchat.drafting.acceptance import Acceptance
from hierchat.drafting.draft_cost import LatencyCurve
from hierchat.drafting.drafter import Drafter
from hierchat.drafting.growing.kernel_arrays import CORPUS, SEED
from hierchat.drafting.proposer import JointDrafter, Proposer
from hierchat.drafting.source import Source
from hierchat.drafting.suffix_index import SuffixIndex
from hierchat.engine.draft_model import CachedDraftModel, DraftedReply
from hierchat.engine.local import LocalEngine, measure
from hierchat.engine.runner import CachedSequence
from hierchat.hierarchy.hierarchical_drafter import HierarchicalDrafter
from hierchat.hierarchy.plan import Plan
from hierchat.hierarchy.planner import Hierarchy
from hierchat.models.catalogue import Backend, Catalogue, ModelEntry
from hierchat.models.fetch.bring import has_blocks, is_fetched
from hierchat.models.load.load_model import LoadedModel, load
from hierchat.models.load.tokenizer_files import tokens_sha256
from hierchat.models.progress import ModelError, Report, UnsupportedError, silent
from hierchat.runtime.kernels import draft_once
from hierchat.runtime.served_model import LearnedState, Levels, LoadedLevel, ServedModel
from hierchat.store import StoreError
from hierchat.store.history import LearnedValues
from hierchat.texts.build import Statistics
from hierchat.texts.corpora import SEED_NAME

_log = logging.getLogger(__name__)
TEXT = (
    "A lighthouse stands where ships would otherwise come too close to the rocks. Its keeper lit the lamp at dusk and "
    "put it out at dawn, wound the clockwork that turned the lens, and wrote the weather into a book. Today most of "
    "the lamps are electric and light themselves, but the towers are still there, and people climb them for the view."
    "\n\n"
    "Here are three things that you can do on a rainy day:\n\n1. Read a book that you have wanted to read for a long "
    "time.\n2. Bake bread. You need flour, water, salt and yeast, and most of the time you only wait.\n3. Write a "
    "letter to a friend."
)
"""Text over which models are compared after loading: its first SAMPLE tokens."""
SAMPLE = 96
_RUNNING = "what it drafted could not be taken back where it was wrong: it keeps a running state"


def load_levels(
    entry: ModelEntry,
    loaded: LoadedModel,
    engine: LocalEngine,
    catalogue: Catalogue,
    report: Report = silent,
    learned: LearnedValues | None = None,
) -> Levels:
    """Load what may draft for a model: fetched smaller ones of its family, and a copy of itself in lower precision.
    Others are left out with the reason."""
    from hierchat.engine.backends import select_implementation

    target_ms = engine.latency.step_ms(0)[0]
    beside = "cpu" if loaded.device.startswith("cpu") else None  # also where a GPU was given up
    found, left_out = list[LoadedLevel](), dict[str, str]()

    def load_level(name: str, candidate: ModelEntry, backend: Backend | None) -> None:
        source = candidate.source
        local = source.folder or (source.gguf and source.gguf.path)  # raises an error that says what it lacks
        if not local and not is_fetched(candidate):
            get = f"python -m hierchat models get {candidate.name}"
            raise UnsupportedError(f"not on this machine; `{get}` fetches it")
        length = min(candidate.context_length or loaded.context_length, loaded.context_length)
        draft = load(candidate.model_copy(update={"context_length": length}), beside, report, backend)
        if tokens_sha256(loaded.tokenizer) != tokens_sha256(draft.tokenizer):
            raise UnsupportedError("other tokens: they, or their numbers, are not those of the target")
        runner = select_implementation(draft, report).runner
        if not runner.drafts:
            raise UnsupportedError(_RUNNING)
        if (count := len(loaded.tokenizer)) > runner.vocabulary:
            reason = f"the target has {count} tokens and the draft model {runner.vocabulary}"
            raise UnsupportedError(f"other tokens: {reason}")
        sequence = runner.open()
        latency = LatencyCurve()
        measure(latency, sequence)
        if (ms := latency.step_ms(0)[0]) >= target_ms:
            slow = f"{ms:.1f} ms each time it runs, the model {target_ms:.1f}"
            raise UnsupportedError(f"no faster than the model itself: {slow}")
        copied = name.startswith(f"{entry.name}:") and sequence.adopt(engine.sequence, ())
        found.append(LoadedLevel(name, sequence, latency, engine.sequence if copied else None))

    for name, candidate, backend in _candidates(entry, loaded, catalogue):
        try:
            load_level(name, candidate, backend)
        except (ModelError, SafetensorError, OSError, MemoryError, RuntimeError) as error:
            left_out[name] = str(error) or "memory ran out"
            _log.info("%s does not draft for %s: %s", name, entry.name, left_out[name])
    found.sort(key=lambda one: one.latency.step_ms(0)[0])
    names = [*(one.name for one in found), entry.name]
    key = (loaded.model_key, f"{loaded.backend} over {' '.join(names[:-1])}")
    text = loaded.tokenizer(TEXT, add_special_tokens=False)["input_ids"][:SAMPLE]
    priors = _priors(found, engine, text, key, learned) if found else {}
    hierarchy = Hierarchy(names, [*(one.latency for one in found), engine.latency], priors)
    return Levels(tuple(found), hierarchy, left_out)


def _priors(
    found: Sequence[LoadedLevel],
    engine: LocalEngine,
    text: Sequence[int],
    key: tuple[str, str],
    learned: LearnedValues | None,
) -> dict[tuple[int, int], float]:
    """Return how often the models agree, as measured at the first load: it takes seconds."""
    with suppress(StoreError, ValueError, TypeError):  # measured again
        if learned and (kept := learned.agreement(*key)):
            priors = {(int(low), int(high)): float(share) for low, high, share in json.loads(kept)}
            if all(0.0 <= share <= 1.0 for share in priors.values()):
                return priors
    priors = agreement([*(one.sequence for one in found), engine.sequence], text)
    with suppress(StoreError):
        if learned:
            learned.keep_agreement(
                *key, json.dumps([[*pair, share] for pair, share in priors.items()]).encode()
            )
    return priors


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


def agreement(models: Sequence[CachedSequence], text: Sequence[int]) -> dict[tuple[int, int], float]:
    """Measure how often two models have the same top token in a text: by their numbers, the lower one first."""
    choices = []
    for model in models:
        model.rollback(0)
        rows = model.forward(tuple(text), tuple(range(-1, len(text) - 1)), padded=False)
        choices.append(np.array([int(rows[node].argmax()) for node in range(len(text))]))
    return {
        (low, high): float((choices[low] == choices[high]).mean())
        for low, high in combinations(range(len(models)), 2)
    }


@dataclass(slots=True)
class Memory:
    """Memory of the earlier replies of one user and model: texts to draft from, and what was learned."""

    history: list[Source] = field(default_factory=lambda: [Source()])
    learned: LearnedState = field(default_factory=LearnedState)
    user: int | None = None
    """Whose it is; None where there is one user only."""


def default_drafter(
    served: ServedModel, memory: Memory, width: int | None = None, settings: GenerationSettings | None = None
) -> Drafter:
    """Make a drafter over all databases: this conversation, the history, the statistics loaded with the model."""
    sources, learned = all_sources(served, memory), memory.learned
    latency, control = served.local.latency, served.prompts.control_tokens
    return Drafter(sources, learned.acceptance, latency, width, learned.successors, settings, control)


def reply_drafter(
    served: ServedModel, memory: Memory, settings: GenerationSettings, stop: Event, width: int | None = None
) -> Proposer:
    """Make the proposer of a reply: databases, draft models unless a width is fixed, and other proposers."""
    drafter: Drafter | HierarchicalDrafter
    databases = drafter = default_drafter(served, memory, width, settings)
    if not width and served.levels and served.levels.models:
        drafter = with_models(served, memory, settings, stop, served.levels)
        databases = drafter.retrieval or databases
    others = [make() for make in served.proposers]
    if served.mtp:
        # Imports the CPU engine, which takes a third of a second
        from hierchat.engine.draft_head import HeadDrafter

        others.append(HeadDrafter(served.mtp, databases.cost, settings))
    return JointDrafter(drafter, others, databases.cost) if others else drafter


def with_models(
    served: ServedModel,
    memory: Memory,
    settings: GenerationSettings,
    stop: Event,
    levels: Levels,
    plan: Plan | None = None,
    *,
    retrieval: bool = True,
) -> HierarchicalDrafter:
    """Make the hierarchy of `levels` for one reply; `plan` fixes what is otherwise chosen."""
    sources = all_sources(served, memory) if retrieval else []
    reply = DraftedReply(settings, stop, memory.user, levels.users, served.end_ids)
    stacked, vocabulary = [], served.local.runner.vocabulary
    for one in levels.models:
        model = CachedDraftModel(one.name, one.sequence, one.latency, reply, vocabulary, one.original)
        acceptance = memory.learned.levels.setdefault(one.name, Acceptance())
        control = served.prompts.control_tokens
        below = Drafter(sources, acceptance, one.latency, None, memory.learned.successors, settings, control)
        stacked.append((model, below))
    above = default_drafter(served, memory, settings=settings) if retrieval else None
    return HierarchicalDrafter(levels.hierarchy, above, stacked, reply, plan)


def all_sources(served: ServedModel, memory: Memory) -> list[Source]:
    """Return all databases of a drafter but the context."""
    return [*memory.history, *statistics_sources(served.statistics)]


def warm_up(served: ServedModel) -> None:
    """Draft once over a few tokens: all that drafting and its databases compile at their first use is compiled then."""
    memory = Memory()
    memory.history[0].index.extend([[1, 2, 3, 1, 2], [2, 3]])
    memory.history[0].add([1, 2, 3])
    draft_once(default_drafter(served, memory))


def statistics_sources(statistics: Sequence[Statistics]) -> list[Source]:
    """Make databases of the corpora: what the model itself wrote has weights of its own."""
    return [
        Source(
            SEED if corpus.name == SEED_NAME else CORPUS,
            SuffixIndex.from_sorted(corpus.tokens, corpus.order),
            title=f"corpus {corpus.name}",
        )
        for corpus in statistics
    ]


def apart(memory: Memory) -> Memory:
    """Copy what a memory has learned, so that later lessons do not enter it."""
    return replace(memory, learned=deepcopy(memory.learned))
