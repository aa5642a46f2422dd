"""`hierchat serve-vllm MODEL`: starts vLLM for a model, and the chat over it; both end together."""

from __future__ import annotations

import argparse
import os
import shlex
import sys

from hierchat.cli.serve import serve
from hierchat.config import data_dir
from hierchat.runtime.vllm import Vllm, has_drafter, prepare, python_of


class CannotServe(Exception):
    """The text is for the user."""


def run(args: argparse.Namespace) -> int:
    """Until the process is interrupted or told to end. Returns the exit code."""
    if os.name == "nt":
        raise CannotServe("vLLM does not run on Windows. Use WSL, or a machine with Linux.")
    if args.tensor_parallel < 1:
        raise CannotServe("--tensor-parallel counts GPUs: give 1 or more.")
    from hierchat.models.device_memory import best_device

    cuda = best_device().startswith("cuda")
    python = args.python or python_of(cuda, _say)
    launch, like = prepare(
        args.served,
        cuda=cuda,
        drafts=has_drafter() and not args.no_drafts,
        tensor_parallel=args.tensor_parallel,
        more=shlex.split(args.vllm),
    )
    vllm = Vllm(launch.command(python), launch.variables(), data_dir() / "logs" / "vllm.log")
    try:
        vllm.wait(launch.url, _say)
        args.model, args.backend = launch.name, None
        return serve(args, added={launch.name: launch.entry(like)})
    finally:
        _say("vLLM ends…")
        vllm.end()


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
