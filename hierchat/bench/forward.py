"""What a forward costs: by width and context, reading a prompt, getting ready, memory."""

from __future__ import annotations

import argparse
import os
import time
from statistics import median
from typing import Any

import numpy as np
import psutil

from hierchat.bench.machine import machine
from hierchat.chat.host import load_hosted
from hierchat.engine.cpu.target import BlockTarget
from hierchat.engine.target import Target
from hierchat.models.block_model import BlockModel
from hierchat.models.catalogue import read_catalogue
from hierchat.models.fetch import get_gguf
from hierchat.models.terminal import terminal_progress

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
    target = hosted.engine.target
    result: dict[str, Any] = {
        "machine": machine(),
        "model": hosted.name,
        "backend": getattr(target, "backend", args.backend),
        "exact": target.exact,
        "ready_seconds": round(ready, 2),
        "threads": getattr(getattr(target, "team", None), "threads", None),
    }
    model = getattr(target, "model", None)
    gguf = get_gguf(entry)
    if isinstance(model, BlockModel) and gguf:
        result["weights_mb"] = round(model.nbytes / 1e6, 1)
        result["weights_over_file"] = round(model.nbytes / os.path.getsize(gguf), 3)
    result["prompt_tokens_per_second"] = round(_reading(target))
    result["contexts"] = {str(context): _curve(target, context) for context in args.contexts}
    if isinstance(target, BlockTarget):
        result["profile_percent"] = {str(width): _profile(target, width) for width in (1, 8)}
    result["memory_mb"] = psutil.Process().memory_info().rss // 10**6
    return result


def _reading(target: Target) -> float:
    """Tokens of a prompt per second, median of five readings."""
    tokens = _tokens(target, PROMPT)
    rates = []
    for _ in range(5):
        target.rollback(0)
        began = time.perf_counter()
        for first in range(0, PROMPT, 128):
            target.read(tokens[first : first + 128])
        rates.append(PROMPT / (time.perf_counter() - began))
    return median(rates)


def _curve(target: Target, context: int) -> dict[str, float]:
    """Median milliseconds of a forward by width, behind `context` committed tokens."""
    target.rollback(0)
    tokens = _tokens(target, context)
    for first in range(0, context, 128):
        target.read(tokens[first : first + 128])
    times: dict[int, list[float]] = {width: [] for width in WIDTHS}
    for _ in range(REPEATS):
        for width in WIDTHS:
            block = _tokens(target, width)
            began = time.perf_counter()
            target.forward(block, range(-1, width - 1), padded=width > 1)
            times[width].append((time.perf_counter() - began) * 1e3)
    return {str(width): round(median(found), 2) for width, found in times.items()}


def _profile(target: BlockTarget, width: int) -> dict[str, float]:
    """Where the time of a forward goes, in percent, behind PROMPT tokens."""
    target.rollback(0)
    for first in range(0, PROMPT, 128):
        target.read(_tokens(target, PROMPT)[first : first + 128])
    with target.profile() as shares:
        for _ in range(REPEATS):
            target.forward(_tokens(target, width), range(-1, width - 1))
    return {part: round(100 * share, 1) for part, share in shares.items()}


def _tokens(target: Target, count: int) -> list[int]:
    return np.random.default_rng(count).integers(0, target.vocabulary, count).tolist()
