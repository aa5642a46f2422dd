"""Hold the model that answers: loaded in the background, replaced on request, one at a time."""

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from hierchat import logs
from hierchat.config import GenerationSettings
from hierchat.engine.remote.drafted import DraftedEngine
from hierchat.engine.scheduler import Scheduler
from hierchat.language import later
from hierchat.models.catalogue import Backend, Catalogue
from hierchat.models.device_memory import best_device, held_memory
from hierchat.models.fetch.bring import bring
from hierchat.models.load.check import require_runnable
from hierchat.models.load.load_model import makers_sampling
from hierchat.models.load.tokenizer_files import read_tokenizer
from hierchat.models.progress import LoadPhase, ModelError, Progress, Report
from hierchat.runtime.loading import LoadOptions, load_remote, load_served_model, require_template
from hierchat.runtime.served_model import ServedModel
from hierchat.store.history import LearnedValues
from hierchat.texts.corpora import kept_seed, seed, seed_files, statistics

SlotPhase = Literal["none", "waiting", "leaving", "measuring", "ready", "failed"] | LoadPhase


@dataclass(frozen=True, slots=True)
class SlotStatus:
    """Status of the slot; `done` of `total` as in models.progress."""

    name: str = ""
    phase: SlotPhase = "none"
    done: int = 0
    total: int | None = None
    message: str = ""
    """What went wrong in phase "failed"; in "ready", why another model did not come, or is not at its fastest."""
    exact: bool | None = field(default=None, compare=False)
    """In "ready": whether the model passed its self-test, so that drafts cannot change a token."""
    drafts: bool = True
    """In "ready": whether drafts are possible for this kind of model."""
    resamples: bool = False
    """In "ready": whether an engine elsewhere drafts, which keeps each word's chance, but not the words of a seed."""


PLACES = 8
"""Replies that a model writes at once, where memory allows it."""

Loader = Callable[[str, Report], ServedModel]
Preparation = Callable[[str, Report], None]
"""Does what loading needs while another model still answers. Raises a ModelError where that is in vain."""


class _Overtaken(Exception):
    """Another model was chosen while this one was being loaded."""


class ModelSlot:
    """Hold one model. `scheduler` gives it to replies; no model leaves in the middle of one."""

    def __init__(
        self,
        catalogue: Catalogue,
        load: Loader | None = None,
        backend: Backend | None = None,
        prepare: Preparation | None = None,
        learned: LearnedValues | None = None,
    ) -> None:
        """Start empty. `learned`: where the program keeps how often draft models agree with a model."""
        self.catalogue = catalogue
        """The catalogue, which is replaced as a whole when a model is added or removed."""
        self.backend = backend
        self.status = SlotStatus()
        self.scheduler = Scheduler()
        self.model: ServedModel | None = None
        self.leaving = False
        """Whether the present model is to go as soon as its reply has ended."""
        self._learned = learned
        self._load = load or self._load_model
        self._prepare = prepare or (self._prepare_model if load is None else lambda name, report: None)
        self._starting = threading.Lock()
        self._shipped = threading.Lock()
        self._asked = 0
        """How often a model was asked for: the last one counts."""
        self._asking = threading.Lock()
        """Guards `_asked` and the status that belongs to it."""

    @property
    def names(self) -> list[str]:
        offered = [name for name, entry in self.catalogue.models.items() if not entry.draft_only]
        return sorted(offered, key=lambda name: name != self.catalogue.default)

    def settings(self, name: str) -> GenerationSettings:
        """Return the model's default sampling: the catalogue's, else its makers'."""
        return makers_sampling(self.catalogue.entry(name))

    def start(self, name: str) -> None:
        """Load a model in the background; the present one stays until the new one can run. Gives up an earlier
        download. Raises ModelError."""
        self.catalogue.entry(name)
        with self._asking:
            self._asked += 1
            self.status = SlotStatus(name, "loading", message=name)
            arguments = (name, self._asked)
        threading.Thread(target=self._replace, args=arguments, name=f"load {name}", daemon=True).start()

    def read_texts(self) -> None:
        """Make the corpora that are stored now draft from the next reply on. Waits for the reply in progress."""
        with self.scheduler.turn(first=True):
            served = self.model
            if served and served.is_local:
                texts = statistics(self.catalogue.entry(served.name), served.prompts.tokenizer, waits=False)
                self.model = replace(served, statistics=tuple(texts))

    def _read_shipped(self, served: ServedModel) -> None:
        def report(progress: Progress) -> None:
            if self.model is None or self.model.engine is not served.engine:
                raise _Overtaken

        served.drafting_ready.wait()  # sorting them is compiled with what drafts
        with self._shipped, suppress(_Overtaken):
            files = seed_files(self.catalogue.entry(served.name))
            if seed(files, served.prompts.tokenizer, served.name, report):
                self.read_texts()

    def eject(self) -> None:
        """Unload the present model in the background when no reply is being written."""
        with self._asking:
            self._asked += 1
        self.leaving = True
        threading.Thread(target=self._eject, args=(self._asked,), name="eject", daemon=True).start()

    def hush(self) -> None:
        """Clear the message why another model did not come."""
        if self.status.phase == "ready":
            self.status = replace(self.status, message="")

    def _eject(self, asked: int) -> None:
        with self._starting, suppress(_Overtaken):
            name = self.model.name if self.model else ""
            with self._turn(name, "leaving", partial(self._require_latest, asked)):
                self.model = None
                gc.collect()
                self._settle(asked, SlotStatus())
        self.leaving = False

    def _replace(self, name: str, asked: int) -> None:
        require_wanted = partial(self._require_latest, asked)
        with self._starting, suppress(_Overtaken):
            require_wanted()
            self.status = SlotStatus(name, "loading", message=name)
            if self.model and (trouble := self._trouble(name, self._prepare, require_wanted)):
                self._settle(asked, _ready(self.model, trouble))
                return
            with self._turn(name, "waiting", require_wanted):
                self._exchange(name, asked)

    def _require_latest(self, asked: int) -> None:
        if asked != self._asked:
            raise _Overtaken

    def _settle(self, asked: int, status: SlotStatus) -> None:
        with self._asking:
            if asked == self._asked:
                self.status = status

    @contextmanager
    def _turn(
        self, name: str, phase: Literal["waiting", "leaving"], require_wanted: Callable[[], None]
    ) -> Iterator[None]:
        ticket = self.scheduler.join(first=True)
        try:
            while not ticket.take():
                require_wanted()
                if ticket.ahead and self.model:
                    self.status = SlotStatus(name, phase)
            require_wanted()
            yield
        finally:
            ticket.leave()

    def _exchange(self, name: str, asked: int) -> None:
        before = self.model.name if self.model else None
        self.model = None  # its memory counts
        # With a model given up for this one, it is loaded to its end: one of the two must answer.
        wanted = None if before else partial(self._require_latest, asked)
        trouble = self._trouble(name, partial(self._fill, asked=asked), wanted)
        if not trouble:
            return
        again = partial(self._fill, asked=asked, trouble=trouble)
        if not before or before == name or self._trouble(before, again) is not None:
            self._settle(asked, SlotStatus(name, "failed", message=trouble))

    def _trouble(
        self, name: str, work: Callable[[str, Report], None], require_wanted: Callable[[], None] | None = None
    ) -> str | None:
        """Do a part of loading a model, and return why it failed, if so. _Overtaken, raised by `require_wanted`,
        passes."""

        def report(progress: Progress) -> None:
            if progress.phase == "downloading" and require_wanted:
                require_wanted()
            self.status = SlotStatus(name, progress.phase, progress.done, progress.total, progress.message)

        try:
            work(name, report)
        except _Overtaken:
            raise
        except ModelError as error:
            return str(error)
        except MemoryError:
            return later(
                f"{name} ran out of memory while it was loaded. Close other programs or choose a smaller one."
            )
        except Exception as error:  # in a thread of its own nothing else would report it
            return later(f"{name} could not be loaded. {logs.error_message(error)}")
        return None

    def _fill(self, name: str, report: Report, *, asked: int, trouble: str = "") -> None:
        self.model = served = self._load(name, report)
        self.scheduler.places = served.engine.places
        self._settle(asked, _ready(served, trouble))
        files = seed_files(self.catalogue.entry(name)) if served.is_local else []
        if files and kept_seed(files, served.prompts.tokenizer) is None:
            shipped = threading.Thread(target=self._read_shipped, args=[served], name="texts", daemon=True)
            shipped.start()

    def _prepare_model(self, name: str, report: Report) -> None:
        entry, device = self.catalogue.entry(name), best_device()
        if entry.engine:
            return
        require_runnable(entry, device, self.backend, report, held_memory(device))
        require_template(name, read_tokenizer(bring(entry, report, device, self.backend)))

    def _load_model(self, name: str, report: Report) -> ServedModel:
        def measuring() -> None:
            self.status = SlotStatus(name, "measuring", message="measuring plain decoding")

        entry, catalogue = self.catalogue.entry(name), self.catalogue
        if entry.engine:
            return load_remote(entry)
        options = LoadOptions(
            self.backend, stored=True, places=PLACES, learned=self._learned, catalogue=catalogue, waits=False
        )
        return load_served_model(entry, options, report, measuring)


def _ready(served: ServedModel, trouble: str) -> SlotStatus:
    return SlotStatus(
        served.name,
        "ready",
        message=later(f"{trouble} {served.name} goes on answering.") if trouble else served.note,
        exact=served.engine.exact,
        drafts=served.drafts,
        resamples=isinstance(served.engine, DraftedEngine),
    )
