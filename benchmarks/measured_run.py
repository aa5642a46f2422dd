"""Options, questions, model and file of one measurement, and an earlier one to continue."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError

from benchmarks.arguments import LONG_CONTEXT
from benchmarks.workloads import QuestionSet, question_set
from hierchat.checks.runs import RequestError, machine, read_questions, say, unreadable
from hierchat.cli.options import terminal_progress
from hierchat.config import GenerationSettings
from hierchat.models.cache import sha256
from hierchat.models.catalogue import Backend, read_catalogue
from hierchat.runtime.loading import LoadOptions, load_served_model
from hierchat.runtime.served_model import ServedModel
from hierchat.texts.corpora import require_readable

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
    def of(cls, flags: Mapping[str, Any]) -> Self:
        """Take the flags of a command that are options of a run."""
        return cls(**{one.name: flags[one.name] for one in fields(cls) if one.name in flags})


def settings_of(**flags: Any) -> GenerationSettings:
    """Build generation settings from flags. Raises RequestError, naming the flag that is wrong."""
    try:
        return GenerationSettings(**flags)
    except ValidationError as error:
        wrong = error.errors()[0]
        raise RequestError(f"--{str(wrong['loc'][0]).replace('_', '-')}: {wrong['msg']}") from error


class MeasuredRun:
    """One run over questions: its options, checked before a model loads, and the head of its file."""

    def __init__(self, options: RunOptions, kind: str, own: dict[str, Any]) -> None:
        """Check the options; `own`: settings of this kind of run. Raises RequestError, CorpusError and ModelError."""
        import torch

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
        """Load the run's model on its backend. `places`: replies that it writes at once."""
        asked, catalogue = self._options, read_catalogue()
        options = LoadOptions(asked.backend, corpus=asked.corpus, places=places, catalogue=catalogue)
        with terminal_progress() as report:
            return load_served_model(self.entry, options, report)

    def head(self, served: ServedModel) -> dict[str, Any]:
        """Return the head of the run's file: machine, model, backend and settings."""
        return {
            "machine": self._machine,
            "model": served.name,
            "backend": served.engine.backend,
            "settings": self.recorded,
        }

    def earlier(self, head: dict[str, Any]) -> dict[str, Any] | None:
        """Return the earlier result to go on from, with --resume and if there is one; its machine stays the first's."""
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


def read(path: Path, expected: dict[str, Any]) -> dict[str, Any] | None:
    """Read an earlier run's file to go on from; None if there is none. Raises RequestError if it is no run,
    or one with other `expected` values."""
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
    """Return sentences about the values of a file that differ from the expected ones."""
    return [
        f"{key} was {found.get(key)!r} and is {value!r}"
        for key, value in expected.items()
        if found.get(key) != value
    ]
