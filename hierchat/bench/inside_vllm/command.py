"""`bench vllm`, from its flags to its figures."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from typing import Any

from hierchat.bench.inside_vllm.measure import Bench
from hierchat.bench.inside_vllm.servers import OwnServer, Server
from hierchat.verify.asking.errors import RequestError
from hierchat.verify.asking.machine import machine
from hierchat.verify.asking.progress import bar
from hierchat.verify.asking.questions import read_questions, spread
from hierchat.verify.asking.request import say

Servers = AbstractContextManager[tuple[OwnServer, dict[str, Server]]]
"""Ours, and others by the names of their arms."""


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """The figures. Raises RequestError, ModelError and ArmError."""
    found = read_questions(args.questions)
    log = any(one.day is not None for one in found)  # then their order counts
    if log and len(args.together) > 1:
        raise RequestError("A log is asked once, in its order: give --together one number.")
    counts = args.together
    chosen = found if log else spread(found)
    first, *questions = [one.turns[0] for one in chosen]
    if len(questions) < args.limit * sum(counts):  # none is asked for two numbers of requests
        raise RequestError(
            f"{args.questions} has too few questions for --limit {args.limit} and these numbers of requests."
        )
    with _started(args) if args.model else _running(args) as (own, peers):
        bench = Bench(own, peers, args.max_new_tokens)
        with bar(args.limit * sum(counts) * (1 if log else 2)) as tell:
            bench.warm_up(first)
            together = []
            for count in counts:
                mine, questions = questions[: args.limit * count], questions[args.limit * count :]
                together.append(bench.measure(mine, count, tell, again=not log))
        said = {key: own.about[key] for key in ("vllm", "model", "most_drafts")}
        widest = max(counts) * (1 + said["most_drafts"])
        said["step_ms"] = own.step_ms(widest)
    settings = {
        "questions": args.questions.name,
        "limit": args.limit,
        "max_new_tokens": args.max_new_tokens,
        **({"arguments": args.vllm} if args.model else {}),
    }
    return {"machine": machine(), **said, "settings": settings, "together": together}


def _started(args: argparse.Namespace) -> Servers:
    from hierchat.bench.inside_vllm.starting import started
    from hierchat.models.memory import best_device
    from hierchat.serve_vllm.environment import python_of

    cuda = best_device().startswith("cuda")
    python = args.python or python_of(cuda, say)
    methods = [name for name in args.methods.split(",") if name]
    return started(args.model, methods, python, shlex.split(args.vllm), cuda=cuda, say=say)


@contextmanager
def _running(args: argparse.Namespace) -> Iterator[tuple[OwnServer, dict[str, Server]]]:
    """Servers that were started before, with the secrets that the environment has."""
    port, token = (os.environ.get(f"HIERCHAT_DRAFTER_{name}", "") for name in ("PORT", "TOKEN"))
    if not (port.isdigit() and token):
        raise RequestError(
            "Name a model with --model, or set HIERCHAT_DRAFTER_PORT and HIERCHAT_DRAFTER_TOKEN as they "
            "are set for the vLLM that runs (docs/vllm.md)."
        )
    key = os.environ.get("VLLM_API_KEY", "")
    with ExitStack() as ends:
        own = ends.enter_context(closing(OwnServer(args.url, key, int(port), token)))
        yield own, {name: ends.enter_context(closing(Server(url, key))) for name, url in args.peer}
