"""`hierchat serve-vllm MODEL`: starts vLLM for a model, and the chat over it; both end together."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hierchat.config import data_dir
from hierchat.serve import serve
from hierchat.serve_vllm.environment import has_drafter, python_of
from hierchat.serve_vllm.launch import Launch
from hierchat.serve_vllm.process import Vllm

if TYPE_CHECKING:
    from hierchat.models.catalogue import ModelEntry

SUFFIX = "-vllm"
"""Of the name that a model of the catalogue has over vLLM: both can be chosen."""


class CannotServe(Exception):
    """The text is for the user."""


def run(args: argparse.Namespace) -> int:
    """Until the process is interrupted or told to end. Returns the exit code."""
    if os.name == "nt":
        raise CannotServe("vLLM does not run on Windows. Use WSL, or a machine with Linux.")
    if args.tensor_parallel < 1:
        raise CannotServe("--tensor-parallel counts GPUs: give 1 or more.")
    from hierchat.models.memory import best_device

    cuda = best_device().startswith("cuda")
    python = args.python or python_of(cuda, _say)
    launch, like = _prepare(args, cuda)
    with _ending_by_signal():
        vllm = Vllm(launch.command(python), launch.variables(), data_dir() / "logs" / "vllm.log")
        try:
            vllm.wait(launch.url, _say)
            args.model, args.backend = launch.name, None
            return serve(args, added={launch.name: launch.entry(like)})
        finally:
            _say("vLLM ends…")
            vllm.end()


def _prepare(args: argparse.Namespace, cuda: bool) -> tuple[Launch, ModelEntry | None]:
    """The model as vLLM reads it, fetched and converted where that is needed, and its texts that ship."""
    from hierchat.models.catalogue import read_catalogue
    from hierchat.models.fetch.bring import get
    from hierchat.models.terminal import terminal_progress

    drafts = has_drafter() and not args.no_drafts
    more, given, like = shlex.split(args.vllm), Path(args.served).expanduser(), None
    if given.is_dir():
        folder = given.absolute()
    elif "/" in args.served:  # vLLM fetches it
        name = _name(args.served.rsplit("/", 1)[1])
        return Launch(name, args.served, cuda, drafts, (), args.tensor_parallel, more), None
    else:
        like = read_catalogue().entry(args.served)
        with terminal_progress() as report:
            folder = get(like, report, "cuda" if cuda else "cpu")
    statistics = _texts(folder, like) if drafts else ()
    name = _name(like.name if like else folder.name)
    return Launch(name, str(folder), cuda, drafts, statistics, args.tensor_parallel, more), like


def _name(said: str) -> str:
    return "".join(sign if sign.isalnum() or sign in "_.-" else "-" for sign in said) + SUFFIX


def _texts(folder: Path, like: ModelEntry | None) -> tuple[Path, ...]:
    """Where the texts that ship lie, in the model's tokens."""
    from hierchat.corpus.seed import seed, seed_files
    from hierchat.models.catalogue import Folder, ModelEntry, ModelSource
    from hierchat.models.load.load_tokenizer import read_tokenizer
    from hierchat.models.terminal import terminal_progress

    entry = like or ModelEntry(name="model", source=ModelSource(folder=Folder(path=folder)))
    with terminal_progress() as report:
        made = seed(seed_files(entry), read_tokenizer(folder), entry.name, report)
    return (made.folder,) if made and made.folder else ()


@contextmanager
def _ending_by_signal() -> Iterator[None]:
    """A signal to end is as Ctrl-C: vLLM ends, too."""

    def interrupted(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
