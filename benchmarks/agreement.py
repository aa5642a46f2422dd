"""Compare a backend with transformers in float32 on the same file: greedy choices and distributions."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from hierchat.checks.runs import Dialogue, machine, read_questions, spread
from hierchat.cli.options import terminal_progress
from hierchat.config import GenerationSettings
from hierchat.engine.cpu.runner import CpuRunner
from hierchat.engine.engine import GenerationRequest
from hierchat.engine.runner import CachedSequence
from hierchat.models.catalogue import Activations, read_catalogue
from hierchat.models.load.load_model import load_torch
from hierchat.runtime.loading import LoadOptions, load_served_model

Floats = NDArray[np.float32]
WIDTH = 32
"""Positions per forward of the backend under test."""


LLAMA_CPP = 256
"""Activations to a scale where llama.cpp multiplies K-quants: int8, too."""


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Judge greedy replies of the backend to the first turns by float32, position by position. Of our own kernels,
    activations of int8 and of int16 are judged over the same texts, and beside them the rounding of llama.cpp's."""
    entry = read_catalogue().entry(args.model)
    questions = spread(read_questions(args.questions), args.limit)
    settings = GenerationSettings(temperature=0.0, max_new_tokens=args.max_new_tokens)
    with terminal_progress() as report:
        served = load_served_model(entry, LoadOptions(args.backend), report)
        judge = load_torch(entry, "cpu", report, "float32").model
    runner = served.local.runner
    candidates: dict[str, Callable[[list[int]], Floats]] = {
        served.activations or served.engine.backend: partial(_forwards, served.local.sequence)
    }
    if isinstance(runner, CpuRunner):
        for other in get_args(Activations):
            if other not in candidates:
                second = CpuRunner(runner.model, context_length=runner.context_length, activations=other)
                candidates[other] = partial(_forwards, second.open())
        candidates["rounded as by llama.cpp"] = partial(_rounded, judge)
    found: dict[str, list[tuple[float, bool]]] = {name: [] for name in candidates}
    for question in questions:
        prompt = Dialogue(served, args.max_new_tokens).ask(question.turns[0])
        steps = served.engine.generate(GenerationRequest(prompt, settings, padded=False))
        text = [*prompt, *(token for step in steps for token in step.tokens)][:-1]
        first = len(prompt) - 1
        expected = _judged(judge, text)[first:]
        for name, logits in candidates.items():
            found[name] += _compared(expected, logits(text)[first:])
    judged = {name: _summary(pairs) for name, pairs in found.items()}
    return {
        "machine": machine(),
        "model": served.name,
        "backend": served.engine.backend,
        "questions": len(questions),
        **next(iter(judged.values())),
        "activations": judged,
    }


def _forwards(sequence: CachedSequence, text: list[int]) -> Floats:
    sequence.rollback(0)
    rows = []
    for begin in range(0, len(text), WIDTH):
        segment = text[begin : begin + WIDTH]
        rows.append(np.array(sequence.forward(segment, range(-1, len(segment) - 1))))
        sequence.commit(range(len(segment)))
    return np.concatenate(rows)


def _judged(judge: Any, text: list[int]) -> Floats:
    with torch.inference_mode():
        return np.asarray(judge(torch.tensor([text])).logits[0].numpy())


def _rounded(judge: Any, text: list[int]) -> Floats:
    """Compute logits where the input of each linear layer is rounded to int8, with a scale for each LLAMA_CPP
    numbers."""

    def rounded(_: torch.nn.Module, given: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        parts = []
        for part in given[0].split(LLAMA_CPP, -1):
            scale = part.abs().amax(-1, keepdim=True).clamp_min(1e-30) / 127
            parts.append((part / scale).round() * scale)
        return torch.cat(parts, -1), *given[1:]

    layers = [layer for layer in judge.modules() if isinstance(layer, torch.nn.Linear)]
    hooks = [layer.register_forward_pre_hook(rounded) for layer in layers]
    try:
        return _judged(judge, text)
    finally:
        for hook in hooks:
            hook.remove()


def _compared(expected: Floats, found: Floats) -> list[tuple[float, bool]]:
    """Return each position's divergence, and whether its likeliest token is the same."""
    pairs: list[tuple[float, bool]] = []
    for begin in range(0, len(found), WIDTH):  # in float64, a row of a large vocabulary takes megabytes
        p, q = expected[begin : begin + WIDTH], found[begin : begin + WIDTH]
        pairs += zip(_divergence(p, q).tolist(), (p.argmax(1) == q.argmax(1)).tolist(), strict=True)
    return pairs


def _summary(pairs: list[tuple[float, bool]]) -> dict[str, Any]:
    divergences, same = zip(*pairs, strict=True)
    return {
        "positions": len(pairs),
        "same_greedy_choice_percent": round(100 * sum(same) / len(pairs), 3),
        "mean_divergence": float(np.mean(divergences)),
        "largest_divergence": float(np.max(divergences)),
    }


def _divergence(expected: Floats, found: Floats) -> NDArray[np.float64]:
    """Return the Kullback-Leibler divergence of each row's distribution from the expected one, in nats."""
    p, q = _log_softmax(expected.astype(np.float64)), _log_softmax(found.astype(np.float64))
    return np.asarray((np.exp(p) * (p - q)).sum(1))


def _log_softmax(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    shifted = rows - rows.max(1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(1, keepdims=True)))
