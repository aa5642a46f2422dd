"""Which way computes each model here, and why nothing faster does: kept in the cache folder, for the next start and for
`hierchat doctor`."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel, Field

from hierchat.config import cache_dir
from hierchat.engine.ladder import Landing
from hierchat.models.cache import write_whole

DEATHS = 2
"""Times that the program may end while a rung is tried before that is taken for the rung's doing."""


class Landed(BaseModel, extra="forbid"):
    """Of one model on one device. Under other versions (`made_with`) it counts no more."""

    model: str
    device: str
    made_with: str
    rung: str = ""
    failed: dict[str, str] = Field(default_factory=dict)
    lost: dict[str, str] = Field(default_factory=dict, description="not tried again, by the reason")
    trying: str = Field(default="", description="what was being tried when this was written")
    deaths: dict[str, int] = Field(default_factory=dict)
    inexact: str = Field(default="", description="why drafts may change a word at a near tie")


class LandingNotes:
    """The notes of one model on one device (ladder.Notes)."""

    def __init__(self, model: str, model_key: str, device: str, made_with: str, *, gpu: bool = True) -> None:
        """`made_with` names the versions. `gpu`: of the processor only what failed is kept, and no end of the program
        is blamed on a rung."""
        name = hashlib.sha256(f"{model_key} {device}".encode()).hexdigest()[:32]
        self._file = folder() / f"{name}.json"
        self._gpu = gpu
        self._said = Landed(model=model, device=device, made_with=made_with)
        with suppress(OSError, ValueError):
            kept = Landed.model_validate_json(self._file.read_bytes())
            if kept.made_with == made_with:
                self._said.lost, self._said.deaths = kept.lost, kept.deaths
                if kept.trying:
                    self._died(kept.trying)

    def skip(self, rung: str) -> str | None:
        """Why this rung is not to be tried."""
        return self._said.lost.get(rung)

    def trying(self, rung: str) -> None:
        """See ladder.Notes."""
        self._said.trying = rung
        if self._gpu:
            self._write()

    def tried(self, rung: str, lost: str = "") -> None:
        """See ladder.Notes."""
        self._said.trying = ""
        self._said.deaths.pop(rung, None)
        if lost:
            self._said.lost[rung] = lost
        if self._gpu:
            self._write()

    def landed(self, landing: Landing, inexact: str) -> None:
        """What computes it now."""
        self._said.rung, self._said.failed, self._said.inexact = landing.rung, dict(landing.failed), inexact
        self._write()

    def fell(self, failed: dict[str, str]) -> None:
        """Nothing does."""
        self._said.rung, self._said.failed = "", failed
        self._write()

    def _died(self, rung: str) -> None:
        count = self._said.deaths[rung] = self._said.deaths.get(rung, 0) + 1
        if count >= DEATHS:
            self._said.lost[rung] = f"the program ended {count} times while this was tried"

    def _write(self) -> None:
        with suppress(OSError):  # then the next start tries again
            if not (self._gpu or self._said.failed):
                self._file.unlink(missing_ok=True)
                return
            write_whole(self._file, f"{self._said.model_dump_json(indent=1)}\n".encode())


def folder() -> Path:
    """Where they lie; may be missing, and be deleted."""
    return cache_dir() / "ladder"


def landings() -> list[Landed]:
    """All that are kept, by model and device; damaged files are left out."""
    found = []
    for file in folder().glob("*.json"):
        with suppress(OSError, ValueError):
            found.append(Landed.model_validate_json(file.read_bytes()))
    return sorted(found, key=lambda one: (one.model, one.device))


def forget_lost() -> None:
    """Have everything tried again at the next start."""
    for file in folder().glob("*.json"):
        with suppress(OSError):
            file.unlink()
