"""What was asked for on the command line: questions, settings, model, an earlier run to go on from."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any, get_args

import torch
from pydantic import ValidationError

from hierchat.config import GenerationSettings
from hierchat.corpus.errors import CorpusError
from hierchat.corpus.statistics import require_readable
from hierchat.engine.errors import OutOfMemory, UnsupportedModel
from hierchat.engine.sampling.sampler import BrokenLogits
from hierchat.models.catalogue import Backend, ModelEntry, read_catalogue
from hierchat.models.errors import ModelError
from hierchat.models.terminal import terminal_progress
from hierchat.runtime.hosted import Hosted
from hierchat.runtime.load import load_hosted
from hierchat.verify.arguments import LONG_CONTEXT
from hierchat.verify.asking import result_file
from hierchat.verify.asking.errors import RequestError, unknown
from hierchat.verify.asking.machine import machine
from hierchat.verify.asking.questions import QuestionSet
from hierchat.verify.asking.workloads import question_set

ERRORS = (
    RequestError,
    CorpusError,
    ModelError,
    UnsupportedModel,
    BrokenLogits,
    OutOfMemory,
    MemoryError,
)
"""What the user can do something about; anything else is a fault of the program."""
STOPPED = "Stopped. What was measured is kept; the same command with --resume goes on."


class Request:
    """What was asked for. Everything that can be wrong with it is found before a model loads."""

    def __init__(self, args: argparse.Namespace, kind: str, own: dict[str, Any]) -> None:
        self._args = args
        if args.corpus:
            require_readable(args.corpus)
        self.settings = settings_of(
            max_new_tokens=args.max_new_tokens,
            temperature=args.temperature,
            top_p=args.top_p,
            top_k=args.top_k,
            seed=args.seed,
        )
        self.entry = read_catalogue().entry(args.model)
        asked = _questions(args, self.entry, self.settings)
        self.questions = asked.questions
        self.threads = torch.get_num_threads()  # before a forward under load makes it one
        self.said: dict[str, Any] = {
            "kind": kind,
            "file": asked.name,
            "file_sha256": asked.sha256,
            "prompt_tokens": getattr(args, "prompt_tokens", None),
            "limit": args.limit,
            "max_new_tokens": args.max_new_tokens,
            "temperature": args.temperature,
            "top_p": args.top_p,
            "top_k": args.top_k,
            "seed": args.seed,
            "width": args.width,
            "corpus": str(args.corpus) if args.corpus else None,
            **own,
        }
        self._machine: dict[str, Any] = machine()

    def load(self, places: int = 1) -> Hosted:
        """The model on its backend. `places`: replies that it writes at once."""
        with terminal_progress() as report:
            return load_hosted(
                self.entry,
                self._args.backend,
                report,
                corpus=self._args.corpus,
                places=places,
                catalogue=read_catalogue(),
            )

    def head(self, hosted: Hosted) -> dict[str, Any]:
        """What stands before the figures."""
        return {
            "machine": self._machine,
            "model": hosted.name,
            "backend": hosted.engine.backend,
            "settings": self.said,
        }

    def earlier(self, head: dict[str, Any]) -> dict[str, Any] | None:
        """The result to go on from, where one is asked for and there; its machine stays the first one's."""
        if not self._args.resume:
            return None
        found = result_file.read(
            self._args.json, {"model": head["model"], "backend": head["backend"], **self.said}
        )
        if found is None:
            say(f"{self._args.json} is not there yet: starting anew.")
            return None
        now, then = head["machine"], found["machine"]
        changed = {key: value for key, value in now.items() if then.get(key) != value}
        head["machine"] = then
        if changed:
            say(f"This is no longer what the figures before were measured on: {changed}")
            head["resumed"] = [*found.get("resumed", ()), changed]
        return found


def _questions(args: argparse.Namespace, entry: ModelEntry, settings: GenerationSettings) -> QuestionSet:
    """Those of `args.questions`, or of the workload where the command has such a flag and it was given."""
    workload, sizes = getattr(args, "workload", None), getattr(args, "prompt_tokens", None)
    if sizes and workload != LONG_CONTEXT:
        raise RequestError(
            f"--prompt-tokens goes with --workload {LONG_CONTEXT}, whose prompts have any length."
        )
    return (
        question_set(workload, entry, settings, sizes or ())
        if workload
        else QuestionSet.of_file(args.questions)
    )


def settings_of(**flags: Any) -> GenerationSettings:
    """Settings by their flags. Raises RequestError, naming the flag that is wrong."""
    try:
        return GenerationSettings(**flags)
    except ValidationError as error:
        wrong = error.errors()[0]
        raise RequestError(f"--{str(wrong['loc'][0]).replace('_', '-')}: {wrong['msg']}") from error


def require_usable(args: argparse.Namespace) -> None:
    """Raises RequestError where the backend is unknown or the figures could not be written, before all else."""
    backend, out = getattr(args, "backend", None), getattr(args, "json", None)
    if backend and backend not in get_args(Backend):
        raise unknown("backend", backend, get_args(Backend))
    if out:
        result_file.require_writable(out)


def answered(args: argparse.Namespace, act: Callable[[argparse.Namespace], int]) -> int:
    """Does what was asked, or says why not. The exit code: that of `act`, 2 for an error, 130 for Ctrl-C."""
    try:
        require_usable(args)
        return act(args)
    except ERRORS as error:
        say(f"hierchat: {str(error) or type(error).__name__}")
        return 2
    except KeyboardInterrupt:
        say("Stopped before anything was measured.")
        return 130


def say(text: str) -> None:
    """To the person at the terminal, beside the figures."""
    print(text, file=sys.stderr, flush=True)
