"""A scripted shelf of models: rows that a test sets, and what was asked of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hierchat.models.load.add import Described
from hierchat.models.load.check import Fit
from hierchat.models.progress import ModelError
from hierchat.runtime.downloads import Download, HubSearch, Judged
from hierchat.runtime.model_manager import Failures, ModelRow, Offer
from hierchat.store.records import ModelSpeed

EASY = Fit("yes", "Needs 1.4 GB of 14.9 GB available.", 1_400_000_000)


def row(name: str, parameters: int, state: str = "absent", **more: Any) -> ModelRow:
    """A model as the catalogue has it."""
    size = int(parameters * 0.6)
    have = size if state == "here" else size // 3 if state == "partly" else 0
    return ModelRow(name, "Apache-2.0", parameters, size, have, state, more.pop("fit", EASY), None, **more)  # type: ignore[arg-type]


def rows() -> list[ModelRow]:
    """Some of each kind."""
    large = Fit(
        "no", "Needs 21 GB of memory; this machine has 14.9 GB. Choose a smaller model.", 21_000_000_000
    )
    return [
        replace(
            row("SmolLM2 135M", 135_000_000, "here", loaded=True, default=True), speed=ModelSpeed(61.2, 20)
        ),
        replace(row("Qwen3 0.6B", 596_000_000, "here"), speed=ModelSpeed(48.0)),
        replace(row("Qwen3 1.7B", 1_720_000_000, drafts=("Qwen3 0.6B",)), speed=ModelSpeed(17.3)),
        row("Llama 3.2 3B", 3_210_000_000, "partly", own=True),
        row("Qwen3 32B", 32_800_000_000, fit=large),
    ]


class Figures:
    """Speeds of replies without a store, for a real manager."""

    def __init__(self) -> None:
        self.known: dict[str, ModelSpeed] = {}
        self.wrote: set[str] = set()

    def speeds(self, user_id: int) -> Mapping[str, ModelSpeed]:
        return self.known

    def writers(self) -> set[str]:
        return self.wrote


class FakeModelManager:
    """The surface of hierchat.runtime.model_manager.ModelManager."""

    def __init__(self, slot: Any) -> None:
        self._slot = slot
        self._busy = False
        self.hub = HubSearch(lambda described: Judged(EASY, ModelSpeed(48.0)))
        self.taken = ""
        self.asked: list[tuple[str, str]] = []
        self.listed = rows()
        self.fails = ""
        self.offered: Offer | None = None
        self.unmeasured = False

    @property
    def busy(self) -> bool:
        return self._busy or self.hub.busy

    @busy.setter
    def busy(self, busy: bool) -> None:
        self._busy = busy

    @property
    def names(self) -> list[str]:
        return list(self._slot.names)

    def rows(self, user_id: int) -> list[ModelRow]:
        return self.listed

    def best(self, rows: Sequence[ModelRow]) -> ModelRow | None:
        return next((row for row in rows if row.name == "Qwen3 1.7B"), None)

    def offer(self) -> Offer | None:
        return self.offered

    @property
    def failures(self) -> Failures:
        return self.hub.failed, ()

    def forget_failures(self, seen: Failures) -> None:
        if seen[0] and self.hub.now is seen[0]:
            self.hub.leave()

    def measure(self) -> None:
        pass

    @property
    def downloads(self) -> FakeModelManager:
        return self

    def of(self, name: str) -> Download | None:
        return next((row.download for row in self.listed if row.name == name), None)

    def take(self, name: str) -> None:
        self.download(name)

    def download(self, name: str) -> None:
        self._do("fetch", name)
        self.busy = True
        self.change(name, download=Download(name, "downloading", 41_000_000, 1_032_000_000, 5_200_000.0))

    def stop(self, name: str) -> None:
        self._do("stop", name)
        self.busy = False
        self.change(name, download=Download(name, "stopped"), state="partly", have=41_000_000)

    def load(self, name: str) -> None:
        self._do("load", name)
        self._slot.start(name)
        self.listed = [replace(row, loaded=row.name == name) for row in self.listed]

    def eject(self) -> None:
        self._do("eject", "")
        self._slot.eject()
        self.listed = [replace(row, loaded=False) for row in self.listed]

    def frees(self, name: str) -> int:
        return 358_000_000

    def remove(self, name: str) -> None:
        self._do("remove", name)
        self.listed = [row for row in self.listed if row.name != name]

    def add(self, said: str) -> tuple[str, bool]:
        self._do("add", said)
        if any(one.name == "added" for one in self.listed):
            return "added", False
        self.listed = [*self.listed, row("added", 1_000_000_000, "here", own=True)]
        return "added", True

    def add_and_load(self) -> str:
        look = self.hub.now.look if self.hub.now else None
        if look is None:
            raise ModelError("Choose a model that was found first.")
        self._do("take", f"{look.repo}|{look.file}")
        self.taken = look.repo.split("/")[1]
        self.listed = [*self.listed, row(self.taken, 1_000_000_000, own=True)]
        self.download(self.taken)
        return self.taken

    def name_of(self, described: Described) -> str:
        return self.taken

    def change(self, name: str, **fields: Any) -> None:
        """Set something of a model."""
        self.listed = [replace(row, **fields) if row.name == name else row for row in self.listed]

    def _do(self, act: str, name: str) -> None:
        if self.fails:
            raise ModelError(self.fails)
        self.asked.append((act, name))
