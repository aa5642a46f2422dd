"""What a forward costs: by width and context, reading a prompt, getting ready, memory."""

from __future__ import annotations

import argparse
import time
from statistics import median
from typing import Any

import numpy as np
import psutil

from hierchat.engine.cpu.runner import CpuRunner
from hierchat.engine.runner import CachedSequence
from hierchat.models.catalogue import read_catalogue
from hierchat.models.terminal import terminal_progress
from hierchat.runtime.load import load_hosted
from hierchat.verify.asking.errors import RequestError
from hierchat.verify.asking.machine import machine

WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
REPEATS = 31
PROMPT = 300
"""Tokens of the prompt whose reading is timed."""


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """The figures; raises a ModelError. Widths alternate, so that a disturbance falls on all of them."""
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
    result["prompt_tokens_per_second"] = round(_reading(sequence))
    result["contexts"] = {str(context): _curve(sequence, context) for context in args.contexts}
    if isinstance(runner, CpuRunner):
        result["profile_percent"] = {str(width): _profile(runner, sequence, width) for width in (1, 8)}
    result["memory_mb"] = psutil.Process().memory_info().rss // 10**6
    return result


def _reading(sequence: CachedSequence) -> float:
    """Tokens of a prompt per second, median of five readings."""
    tokens = _tokens(sequence, PROMPT)
    rates = []
    for _ in range(5):
        sequence.rollback(0)
        began = time.perf_counter()
        for first in range(0, PROMPT, 128):
            sequence.read(tokens[first : first + 128])
        rates.append(PROMPT / (time.perf_counter() - began))
    return median(rates)


def _curve(sequence: CachedSequence, context: int) -> dict[str, float]:
    """Median milliseconds of a forward by width, behind `context` committed tokens."""
    sequence.rollback(0)
    tokens = _tokens(sequence, context)
    for first in range(0, context, 128):
        sequence.read(tokens[first : first + 128])
    times: dict[int, list[float]] = {width: [] for width in WIDTHS}
    for _ in range(REPEATS):
        for width in WIDTHS:
            segment = _tokens(sequence, width)
            began = time.perf_counter()
            sequence.forward(segment, range(-1, width - 1), padded=width > 1)
            times[width].append((time.perf_counter() - began) * 1e3)
    return {str(width): round(median(found), 2) for width, found in times.items()}


def _profile(runner: CpuRunner, sequence: CachedSequence, width: int) -> dict[str, float]:
    """Where the time of a forward goes, in percent, behind PROMPT tokens."""
    sequence.rollback(0)
    for first in range(0, PROMPT, 128):
        sequence.read(_tokens(sequence, PROMPT)[first : first + 128])
    with runner.profile() as shares:
        for _ in range(REPEATS):
            sequence.forward(_tokens(sequence, width), range(-1, width - 1))
    return {part: round(100 * share, 1) for part, share in shares.items()}


def _tokens(sequence: CachedSequence, count: int) -> list[int]:
    return np.random.default_rng(count).integers(0, sequence.vocabulary, count).tolist()
