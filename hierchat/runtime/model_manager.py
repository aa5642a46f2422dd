"""List all models as the page shows them, and download, load, add and remove them."""

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from hierchat.models import device_memory
from hierchat.models.catalogue import ModelEntry, read_catalogue
from hierchat.models.fetch import bring
from hierchat.models.fetch.bring import absent_bytes, fetched_size, is_fetched
from hierchat.models.load import check
from hierchat.models.load.add import Described, add, add_described, own_names, remove_model
from hierchat.models.progress import CatalogueError, ModelError
from hierchat.models.runnable import ComputePath
from hierchat.runtime.costs import expected_speed, kept_bandwidth, measure_bandwidth
from hierchat.runtime.downloads import Bring, Download, Downloads, HubSearch, Judged, Search
from hierchat.runtime.model_slot import ModelSlot
from hierchat.store.figures import ReplyFigures
from hierchat.store.records import ModelSpeed

Presence = Literal["here", "partly", "absent"]
TINY = 400_000_000
"""Parameters below which a model knows too little to work with."""
NOBODY = 0
"""No user: what all of them are told depends on nobody's replies."""
READABLE = 6.0
"""Tokens a second below which a model is too slow to read along."""
FAST = 12.0
"""Tokens a second that a recommended model writes at least, without drafts."""
ORDINARY = 8_000_000_000
"""Bytes that a recommended model's files have at most, unless a GPU computes it: GPUs read none of the packed ones."""


Merit = tuple[bool, bool, int, str, int]
"""Order of models to recommend: packed files first, then today's models, the larger ones, of these the newest."""


@dataclass(frozen=True, slots=True)
class ModelRow:
    """Row of the list of models. `size`: bytes of its files; `have`: those that are here; `own`: the user added it."""

    name: str
    licence: str
    parameters: int | None
    size: int | None
    have: int
    state: Presence
    fit: check.Fit
    speed: ModelSpeed | None
    drafts: tuple[str, ...] = ()
    """Names of the draft models that models.yaml gives it."""
    download: Download | None = None
    loaded: bool = False
    default: bool = False
    own: bool = False
    draft_only: bool = False
    step: ComputePath | None = None
    """What will compute it; None where that is not known before it is here."""
    maker: str = ""
    """Who made it, as far as the catalogue or its repository of the hub tells."""
    activations: str = ""
    """int8 or int16, where our own kernels compute it."""
    merit: Merit | None = None
    """Merit of a model that fits this machine and is fast on it every day, whatever else runs at the moment."""
    good_for: tuple[str, ...] = ()
    sees: bool = False
    """Whether it reads pictures, too, in programs that run that part of it."""
    mtp: bool = False


Failures = tuple[Search | None, tuple[Download, ...]]
"""A search of the hub, and downloads, that went wrong."""


@dataclass(frozen=True, slots=True)
class Offer:
    """Offer of a better model than the tiny one that answers, or is being loaded."""

    tiny: str
    ready: bool
    """Whether the tiny one answers already."""
    first: bool
    """Whether no model has written anything here yet."""
    best: ModelRow | None
    """None while the machine is being measured."""


class ModelManager:
    """Manage models over one slot. What changes the disk or the catalogue raises ModelErrors for the user."""

    def __init__(self, slot: ModelSlot, speeds: ReplyFigures, bring: Bring | None = None) -> None:
        self._slot = slot
        self._speeds = speeds
        self.eject = slot.eject
        self._device = device_memory.best_device()
        self.downloads = Downloads(bring, slot.backend)
        self.hub = HubSearch(self._judged)
        self._measuring = threading.Lock()
        self._looking = threading.Lock()
        self._advice: dict[tuple[str, ...], ModelRow | None] = {}
        """The model to use in place of a tiny one, by that, those that are here, and how fast memory is read."""
        self._refused: dict[str, tuple[ModelEntry, int, str]] = {}
        """By a model's name its entry, the bytes that are here, and why it cannot be computed at all; empty: it can."""

    @property
    def names(self) -> list[str]:
        """Return models that can be chosen: those here, the default first, and the one that is loaded or comes."""
        entry = self._slot.catalogue.entry
        return [
            name for name in self._slot.names if name == self._coming or is_fetched(entry(name), self._device)
        ]

    @property
    def _coming(self) -> str:
        status = self._slot.status
        return status.name if status.phase not in ("none", "failed") else ""

    @property
    def busy(self) -> bool:
        """Tell whether the page has to look again: a model comes or goes, or memory is being measured."""
        computing = self._slot.leaving or self._measuring.locked() or self._looking.locked()
        return computing or self.downloads.busy or self.hub.busy

    def rows(self, user_id: int) -> list[ModelRow]:
        """List all models, those that are here first, then the smaller before the larger."""
        own, speeds = own_names(), self._speeds.speeds(user_id)
        bandwidth, free = kept_bandwidth(), self._free  # once: they may change meanwhile
        rows: list[ModelRow] = []
        for entry in self._slot.catalogue.models.values():
            here, have = is_fetched(entry, self._device), fetched_size(entry, self._device)
            served = self._slot.model
            partly = have and not entry.source_on(self._device).folder
            weights = (have or None) if here else absent_bytes(entry, self._device)
            found = self._fit(entry, have, weights, free)
            step = check.expected_step(entry, self._device, self._slot.backend)
            expected = expected_speed(entry, self._device, bandwidth, step, self._slot.backend, weights)
            place = entry.source.hub or entry.source.gguf
            row = ModelRow(
                entry.name,
                entry.licence,
                entry.size.parameters if entry.size else None,
                weights,
                have,
                "here" if here else "partly" if partly else "absent",
                found,
                speeds.get(entry.name, expected),
                entry.drafts,
                self.downloads.of(entry.name),
                loaded=bool(served and served.name == entry.name),
                default=entry.name == self._slot.catalogue.default,
                own=entry.name in own,
                draft_only=entry.draft_only,
                step=step,
                maker=entry.maker or (place.repo or "" if place else "").partition("/")[0],
                activations=entry.activations if step == "kernels" else "",
                merit=self._merit(entry, found, expected, weights),
                good_for=entry.good_for,
                sees=entry.sees,
                mtp=entry.mtp,
            )
            rows.append(row)
        return sorted(rows, key=lambda row: (row.state == "absent", row.parameters or row.size or 0))

    def best(self, rows: Sequence[ModelRow]) -> ModelRow | None:
        """Return the model to recommend, the same for every user and load; None while that is being measured."""
        suiting = [(row.merit, row.name, row) for row in rows if row.merit]
        return max(suiting)[2] if suiting else None

    @property
    def unmeasured(self) -> bool:
        return self._device.startswith("cpu") and kept_bandwidth() is None

    def offer(self) -> Offer | None:
        """Return the offer of a better model while a tiny one answers and no better one has written."""
        served, models = self._slot.model, self._slot.catalogue.models
        name = self._coming or (served.name if served else "")
        if (entry := models.get(name)) is None or not self._tiny(entry):
            return None
        wrote = self._speeds.writers()
        if any(one not in models or not self._tiny(models[one]) for one in wrote):
            return None
        key = (name, *self.names, str(kept_bandwidth()))
        if key not in self._advice and self._looking.acquire(blocking=False):
            threading.Thread(target=self._look, args=(key, _parameters(entry)), daemon=True).start()
        best = self._advice.get(key)
        if key in self._advice and best is None:
            return None
        return Offer(name, bool(served and served.name == name), not wrote, best)

    @staticmethod
    def _tiny(entry: ModelEntry) -> bool:
        return 0 < _parameters(entry) < TINY

    def _look(self, key: tuple[str, ...], parameters: int) -> None:
        try:
            if self.unmeasured:
                self._measuring.acquire()
                self._measure()
            best = self.best(self.rows(NOBODY))
            self._advice[key] = best if best and (best.parameters or 0) > parameters else None
        except ModelError:  # the panel says it
            self._advice[key] = None
        finally:
            self._looking.release()

    @property
    def failures(self) -> Failures:
        return self.hub.failed, self.downloads.failed

    def forget_failures(self, seen: Failures) -> None:
        """Clear failures that the user has `seen`, as far as they are still the same."""
        search, downloads = seen
        if search and self.hub.now is search:
            self.hub.leave(look=search.phase == "done")
        for download in downloads:
            if self.downloads.of(download.name) is download:
                self.downloads.forget(download.name)

    def measure(self) -> None:
        """Measure how fast memory is read, in the background, when no reply is being written."""
        if self._measuring.acquire(blocking=False):
            threading.Thread(target=self._measure, name="bandwidth", daemon=True).start()

    def _measure(self) -> None:
        try:
            measure_bandwidth(partial(self._slot.scheduler.turn, first=True))
        except MemoryError:
            pass  # what is known from earlier stays
        finally:
            self._measuring.release()

    def download(self, name: str) -> None:
        self.downloads.start(self._slot.catalogue.entry(name))

    def load(self, name: str) -> None:
        """Load a model to answer from now on. Raises ModelError where it is not here: choosing it fetches nothing."""
        if not is_fetched(self._slot.catalogue.entry(name), self._device):
            raise ModelError(f"{name} is not on this machine. Download it first, under Models.")
        self.downloads.forget(name)  # what went wrong before it was here
        self._slot.start(name)

    def take(self, name: str) -> None:
        """Load a model as soon as it is here, fetched before, if it is not."""
        entry = self._slot.catalogue.entry(name)
        if is_fetched(entry, self._device):
            self.load(name)
        else:
            self.downloads.start(entry, then=partial(self._slot.start, name))

    def frees(self, name: str) -> int:
        return bring.removable(self._slot.catalogue.entry(name), self._device)

    def remove(self, name: str) -> None:
        """Remove a model's files; one that the user added leaves the catalogue, too."""
        entry = self._slot.catalogue.entry(name)
        if (download := self.downloads.of(name)) and download.under_way:
            raise ModelError(f"{name} is being fetched. Stop that first.")
        served = self._slot.model
        levels = served.levels.hierarchy.names if served and served.levels else []
        if name in (self._coming, *levels, served.name if served else ""):
            raise ModelError(f"{name} is in use. Eject the model that answers first.")
        drafts = [one.name for one in self._slot.catalogue.models.values() if name in one.drafts]
        if drafts and name in own_names():
            raise CatalogueError(
                f"{min(drafts)} names {name} as its draft model. Take it out of `drafts:` in models.yaml first."
            )
        bring.remove(entry, self._device)
        self.downloads.forget(name)
        if name in own_names():
            remove_model(name)
            self._slot.catalogue = read_catalogue()

    def add(self, said: str) -> tuple[str, bool]:
        """Add a hub name, a folder or a GGUF file to the user's models.yaml; return name, and whether it is new."""
        name, new = add(said, self._slot.catalogue)
        self._slot.catalogue = read_catalogue()
        return name, new

    def add_and_load(self) -> str:
        """Add the model looked at on the hub to models.yaml, fetch and load it; return its name. Raises ModelError."""
        look = self.hub.now.look if self.hub.now else None
        if look is None or look.described is None or look.judged is None or look.judged.fit.verdict == "no":
            raise ModelError("Choose a model that was found first.")
        if self.name_of(look.described):
            raise ModelError(f"{look.repo} is in the list already.")
        name = add_described(look.described, self._slot.catalogue)
        self._slot.catalogue = read_catalogue()
        self.take(name)
        return name

    def name_of(self, described: Described) -> str:
        """Return the name of a described model in the catalogue; empty where it is not there."""
        return self._slot.catalogue.name_of(described.entry.source)

    def _judged(self, described: Described) -> Judged:
        entry, backend = described.entry, self._slot.backend
        weights = described.weights
        in_blocks = check.by_engine(entry, self._device, backend) or check.on_card(
            entry, self._device, backend
        )
        if weights and entry.size and not in_blocks:
            weights = check.FLOAT_BYTES * entry.size.parameters  # transformers unpacks it
        return Judged(
            check.fit(entry, self._device, backend, self._free, weights),
            expected_speed(entry, self._device, kept_bandwidth(), described.step, backend, weights),
        )

    @property
    def _free(self) -> int:
        """Return the bytes of memory that another model could use in place of the loaded one."""
        held = device_memory.held_memory(self._device) if self._slot.model else 0
        return device_memory.free_memory(self._device) + held

    def _fit(self, entry: ModelEntry, have: int, weights: int | None, free: int) -> check.Fit:
        known = self._refused.get(entry.name)
        if known is None or known[:2] != (entry, have):
            refused = check.refusal(entry, self._device, self._slot.backend)
            known = self._refused[entry.name] = (entry, have, refused)
        if why := known[2]:
            return check.Fit("no", why)
        return check.fit(entry, self._device, self._slot.backend, free, weights)

    def _merit(
        self, entry: ModelEntry, found: check.Fit, expected: ModelSpeed | None, weights: int | None
    ) -> Merit | None:
        """Return a model's merit on this machine, None if unsuitable; independent of load and measured speeds."""
        size, files = entry.size, weights or 0
        if entry.draft_only or not size or not check.fits_every_day(found, self._device):
            return None
        on_gpu = not self._device.startswith("cpu")  # whatever fits there is fast
        if not on_gpu and (not expected or expected.per_second < FAST or files > ORDINARY):
            return None
        source = entry.source_on(self._device)
        packed = on_gpu or bool(source.gguf or source.wheel)
        alike = round(math.log2(size.effective))  # to half and to twice as much, the newer is better
        return packed, bool(entry.released), alike, entry.released, size.parameters


def _parameters(entry: ModelEntry) -> int:
    return entry.size.parameters if entry.size else 0
