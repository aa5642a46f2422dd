"""Measure what a forward costs: by width and context, reading a prompt, loading, memory; beside other programs."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from statistics import median
from typing import Any, Protocol, cast

import numpy as np
import psutil
import torch

from benchmarks.arms import TIMED
from benchmarks.peers.arm import PeerArm, Weights, open_peer
from benchmarks.peers.environment import ArmError, unknown
from hierchat.checks.runs import RequestError, machine, say
from hierchat.cli.options import terminal_progress
from hierchat.engine.cpu.memory import CHUNK
from hierchat.engine.cpu.runner import CpuRunner
from hierchat.engine.runner import CachedSequence
from hierchat.models.architectures.families import EXPERTS
from hierchat.models.architectures.model_config import experts_of
from hierchat.models.catalogue import ModelEntry, read_catalogue
from hierchat.models.formats.block_model import BlockModel
from hierchat.models.formats.blocks import Blocks
from hierchat.runtime.costs import PIECES, reading_rates
from hierchat.runtime.loading import LoadOptions, load_served_model
from hierchat.runtime.served_model import ServedModel

# What a forward would take on more cores and faster memory: computed from what was measured here, not
# measured.


MACHINES = ((8, 60.0), (8, 100.0), (16, 60.0), (16, 100.0))
"""Cores, and gigabytes of memory that they read in a second."""


def project(curve: Mapping[str, float], threads: int, read: int) -> list[dict[str, Any]]:
    """Compute for each of MACHINES the milliseconds of a forward by width, and what bounds it: "memory" or "cores".

    `curve`: milliseconds measured with `threads` threads; `read`: bytes that a forward reads. A forward takes the
    longer of two: reading these bytes once, and its measured time shared among the cores. It is an estimate: the
    measured time holds what was waiting for memory here, and more cores take longer to meet.
    """
    found = []
    for cores, speed in MACHINES:
        reading = read / speed / 1e6
        computing = {width: ms * threads / cores for width, ms in curve.items()}
        found.append(
            {
                "cores": cores,
                "gigabytes_per_second": speed,
                "ms": {width: round(max(reading, ms), 2) for width, ms in computing.items()},
                "bound": {width: "memory" if reading > ms else "cores" for width, ms in computing.items()},
            }
        )
    return found


# Forwards of several programs in turn: by width and context, and reading a prompt.


WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
REPEATS = 31
READINGS = 5
PAUSE = 0.05
"""Seconds before the turn of a program: threads of the one before may go on waiting for work for a moment."""


class Program(Protocol):
    """Compute forwards of a model. Slots stay as they are between two calls with the same prompt."""

    def forwards(self, prompt: Sequence[int], segments: Sequence[Sequence[int]]) -> list[float]:
        """Time a forward over each segment, a chain behind the prompt, with logits for all its positions, in
        milliseconds."""
        ...

    def reading(self, prompt: Sequence[int]) -> float:
        """Time reading a prompt into empty slots, in milliseconds."""
        ...


class Ours:
    """Time our own engine."""

    def __init__(self, sequence: CachedSequence) -> None:
        self._sequence = sequence

    def forwards(self, prompt: Sequence[int], segments: Sequence[Sequence[int]]) -> list[float]:
        if self._sequence.tokens != list(prompt):
            self.reading(prompt)
        found = []
        for tokens in segments:
            began = time.perf_counter()
            self._sequence.forward(tokens, range(-1, len(tokens) - 1), padded=len(tokens) > 1)
            found.append((time.perf_counter() - began) * 1e3)
        return found

    def reading(self, prompt: Sequence[int]) -> float:
        self._sequence.rollback(0)
        began = time.perf_counter()
        for first in range(0, len(prompt), 128):
            self._sequence.read(prompt[first : first + 128])
        return (time.perf_counter() - began) * 1e3


class Theirs:
    """Time another program, one of TIMED."""

    def __init__(self, peer: PeerArm) -> None:
        self._peer = peer

    def forwards(self, prompt: Sequence[int], segments: Sequence[Sequence[int]]) -> list[float]:
        said = self._peer.ask(do="forwards", prompt=list(prompt), segments=[list(one) for one in segments])
        return list(said["ms"])

    def reading(self, prompt: Sequence[int]) -> float:
        return float(self._peer.ask(do="reading", prompt=list(prompt))["ms"])


def side_by_side(
    programs: Mapping[str, Program], contexts: Sequence[int], prompt: int, vocabulary: int
) -> dict[str, dict[str, Any]]:
    """Measure for each program `contexts`, the median milliseconds of a forward by context and width, and how long a
    prompt of `prompt` tokens takes. Programs take turns, and so do widths, so that a disturbance falls on all of
    them."""
    times: dict[tuple[str, int, int], list[float]] = {}
    segments = [random_tokens(width, vocabulary) for width in WIDTHS]
    for context in contexts:
        text = random_tokens(context, vocabulary)
        for _ in range(REPEATS):
            for name, program in programs.items():
                time.sleep(PAUSE)
                for width, ms in zip(WIDTHS, program.forwards(text, segments), strict=True):
                    times.setdefault((name, context, width), []).append(ms)
    readings: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(READINGS):
        for name, program in programs.items():
            time.sleep(PAUSE)
            readings[name].append(program.reading(random_tokens(prompt, vocabulary)))
    return {
        name: {
            "prompt_tokens": prompt,
            "prompt_ms": round(median(readings[name]), 1),
            "prompt_tokens_per_second": round(prompt / median(readings[name]) * 1e3, 1),
            "contexts": {
                str(context): {str(width): round(median(times[name, context, width]), 2) for width in WIDTHS}
                for context in contexts
            },
        }
        for name in programs
    }


def random_tokens(count: int, vocabulary: int) -> list[int]:
    """Return `count` random tokens, equal ones for equal counts."""
    return np.random.default_rng(count).integers(0, vocabulary, count).tolist()


PROMPT = 1_000
"""Tokens of the prompt whose reading is timed."""
OURS = "hierchat"


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Measure forwards of our engine and of peers in turn. Raises RequestError or a ModelError."""
    for name in args.peers:
        if name not in TIMED:
            raise unknown("peer whose forwards are timed", name, TIMED)
    entry = read_catalogue().entry(args.model)
    began = time.perf_counter()
    with terminal_progress() as report:
        served = load_served_model(entry, LoadOptions(args.backend), report)
    ready = time.perf_counter() - began
    sequence, runner = served.local.sequence, served.local.runner
    if max(args.contexts) + max(WIDTHS) > sequence.context_length:
        raise RequestError(
            f"--contexts: {served.name} holds {sequence.context_length:,} tokens, {max(WIDTHS)} of them in the forward."
        )
    result: dict[str, Any] = {
        "machine": machine(),
        "model": served.name,
        "backend": runner.backend,
        "exact": runner.exact,
        "ready_seconds": round(ready, 2),
        "threads": runner.team.threads if isinstance(runner, CpuRunner) else None,
    }
    model = runner.model if isinstance(runner, CpuRunner) else None
    if model:
        size = matrix_bytes(model)
        result["weights_mb"] = round(size / 1e6, 1)
        result["weights_over_file"] = round(
            size / sum(one.rows * one.row_bytes for one in matrices(model)), 3
        )
    with ExitStack() as stack:
        peers = _peers(args.peers, entry, served, result["threads"] or torch.get_num_threads(), stack)
        programs: dict[str, Program] = {OURS: Ours(sequence)}
        programs |= {name: Theirs(peer) for name, peer in peers.items()}
        figures = side_by_side(
            programs, args.contexts, min(PROMPT, sequence.context_length), sequence.vocabulary
        )
    result |= figures.pop(OURS)
    result["peers"] = {name: {"versions": peer.versions} | figures[name] for name, peer in peers.items()}
    if isinstance(runner, CpuRunner):
        result["memory"] = limits(runner, result["contexts"])
    result["memory_mb"] = psutil.Process().memory_info().rss // 10**6
    return result


def _peers(
    names: Sequence[str], entry: ModelEntry, served: ServedModel, threads: int, stack: ExitStack
) -> dict[str, PeerArm]:
    """Start other programs; `stack` ends them. Raises RequestError."""
    found = {}
    for name in names:
        try:
            found[name] = cast(PeerArm, open_peer(name, Weights(entry, served), threads, say))
        except ArmError as error:
            raise RequestError(f"--peers: {name} cannot be started: {error}.") from error
        stack.callback(found[name].close)
    return found


def matrices(model: BlockModel) -> list[Blocks]:
    """Return the matrices that a forward reads. Of an embedding that is not the head it reads a row per token."""
    each = [matrix for layer in model.layers for matrix in layer.values()]
    return [model.head, *each, *([model.layer_projection] if model.layer_projection else [])]


def matrix_bytes(model: BlockModel) -> int:
    return sum(matrix.nbytes for matrix in matrices(model))


def row_bytes(model: BlockModel) -> int:
    """Return the bytes that a forward of one row reads: of several experts, those that a token activates."""
    experts, active = experts_of(model.config)
    if "router" not in model.layers[0]:
        return matrix_bytes(model)
    several = sum(layer[name].nbytes for layer in model.layers for name in EXPERTS if name != "router")
    return matrix_bytes(model) - several * (experts - active) // experts


def limits(runner: CpuRunner, contexts: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """Compute what limits a forward: by context the bytes that it reads, and its rate against what all threads read."""
    threads = runner.team.threads
    most = median(reading_rates(threads, 2**30, 9, threads * PIECES))  # more than caches hold
    held = len(runner.slots[0].keys) * CHUNK
    per_position = sum(part.nbytes for kind in runner.slots for part in kind) // held
    found: dict[str, Any] = {"gigabytes_per_second": round(most, 1), "contexts": {}}
    for context, curve in contexts.items():
        read = row_bytes(runner.model) + int(context) * per_position
        rate = read / curve["1"] / 1e6
        found["contexts"][context] = {
            "read_mb": round(read / 1e6, 1),
            "gigabytes_per_second": round(rate, 1),
            "percent": round(100 * rate / most),
            "computed_not_measured": project(curve, runner.team.threads, read),
        }
    return found
