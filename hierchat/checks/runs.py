"""Runs over questions: options, settings, model, the file of the run, and an earlier one to go on from."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args

import psutil
import torch
from pydantic import ValidationError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hierchat import __version__
from hierchat.checks.questions import (
    LONG_CONTEXT,
    QuestionSet,
    RequestError,
    question_set,
    read_questions,
    unknown,
    unreadable,
)
from hierchat.config import GenerationSettings
from hierchat.engine.engine import OutOfMemory, UnsupportedModel
from hierchat.engine.sampling.sampler import BrokenLogits
from hierchat.models.cache import sha256
from hierchat.models.catalogue import Backend, read_catalogue
from hierchat.models.progress import ModelError, terminal_progress
from hierchat.runtime.costs import processor
from hierchat.runtime.loading import LoadOptions, load_served_model
from hierchat.runtime.served_model import ServedModel
from hierchat.texts.corpora import require_readable
from hierchat.texts.text_files import CorpusError


def require_writable(path: Path) -> None:
    """Raise RequestError unless the file can be written, so that no run is in vain."""
    if path.is_dir():
        raise RequestError(f"{path} is a folder; name a file in it.")
    try:
        _part(path).touch()
        _part(path).unlink()
    except OSError as error:
        raise RequestError(f"{path} cannot be written: {error.strerror}.") from error


def write(path: Path, result: dict[str, Any], rows: str) -> None:
    """Replace the file in one step. The list under the key `rows` comes last, one element a line."""
    head = json.dumps({key: value for key, value in result.items() if key != rows}, indent=2)
    lines = ",\n".join(json.dumps(row) for row in result[rows])
    _part(path).write_text(f'{head[:-2]},\n  "{rows}": [\n{lines}\n  ]\n}}\n', encoding="utf-8")
    os.replace(_part(path), path)


def read(path: Path, expected: dict[str, Any]) -> dict[str, Any] | None:
    """Read an earlier run's result to go on from; None where there is none. Raises RequestError where it is none of
    ours, or was asked for with other `expected` values."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RequestError(f"{unreadable(path, error)} Leave --resume out to start anew.") from error
    if not isinstance(found, dict) or not isinstance(found.get("settings"), dict):
        raise RequestError(f"{path} holds no run to go on from.")
    flat = {**found, **found["settings"]}
    if differing := differences(flat, expected):
        raise RequestError(f"{path} holds another run: {'; '.join(differing)}. Name another file.")
    return found


def differences(found: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    """Say what stands in a file otherwise than is expected now."""
    return [
        f"{key} was {found.get(key)!r} and is {value!r}"
        for key, value in expected.items()
        if found.get(key) != value
    ]


def _part(path: Path) -> Path:
    return path.with_name(f".{path.name}.part")


def machine() -> dict[str, str | int | float]:
    """Return processor, cores, memory (GiB), the versions that matter and the revision of this program."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return {
        "processor": processor(),
        "cores": psutil.cpu_count() or 0,
        "threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpu": gpu,
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "hierchat": __version__,
        "revision": _revision(),
    }


def _revision() -> str:
    """Return the commit, and whether the program differs from it; empty outside a clone."""
    git = ["git", "-C", str(Path(__file__).parents[1])]
    try:
        commit = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
        changed = subprocess.run([*git, "status", "--porcelain", "."], capture_output=True, text=True)
    except OSError:
        return ""
    if commit.returncode:
        return ""
    return commit.stdout.strip() + (" with changes" if changed.stdout.strip() else "")


ERRORS = (RequestError, CorpusError, ModelError, UnsupportedModel, BrokenLogits, OutOfMemory, MemoryError)
"""What the user can do something about; anything else is a fault of the program."""
STOPPED = "Stopped. What was measured is kept; the same command with --resume goes on."


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of a command of checks or benchmarks; `json` is the file of the run."""

    json: Path
    questions: Path | None = None
    workload: str | None = None
    prompt_tokens: Sequence[int] | None = None
    limit: int | None = None
    max_new_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    model: str | None = None
    backend: Backend | None = None
    width: int | None = None
    corpus: Path | None = None
    resume: bool = False

    @classmethod
    def of(cls, flags: Mapping[str, Any]) -> RunOptions:
        """Take what of a command's flags belongs here."""
        return cls(**{one.name: flags[one.name] for one in fields(cls) if one.name in flags})


class MeasuredRun:
    """One run over questions: what was asked for, checked before a model loads, and the head of its file."""

    def __init__(self, options: RunOptions, kind: str, own: dict[str, Any]) -> None:
        """`own`: settings of this kind of run alone. Raises RequestError, CorpusError and ModelError."""
        self._options = options
        if options.corpus:
            require_readable(options.corpus)
        sampling = ("max_new_tokens", "temperature", "top_p", "top_k", "seed")
        chosen = {name: getattr(options, name) for name in sampling}
        self.settings = settings_of(**chosen)
        self.entry = read_catalogue().entry(options.model)
        if options.prompt_tokens and options.workload != LONG_CONTEXT:
            raise RequestError(
                f"--prompt-tokens goes with --workload {LONG_CONTEXT}, whose prompts have any length."
            )
        if options.workload:
            sizes = options.prompt_tokens or ()
            found = question_set(options.workload, self.entry, self.settings, sizes)
        elif path := options.questions:
            found = QuestionSet(read_questions(path), path.name, sha256(path))
        else:
            raise RequestError("Name --questions, or a --workload.")
        self.questions = found.questions
        self.threads = torch.get_num_threads()  # before a forward under load makes it one
        self.recorded: dict[str, Any] = {
            "kind": kind,
            "file": found.name,
            "file_sha256": found.sha256,
            "prompt_tokens": options.prompt_tokens,
            "limit": options.limit,
            **chosen,
            "width": options.width,
            "corpus": str(options.corpus) if options.corpus else None,
            **own,
        }
        self._machine: dict[str, Any] = machine()

    def load(self, places: int = 1) -> ServedModel:
        """Load the model on its backend. `places`: replies that it writes at once."""
        asked, catalogue = self._options, read_catalogue()
        options = LoadOptions(asked.backend, corpus=asked.corpus, places=places, catalogue=catalogue)
        with terminal_progress() as report:
            return load_served_model(self.entry, options, report)

    def head(self, served: ServedModel) -> dict[str, Any]:
        """Return what stands before the figures in the file."""
        return {
            "machine": self._machine,
            "model": served.name,
            "backend": served.engine.backend,
            "settings": self.recorded,
        }

    def earlier(self, head: dict[str, Any]) -> dict[str, Any] | None:
        """Return the result to go on from, with --resume and where there is one; its machine stays the first one's."""
        if not self._options.resume:
            return None
        found = read(
            self._options.json, {"model": head["model"], "backend": head["backend"], **self.recorded}
        )
        if found is None:
            say(f"{self._options.json} is not there yet: starting anew.")
            return None
        now, then = head["machine"], found["machine"]
        changed = {key: value for key, value in now.items() if then.get(key) != value}
        head["machine"] = then
        if changed:
            say(f"This is no longer what the figures before were measured on: {changed}")
            head["resumed"] = [*found.get("resumed", ()), changed]
        return found


def settings_of(**flags: Any) -> GenerationSettings:
    """Make settings by their flags. Raises RequestError, naming the flag that is wrong."""
    try:
        return GenerationSettings(**flags)
    except ValidationError as error:
        wrong = error.errors()[0]
        raise RequestError(f"--{str(wrong['loc'][0]).replace('_', '-')}: {wrong['msg']}") from error


def answered(act: Callable[[], int], backend: str | None = None, out: Path | None = None) -> int:
    """Run a command, or say why it cannot, and return the exit code: that of `act`, 2 for an error, 130 for Ctrl-C. An
    unknown backend and a file `out` that cannot be written are errors before all else."""
    try:
        if backend and backend not in get_args(Backend):
            raise unknown("backend", backend, get_args(Backend))
        if out:
            require_writable(out)
        return act()
    except ERRORS as error:
        say(f"hierchat: {str(error) or type(error).__name__}")
        return 2
    except KeyboardInterrupt:
        say("Stopped before anything was measured.")
        return 130


def say(text: str) -> None:
    """Say something to the person at the terminal, beside the figures."""
    print(text, file=sys.stderr, flush=True)


Tell = Callable[[str, int], None]
"""Takes what comes next, and how many units were done since the last call."""


@contextmanager
def bar(total: int, done: int = 0, console: Console | None = None) -> Iterator[Tell]:
    """Draw a bar over `total` units of work, `done` of them before; between measurements only, so that it takes nothing
    from them."""
    columns = (TextColumn("{task.description}"), BarColumn(30), MofNCompleteColumn(), TimeRemainingColumn())
    console = console or Console(stderr=True)
    period = 3600  # seconds: questions take long
    with Progress(*columns, console=console, auto_refresh=False, speed_estimate_period=period) as drawn:
        task = drawn.add_task("", total=total, completed=done)

        def tell(doing: str, advance: int = 0) -> None:
            drawn.update(task, description=doing, advance=advance, refresh=True)

        yield tell
