"""What the measuring commands take from the command line: questions, settings, model; an earlier run to go on from."""

from __future__ import annotations

import argparse
import hashlib
import sys
from typing import Any, get_args

import torch
from pydantic import ValidationError

from hierchat.bench import outfile
from hierchat.bench.errors import BenchError, unknown
from hierchat.bench.machine import machine
from hierchat.bench.questions import Question, read_questions
from hierchat.bench.workloads import length_by, questions_of
from hierchat.config import GenerationSettings
from hierchat.corpus.statistics import require_readable
from hierchat.models.cache import sha256
from hierchat.models.catalogue import Backend, read_catalogue
from hierchat.models.load.load_tokenizer import load_tokenizer
from hierchat.models.terminal import terminal_progress
from hierchat.runtime.hosted import Hosted
from hierchat.runtime.load import load_hosted

MOST = 8_192
"""Tokens of a prompt and its reply where the catalogue does not say what a model can hold."""


class Asked:
    """What they all take from the command line. Everything that can be wrong is found before a model loads."""

    def __init__(self, args: argparse.Namespace, kind: str, own: dict[str, Any]) -> None:
        self._args = args
        if args.corpus:
            require_readable(args.corpus)
        self.settings = settings_of(
            max_new_tokens=args.max_new_tokens, temperature=args.temperature, seed=args.seed
        )
        self.entry = read_catalogue().entry(args.model)
        self.questions, file, digest = self._questions()
        self.threads = torch.get_num_threads()  # before a forward under load makes it one
        self.said: dict[str, Any] = {
            "kind": kind,
            "file": file,
            "file_sha256": digest,
            "limit": args.limit,
            "max_new_tokens": args.max_new_tokens,
            "temperature": args.temperature,
            "seed": args.seed,
            "width": args.width,
            "corpus": str(args.corpus) if args.corpus else None,
            **own,
        }
        self._machine: dict[str, Any] = machine()

    def _questions(self) -> tuple[list[Question], str, str]:
        """The questions, where they are from, and a hash of it."""
        workload = getattr(self._args, "workload", None)
        if not workload:
            return (
                read_questions(self._args.questions),
                self._args.questions.name,
                sha256(self._args.questions),
            )
        with terminal_progress() as report:
            length = length_by(load_tokenizer(self.entry, report))
        most = (self.entry.context_length or MOST) - self.settings.max_new_tokens
        questions = questions_of(workload, length, most)
        texts = "\n".join(text for question in questions for text in question.turns)
        return questions, workload, hashlib.sha256(texts.encode()).hexdigest()

    def load(self) -> Hosted:
        """The model on its backend."""
        with terminal_progress() as report:
            return load_hosted(
                self.entry,
                self._args.backend,
                report,
                corpus=self._args.corpus,
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
        found = outfile.read(
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


def settings_of(**flags: Any) -> GenerationSettings:
    """Settings by their flags. Raises BenchError, naming the flag that is wrong."""
    try:
        return GenerationSettings(**flags)
    except ValidationError as error:
        wrong = error.errors()[0]
        raise BenchError(f"--{str(wrong['loc'][0]).replace('_', '-')}: {wrong['msg']}") from error


def require_usable(args: argparse.Namespace) -> None:
    """Raises BenchError where the backend is unknown or the figures could not be written, before all else."""
    backend, out = getattr(args, "backend", None), getattr(args, "json", None)
    if backend and backend not in get_args(Backend):
        raise unknown("backend", backend, get_args(Backend))
    if out:
        outfile.require_writable(out)


def say(text: str) -> None:
    """To the person at the terminal, beside the figures."""
    print(text, file=sys.stderr, flush=True)
