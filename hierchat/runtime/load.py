"""From a catalogue entry to a model ready to answer: fetched, loaded, measured, with its databases and draft models."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from hierchat.engine.local import LocalEngine
from hierchat.models.catalogue import Backend, Catalogue, ModelEntry
from hierchat.models.errors import DeviceError, UnsupportedError
from hierchat.models.load.check import by_engine
from hierchat.models.memory import best_device
from hierchat.models.progress import Progress, Report, silent
from hierchat.runtime.costs import Costs, machine_name, measure_costs
from hierchat.runtime.hosted import Hosted
from hierchat.runtime.prompt import PromptBuilder
from hierchat.runtime.template import ChatTemplate, TemplateStopped


def load_hosted(
    entry: ModelEntry,
    backend: Backend | None = None,
    report: Report = silent,
    measuring: Callable[[], None] = lambda: None,
    *,
    stored: bool = False,
    corpus: Path | None = None,
    places: int = 1,
    costs: Costs | None = None,
    catalogue: Catalogue | None = None,
    waits: bool = True,
    device: str | None = None,
    rung: str | None = None,
) -> Hosted:
    """Fetch and load a model, and measure its plain decoding. `backend`: None for the best that this machine has.

    `places`: replies that it is to write at once; fewer where memory is short. `stored`: the corpora that the user
    added may draft; `corpus`: these texts, too. Raises a ModelError, or a CorpusError about `corpus`. `costs`: where an
    earlier run's are. `catalogue`: where its draft models stand; None for none. Where not `waits`, the texts that ship
    are left out if they are not tokenised yet. `device`: None for the best one. `rung`: the only way of
    engine/backends.py that is tried; by default the first that works, and the processor where a GPU has none.
    """
    # These take seconds to import: only when a model is really loaded
    from hierchat.corpus.statistics import statistics
    from hierchat.engine.backends import land, remark
    from hierchat.engine.sampling.grammar import Grammars
    from hierchat.models.load.load import load
    from hierchat.runtime.drafters import warm_up
    from hierchat.runtime.kernels import DRAFTING, ENGINE, Compiling, is_drafting_compiled
    from hierchat.runtime.levels import load_levels

    device = device or best_device()
    engine_there = by_engine(entry, device, backend)
    with closing(Compiling((ENGINE, DRAFTING) if engine_there else (DRAFTING,))) as compiling:
        loaded = load(entry, device, report, backend)
        require_template(entry.name, loaded.tokenizer)
        drafting = tuple(statistics(entry, loaded.tokenizer, corpus, stored, report, waits))
        compiling.wait(ENGINE, report)
        try:
            landing = land(loaded, report, places, rung)
            note = " ".join(filter(None, (loaded.note, remark(landing))))
        except DeviceError as error:
            if rung:
                raise
            note = f"{error} The processor computes it instead."
            report(Progress("loading", 0, None, note))
            del loaded  # what it holds of the GPU is of no use
            loaded = load(entry, "cpu", report)
            landing = land(loaded, report, places)
        runner = landing.runner
        compiling.wait(DRAFTING, report)  # beside it, nothing could be measured
    measuring()
    engine = LocalEngine(
        runner.open(), loaded.end_ids, loaded.tokenizer.decode, min(places, runner.most_sequences)
    )
    engine.grammars = Grammars(loaded.tokenizer, loaded.end_ids, runner.vocabulary)
    vanilla_ms = engine.measure_vanilla(entry.sampling, forwards=7)
    machine = machine_name(loaded)
    measure_costs(engine.latency, engine.sequence, loaded.model_key, machine, costs)
    levels = None
    if catalogue and runner.drafts:
        levels = load_levels(entry, loaded, engine, drafting, catalogue, report, costs)
    prompts = PromptBuilder(loaded.tokenizer, loaded.context_length, entry.system_prompt, entry.name)
    hosted = Hosted(
        entry.name,
        loaded.model_key,
        engine,
        prompts,
        vanilla_ms,
        note,
        drafting,
        levels,
        machine,
        rung=landing.rung,
    )
    if not runner.drafts:
        return hosted
    if not is_drafting_compiled():
        report(Progress("compiling", 0, None, "what drafts, for this processor, once (up to a minute)"))
    warm_up(hosted)
    return hosted


def require_template(name: str, tokenizer: Any) -> None:
    """Raises UnsupportedError where the model's chat template cannot be used."""
    try:
        ChatTemplate(tokenizer, name).require_usable()
    except TemplateStopped as error:
        raise UnsupportedError(str(error)) from error
