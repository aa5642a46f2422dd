"""The model that answers: loaded in the background, replaced on request, one at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hierchat.chat.costs import Costs, machine_name, measure_costs
from hierchat.chat.prompt import PromptBuilder
from hierchat.config import GenerationSettings
from hierchat.corpus.format import Statistics
from hierchat.engine.engine import Engine
from hierchat.models.catalogue import Backend, Catalogue, ModelEntry
from hierchat.models.errors import ModelError
from hierchat.models.progress import Progress, Report, silent

if TYPE_CHECKING:
    from hierchat.chat.levels import Levels

HostPhase = Literal[
    "none",
    "downloading",
    "converting",
    "loading",
    "compiling",
    "reading",
    "sorting",
    "measuring",
    "ready",
    "failed",
]


@dataclass(frozen=True, slots=True)
class HostStatus:
    """What the host is doing; `done` of `total` as in models.progress."""

    name: str = ""
    phase: HostPhase = "none"
    done: int = 0
    total: int | None = None
    message: str = ""
    """What went wrong in phase "failed"; in "ready", why another model that was asked for did not come, or
    why it does not run on the fastest engine."""
    exact: bool | None = field(default=None, compare=False)
    """In "ready": whether the model passed its self-test, so that drafts cannot change a token."""


@dataclass(frozen=True, slots=True)
class Hosted:
    """A model ready to answer."""

    name: str
    model_key: str
    engine: Engine
    prompts: PromptBuilder
    vanilla_ms: float
    """Fastest plain decoding, milliseconds per token, measured after loading at a short context."""
    note: str = ""
    """Why it does not run on the engine that would be fastest here."""
    statistics: tuple[Statistics, ...] = ()
    """The texts of the seed pack and of corpora, to draft from."""
    levels: Levels | None = None
    """The draft models below it; None where it has none."""
    machine: str = ""
    """Names the machine and the backend whose costs are kept; empty: they are not."""


Loader = Callable[[str, Report], Hosted]


class ModelHost:
    """Holds one model. `engine_lock` is held for a whole reply, so that no model leaves in the middle of one."""

    def __init__(
        self,
        catalogue: Catalogue,
        report: Report = silent,
        load: Loader | None = None,
        backend: Backend | None = None,
    ) -> None:
        self.catalogue = catalogue
        offered = [name for name, entry in catalogue.models.items() if not entry.draft_only]
        self.names = sorted(offered, key=lambda name: name != catalogue.default)
        self.status = HostStatus()
        self.engine_lock = threading.Lock()
        self.hosted: Hosted | None = None
        self.costs: Costs | None = None
        """Where what steps cost is kept from run to run; the chat service sets it."""
        self._report = report
        self._backend = backend
        self._load = load or self._load_model
        self._starting = threading.Lock()

    def settings(self, name: str) -> GenerationSettings:
        """The model's default sampling."""
        return self.catalogue.entry(name).sampling

    def start(self, name: str) -> None:
        """Load a model in the background, in place of the present one. Raises UnknownModelError."""
        self.catalogue.entry(name)
        self.status = HostStatus(name, "loading", message=name)
        threading.Thread(target=self._replace, args=(name,), name=f"load {name}", daemon=True).start()

    def _replace(self, name: str) -> None:
        with self._starting, self.engine_lock:
            before = self.hosted.name if self.hosted else None
            self.hosted = None  # its memory counts
            trouble = self._try(name)
            if trouble and before and before != name and self._try(before) is None:
                self.status = replace(self.status, message=f"{trouble} {before} goes on answering.")
            elif trouble:
                self.status = HostStatus(name, "failed", message=trouble)

    def _try(self, name: str) -> str | None:
        """Load it, or say why not."""

        def report(progress: Progress) -> None:
            self.status = HostStatus(name, progress.phase, progress.done, progress.total, progress.message)
            self._report(progress)

        try:
            self.hosted = self._load(name, report)
        except ModelError as error:
            return str(error)
        except MemoryError:
            return (
                f"{name} ran out of memory while it was loaded. Close other programs or choose a smaller one."
            )
        except Exception as error:  # a thread of its own: nobody else would hear of it
            return f"{name} could not be loaded: {type(error).__name__}: {error}"
        self.status = HostStatus(
            name, "ready", message=self.hosted.note, exact=self.hosted.engine.target.exact
        )
        return None

    def _load_model(self, name: str, report: Report) -> Hosted:
        def measuring() -> None:
            self.status = HostStatus(name, "measuring", message="measuring plain decoding")

        return load_hosted(
            self.catalogue.entry(name),
            self._backend,
            report,
            measuring,
            stored=True,
            costs=self.costs,
            catalogue=self.catalogue,
        )


def load_hosted(
    entry: ModelEntry,
    backend: Backend | None = None,
    report: Report = silent,
    measuring: Callable[[], None] = lambda: None,
    *,
    stored: bool = False,
    corpus: Path | None = None,
    costs: Costs | None = None,
    catalogue: Catalogue | None = None,
) -> Hosted:
    """Fetch and load a model, and measure its plain decoding. `backend`: None for the best that this machine has.

    `stored`: the corpora that the user added may draft; `corpus`: these texts, too. Raises a ModelError, or a
    CorpusError about `corpus`. `costs`: where an earlier run's are. `catalogue`: where its draft models stand; None
    for none.
    """
    # These take seconds to import: only when a model is really loaded
    from hierchat.chat.drafters import warm_up
    from hierchat.chat.levels import load_levels
    from hierchat.corpus.statistics import statistics
    from hierchat.drafting.growing import kernel
    from hierchat.engine.backends import make_target
    from hierchat.models.load import load

    loaded = load(entry, progress=report, backend=backend)
    drafting = tuple(statistics(entry, loaded.tokenizer, corpus, stored, report))
    measuring()
    engine = Engine(make_target(loaded, report), loaded.end_ids, loaded.tokenizer.decode)
    vanilla_ms = engine.measure_vanilla(entry.sampling, forwards=7)
    machine = machine_name(loaded)
    measure_costs(engine, loaded.model_key, machine, costs)
    levels = load_levels(entry, loaded, engine, drafting, catalogue, report, costs) if catalogue else None
    prompts = PromptBuilder(loaded.tokenizer, loaded.context_length, entry.system_prompt)
    hosted = Hosted(
        entry.name, loaded.model_key, engine, prompts, vanilla_ms, loaded.note, drafting, levels, machine
    )
    if not kernel.has("grow.grow"):
        report(Progress("compiling", 0, None, "what drafts, for this processor, once (up to a minute)"))
    warm_up(hosted)
    return hosted
