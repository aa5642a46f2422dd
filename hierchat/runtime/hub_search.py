"""A search of the hub, and a closer look at what it found, in the background: the hub may be slow. It is asked only for
what somebody has pressed a button for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from hierchat import logs
from hierchat.models.errors import ModelError
from hierchat.models.fetch.hub_search import MOST_WORDS, HubFile, HubModel, hub_model, search
from hierchat.models.load.described import Described
from hierchat.models.load.fit import Fit
from hierchat.models.load.on_hub import best, choices, describe
from hierchat.runtime.speed import Speed

HubPhase = Literal["asking", "done", "failed"]
MOST_ASKING = 4
"""Questions that wait for the hub at once, those that nobody wants any more included."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What a model would do here. `speed`: None where that is not known."""

    fit: Fit
    speed: Speed | None


@dataclass(frozen=True, slots=True)
class Look:
    """One model, closer. `model` and `file` are None until they are known; `described` and `judged` where it cannot
    run, which `message` says."""

    repo: str
    phase: HubPhase
    model: HubModel | None = None
    file: str | None = None
    described: Described | None = None
    judged: Judged | None = None
    message: str = ""

    @property
    def choices(self) -> list[HubFile]:
        """What can be fetched of it."""
        return choices(self.model) if self.model else []


@dataclass(frozen=True, slots=True)
class Search:
    """What was searched for, and what was found."""

    words: str
    phase: HubPhase
    found: tuple[HubModel, ...] = ()
    message: str = ""
    look: Look | None = None


class HubSearch:
    """One search at a time; a newer one takes its place."""

    def __init__(self, judge: Callable[[Described], Judged]) -> None:
        self._judge = judge
        self._lock = threading.Lock()
        self._asked = 0
        """The last question's number: answers to others are not wanted."""
        self._asking = 0
        self.now: Search | None = None

    @property
    def busy(self) -> bool:
        """Whether an answer is waited for."""
        now = self.now
        return bool(now and "asking" in (now.phase, now.look.phase if now.look else ""))

    def search(self, words: str) -> None:
        """Ask in the background. Raises ModelError where the hub has not answered earlier questions."""

        words = " ".join(words.split())[:MOST_WORDS]

        def answered() -> Search:
            try:
                return Search(words, "done", tuple(search(words)))
            except Exception as error:
                return Search(words, "failed", message=logs.said(error))

        self._ask(Search(words, "asking"), answered)

    def look(self, repo: str, file: str | None = None) -> None:
        """A model that was found, closer: in one of its files, or in the best one. Raises ModelError."""
        before = self.now
        if before is None or repo not in [model.repo for model in before.found]:
            raise ModelError(f"{repo} is not among what was found. Search again.")
        known = before.look.model if before.look and before.look.repo == repo else None

        def answered() -> Search:
            return replace(before, look=self._looked(repo, file, known))

        self._ask(replace(before, look=Look(repo, "asking", known, file)), answered)

    def _looked(self, repo: str, file: str | None, model: HubModel | None) -> Look:
        chosen = file
        try:
            model = model or hub_model(repo)
            chosen = best(model) if file is None else file
            described = describe(model, chosen)
            return Look(repo, "done", model, chosen, described, self._judge(described))
        except Exception as error:
            return Look(repo, "failed", model, chosen, message=logs.said(error))

    def leave_look(self) -> None:
        """Look no closer, whether that was answered or not."""
        with self._lock:
            self._asked += 1
            self.now = replace(self.now, look=None) if self.now else None

    @property
    def failed(self) -> Search | None:
        """The search, where it or a closer look failed."""
        now = self.now
        return now if now and "failed" in (now.phase, now.look.phase if now.look else "") else None

    def leave(self) -> None:
        """Forget the search, whether it was answered or not."""
        with self._lock:
            self._asked += 1
            self.now = None

    def _ask(self, meanwhile: Search, answered: Callable[[], Search]) -> None:
        with self._lock:
            if self._asking >= MOST_ASKING:
                raise ModelError("The hub has not answered the questions before this one. Wait a minute.")
            self._asking += 1
            self._asked += 1
            number, self.now = self._asked, meanwhile

        def ask() -> None:
            found = answered()
            with self._lock:
                self._asking -= 1
                if number == self._asked:
                    self.now = found

        threading.Thread(target=ask, name="hub search", daemon=True).start()
