"""What a forward costs: by width and context, reading a prompt, getting ready, memory; beside other programs."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import psutil
import torch

from hierchat.bench.arms.names import TIMED
from hierchat.bench.errors import ArmError
from hierchat.bench.measure.projection import project
from hierchat.bench.measure.side_by_side import (
    REPEATS,
    WIDTHS,
    Ours,
    Program,
    Theirs,
    random_tokens,
    side_by_side,
)
from hierchat.bench.peers.arm import PeerArm
from hierchat.bench.peers.start import open_peer
from hierchat.engine.bandwidth import gigabytes_per_second
from hierchat.engine.cpu.memory import CHUNK
from hierchat.engine.cpu.runner import CpuRunner
from hierchat.engine.runner import CachedSequence
from hierchat.models.catalogue import ModelEntry, read_catalogue
from hierchat.models.terminal import terminal_progress
from hierchat.runtime.hosted import Hosted
from hierchat.runtime.load import load_hosted
from hierchat.verify.asking.errors import RequestError, unknown
from hierchat.verify.asking.machine import machine
from hierchat.verify.asking.request import say

PROMPT = 1_000
"""Tokens of the prompt whose reading is timed."""
PROFILED = 300
"""Tokens behind which it is looked where the time goes."""
OURS = "hierchat"


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """The figures. Raises RequestError, a ModelError."""
    for name in args.peers:
        if name not in TIMED:
            raise unknown("peer whose forwards are timed", name, TIMED)
    entry = read_catalogue().entry(args.model)
    began = time.perf_counter()
    with terminal_progress() as report:
        hosted = load_hosted(entry, args.backend, report)
    ready = time.perf_counter() - began
    sequence, runner = hosted.local.sequence, hosted.local.runner
    if max(args.contexts) + max(WIDTHS) > sequence.context_length:
        raise RequestError(
            f"--contexts: {hosted.name} holds {sequence.context_length:,} tokens, {max(WIDTHS)} of them in the forward."
        )
    result: dict[str, Any] = {
        "machine": machine(),
        "model": hosted.name,
        "backend": runner.backend,
        "exact": runner.exact,
        "ready_seconds": round(ready, 2),
        "threads": runner.team.threads if isinstance(runner, CpuRunner) else None,
    }
    model = runner.model if isinstance(runner, CpuRunner) else None
    if model:
        result["weights_mb"] = round(model.nbytes / 1e6, 1)
        result["weights_over_file"] = round(model.nbytes / model.file_bytes, 3)
    with ExitStack() as stack:
        peers = _peers(args.peers, entry, hosted, result["threads"] or torch.get_num_threads(), stack)
        programs: dict[str, Program] = {OURS: Ours(sequence)}
        programs |= {name: Theirs(peer) for name, peer in peers.items()}
        figures = side_by_side(
            programs, args.contexts, min(PROMPT, sequence.context_length), sequence.vocabulary
        )
    result |= figures.pop(OURS)
    result["peers"] = {name: {"versions": peer.versions} | figures[name] for name, peer in peers.items()}
    if isinstance(runner, CpuRunner):
        result["profile_percent"] = {str(width): _profile(runner, sequence, width) for width in (1, 8)}
        result["memory"] = limits(runner, result["contexts"])
    result["memory_mb"] = psutil.Process().memory_info().rss // 10**6
    return result


def _peers(
    names: Sequence[str], entry: ModelEntry, hosted: Hosted, threads: int, stack: ExitStack
) -> dict[str, PeerArm]:
    """Other programs, started; `stack` ends them. Raises RequestError."""
    found = {}
    for name in names:
        try:
            found[name] = open_peer(name, entry, None, hosted.local, threads, say)
        except ArmError as error:
            raise RequestError(f"--peers: {name} cannot be started: {error}.") from error
        stack.callback(found[name].close)
    return found


def limits(runner: CpuRunner, contexts: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """What limits a forward: by context the bytes that it reads, and how fast it does against what all threads read."""
    most = gigabytes_per_second(runner.team.threads)
    held = len(runner.slots[0].keys) * CHUNK
    per_position = sum(part.nbytes for kind in runner.slots for part in kind) // held
    found: dict[str, Any] = {"gigabytes_per_second": round(most, 1), "contexts": {}}
    for context, curve in contexts.items():
        read = runner.model.row_bytes + int(context) * per_position
        rate = read / curve["1"] / 1e6
        found["contexts"][context] = {
            "read_mb": round(read / 1e6, 1),
            "gigabytes_per_second": round(rate, 1),
            "percent": round(100 * rate / most),
            "computed_not_measured": project(curve, runner.team.threads, read),
        }
    return found


def _profile(runner: CpuRunner, sequence: CachedSequence, width: int) -> dict[str, float]:
    """Where the time of a forward goes, in percent, behind PROFILED tokens."""
    Ours(sequence).reading(random_tokens(PROFILED, sequence.vocabulary))
    with runner.profile() as shares:
        for _ in range(REPEATS):
            sequence.forward(random_tokens(width, sequence.vocabulary), range(-1, width - 1))
    return {part: round(100 * share, 1) for part, share in shares.items()}
