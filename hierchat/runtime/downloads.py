"""Download models, one after another beside the model that answers, and search the hub."""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from hierchat import logs
from hierchat.models.catalogue import Backend, ModelEntry
from hierchat.models.device_memory import best_device, held_memory
from hierchat.models.fetch.bring import bring
from hierchat.models.fetch.hub import MOST_WORDS, HubFile, HubModel, hub_model, search
from hierchat.models.load.add import Described, best, choices, describe
from hierchat.models.load.check import Fit, require_worth_fetching
from hierchat.models.progress import ModelError, Progress, Report
from hierchat.store.records import ModelSpeed

DownloadPhase = Literal[
    "waiting", "checking", "downloading", "converting", "stopping", "stopped", "failed", "done"
]

Bring = Callable[[ModelEntry, Report], None]


@dataclass(frozen=True, slots=True)
class Download:
    """State of a model's download. `done` of `total` bytes, later as in models.progress; `speed`: bytes a second of the
    present file."""

    name: str
    phase: DownloadPhase
    done: int = 0
    total: int | None = None
    speed: float | None = None
    message: str = ""

    @property
    def under_way(self) -> bool:
        return self.phase not in ("stopped", "failed", "done")


class _Stopped(Exception):
    """A download was stopped by the user."""


class Downloads:
    """Run downloads by name; what has ended stays listed until it is forgotten, or started again, where it goes on."""

    def __init__(self, bring: Bring | None = None, backend: Backend | None = None) -> None:
        self._bring = bring or partial(bring_whole, backend=backend)
        self._lock = threading.Lock()
        self._known: dict[str, Download] = {}
        self._queue: deque[tuple[ModelEntry, Callable[[], None] | None]] = deque()
        self.busy = False

    def start(self, entry: ModelEntry, then: Callable[[], None] | None = None) -> None:
        """Fetch a model after those before it, unless on its way. `then` is called when it is here."""
        with self._lock:
            known = self._known.get(entry.name)
            if known and known.under_way:
                return
            self._known[entry.name] = Download(entry.name, "waiting")
            self._queue.append((entry, then))
            if not self.busy:
                self.busy = True
                threading.Thread(target=self._work, name="fetch", daemon=True).start()

    def stop(self, name: str) -> None:
        """Stop a download at the next piece that comes; what has come stays."""
        with self._lock:
            known = self._known.get(name)
            if not known or not known.under_way:
                return
            if known.phase == "waiting":
                self._queue = deque(one for one in self._queue if one[0].name != name)
                self._known[name] = Download(name, "stopped")
            else:
                self._known[name] = replace(known, phase="stopping", speed=None)

    def of(self, name: str) -> Download | None:
        return self._known.get(name)

    def forget(self, name: str) -> None:
        """Drop a download that has ended from the list."""
        with self._lock:
            if (known := self._known.get(name)) and not known.under_way:
                del self._known[name]

    @property
    def failed(self) -> tuple[Download, ...]:
        return tuple(known for known in [*self._known.values()] if known.phase == "failed")

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._queue:
                    self.busy = False
                    return
                entry, then = self._queue.popleft()
                self._known[entry.name] = Download(entry.name, "checking")
            ended = self._fetched(entry)
            with self._lock:
                self._known[entry.name] = ended
            if then and ended.phase == "done":
                try:
                    then()
                except Exception as error:  # the next one is fetched all the same
                    logs.error_message(error)

    def _fetched(self, entry: ModelEntry) -> Download:
        began = here = 0.0

        def report(progress: Progress) -> None:
            nonlocal began, here
            with self._lock:
                known, now = self._known[entry.name], time.monotonic()
                speed: float | None = None
                if known.phase == "stopping":
                    raise _Stopped
                phase: DownloadPhase = "downloading" if progress.phase == "downloading" else "converting"
                if known.phase != "downloading" or progress.done < known.done:  # another file begins
                    began, here = now, progress.done
                elif phase == "downloading" and now - began > 0.5:
                    speed = (progress.done - here) / (now - began)
                self._known[entry.name] = Download(
                    entry.name, phase, progress.done, progress.total, speed, progress.message
                )

        try:
            self._bring(entry, report)
            return Download(entry.name, "done")
        except MemoryError:
            message = "Memory ran out while it was converted. Close other programs."
        except Exception as error:  # in a thread of its own nothing else would report it
            if self._known[entry.name].phase == "stopping":
                return Download(entry.name, "stopped")
            message = logs.error_message(error)
        return Download(entry.name, "failed", message=message)


def bring_whole(entry: ModelEntry, report: Report, backend: Backend | None) -> None:
    """Fetch everything that loading needs, converted too; refuse before anything large comes where it cannot run."""
    device = best_device()
    require_worth_fetching(entry, device, backend, report, held_memory(device))
    bring(entry, report, device, backend)


HubPhase = Literal["asking", "done", "failed"]


@dataclass(frozen=True, slots=True)
class Judged:
    """Judgement whether and how fast a model would run here. `speed`: None where that is not known."""

    fit: Fit
    speed: ModelSpeed | None


@dataclass(frozen=True, slots=True)
class Look:
    """Closer look at one model; unknown parts are None, and so are two of a model that cannot run."""

    repo: str
    phase: HubPhase
    model: HubModel | None = None
    file: str | None = None
    described: Described | None = None
    judged: Judged | None = None
    message: str = ""

    @property
    def choices(self) -> list[HubFile]:
        return choices(self.model) if self.model else []


@dataclass(frozen=True, slots=True)
class Search:
    """Words of a search, and the models that were found."""

    words: str
    phase: HubPhase
    found: tuple[HubModel, ...] = ()
    message: str = ""
    look: Look | None = None


class HubSearch:
    """Search the hub in the background, one search at a time; a newer one takes its place."""

    def __init__(self, judge: Callable[[Described], Judged]) -> None:
        self._judge = judge
        self._lock = threading.Lock()
        self.now: Search | None = None

    @property
    def busy(self) -> bool:
        return self._in("asking") is not None

    @property
    def failed(self) -> Search | None:
        return self._in("failed")

    def _in(self, phase: HubPhase) -> Search | None:
        now = self.now
        return now if now and phase in (now.phase, now.look.phase if now.look else "") else None

    def search(self, words: str) -> None:
        """Start a search in the background."""
        words = " ".join(words.split())[:MOST_WORDS]

        def answered() -> Search:
            try:
                return Search(words, "done", tuple(search(words)))
            except Exception as error:
                return Search(words, "failed", message=logs.error_message(error))

        self._ask(Search(words, "asking"), answered)

    def look(self, repo: str, file: str | None = None) -> None:
        """Look closer at a model that was found: at one of its files, or at the best one. Raises ModelError."""
        before = self.now
        if before is None or repo not in [model.repo for model in before.found]:
            raise ModelError(f"{repo} is not among what was found. Search again.")
        known = before.look.model if before.look and before.look.repo == repo else None
        asking = replace(before, look=Look(repo, "asking", known, file))
        self._ask(asking, lambda: replace(before, look=self._looked(repo, file, known)))

    def _looked(self, repo: str, file: str | None, model: HubModel | None) -> Look:
        chosen = file
        try:
            model = model or hub_model(repo)
            chosen = best(model) if file is None else file
            described = describe(model, chosen)
            return Look(repo, "done", model, chosen, described, self._judge(described))
        except Exception as error:
            return Look(repo, "failed", model, chosen, message=logs.error_message(error))

    def leave(self, *, look: bool = False) -> None:
        """End the search, or only its closer `look`, whether it was answered or not."""
        with self._lock:
            self.now = replace(self.now, look=None) if look and self.now else None

    def _ask(self, meanwhile: Search, answered: Callable[[], Search]) -> None:
        with self._lock:
            self.now = meanwhile

        def ask() -> None:
            found = answered()
            with self._lock:
                if self.now is meanwhile:  # else nobody waits for the answer any more
                    self.now = found

        threading.Thread(target=ask, name="hub search", daemon=True).start()
