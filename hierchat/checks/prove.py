"""Prove the promises on this machine (`hierchat prove`, *Prove it*): run `proofs` in a process, and keep the result."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import TypeAdapter

from hierchat import __version__, logs
from hierchat.checks.proofs import NAMES, Line
from hierchat.config import process_environment
from hierchat.language import later
from hierchat.models.cache import write_whole
from hierchat.models.catalogue import Catalogue, ModelEntry, read_catalogue
from hierchat.models.device_memory import best_device
from hierchat.models.fetch.bring import is_fetched
from hierchat.models.progress import MissingError

Tell = Callable[[str], object]
TINY = later("a tiny random model")


@dataclass(frozen=True, slots=True)
class Proof:
    """Result of one run; `at`: Unix time of its end."""

    model: str
    lines: tuple[Line, ...]
    seconds: float
    at: float = field(default_factory=time.time)
    hierchat: str = __version__

    @property
    def kept(self) -> bool:
        """Whether every check ran and none found a broken promise."""
        return all(line.kept is not False for line in self.lines) and {line.name for line in self.lines} >= {
            *NAMES
        }

    def as_dict(self) -> dict[str, Any]:
        return {"kept": self.kept, **asdict(self)}


PROOF = TypeAdapter(Proof)
"""Reads what `as_dict` returned."""


def chosen(name: str | None, catalogue: Catalogue) -> str:
    """Return the named model, else the default, else any that is here. Raises ModelError."""

    def here(entry: ModelEntry) -> bool:
        return not entry.engine and is_fetched(entry, best_device())

    if name:
        if not here(catalogue.entry(name)):
            raise MissingError(
                f"{name} is not on this machine: nothing is fetched for a proof. Name another model."
            )
        return name
    names = [one for one, entry in catalogue.models.items() if here(entry)]
    return min(names, key=lambda one: one != catalogue.default, default="")


def prove(name: str | None, tell: Tell) -> Proof:
    """Run all checks; `tell` gets what is done now. Raises as `chosen`."""
    began, model, lines = time.monotonic(), chosen(name, read_catalogue()), list[Line]()
    with TemporaryDirectory(prefix="hierchat-prove-", ignore_cleanup_errors=True) as folder:
        errors = Path(folder, "errors")
        with (
            errors.open("wb") as said,
            subprocess.Popen(
                [sys.executable, "-m", "hierchat.checks.proofs", "run", model, folder],
                stdin=subprocess.PIPE,  # it ends with this process
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
                encoding="utf-8",
                env=process_environment(),
            ) as process,
        ):
            try:
                for text in process.stdout or ():
                    one = json.loads(text)
                    if isinstance(one, str):
                        tell(one)
                    else:
                        lines.append(Line(**one))
            except BaseException:
                process.kill()
                raise
        if process.returncode:
            last = errors.read_text(errors="replace").strip().splitlines()[-1:] or [
                f"code {process.returncode}"
            ]
            lines.append(Line(later("The checks"), False, later(f"They ended before their end: {last[0]}")))
    lines.sort(key=lambda line: NAMES.index(line.name) if line.name in NAMES else len(NAMES))
    return Proof(model or TINY, tuple(lines), time.monotonic() - began)


class Proving:
    """Runs the checks in the background, for all pages, and keeps the last result in a file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        self.doing = ""
        """What is checked now; empty if no check runs."""
        self.trouble = ""
        """Why the last run has no result."""

    @property
    def last(self) -> Proof | None:
        """Return the last result; None if there is none yet."""
        with suppress(OSError, ValueError):
            return PROOF.validate_json(self._file.read_bytes())
        return None

    def start(self, model: str) -> None:
        """Begin a run with this model, or the default one, unless one goes on."""
        with self._lock:
            if self.doing:
                return
            self.doing, self.trouble = "starting", ""
        threading.Thread(target=self._run, args=[model], name="prove", daemon=True).start()

    def _run(self, model: str) -> None:
        def tell(doing: str) -> None:
            self.doing = doing

        try:
            proof = prove(model or None, tell)
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_whole(self._file, json.dumps(proof.as_dict()).encode())
        except Exception as error:  # nobody waits for this thread
            self.trouble = logs.error_message(error)
        finally:
            self.doing = ""
