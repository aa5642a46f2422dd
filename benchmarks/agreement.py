"""Compare a backend with transformers in float32 on the same file: greedy choices and distributions."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hierchat.checks.questions import Dialogue, read_questions, spread
from hierchat.checks.runs import machine
from hierchat.config import GenerationSettings
from hierchat.models.catalogue import read_catalogue
from hierchat.models.load.load_torch import load_torch
from hierchat.models.progress import terminal_progress
from hierchat.runtime.loading import LoadOptions, load_served_model

WIDTH = 32
"""Positions per forward of the backend under test."""


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Judge greedy replies of the backend to the first turns by float32, position by position."""
    entry = read_catalogue().entry(args.model)
    questions = spread(read_questions(args.questions), args.limit)
    settings = GenerationSettings(temperature=0.0, max_new_tokens=args.max_new_tokens)
    with terminal_progress() as report:
        served = load_served_model(entry, LoadOptions(args.backend), report)
        judge = load_torch(entry, "cpu", report, "float32").model
    sequence = served.local.sequence
    same = positions = 0
    divergences: list[float] = []
    for question in questions:
        prompt = Dialogue(served, args.max_new_tokens).ask(question.turns[0])
        steps = served.engine.generate(prompt, settings, padded=False)
        text = [*prompt, *(token for step in steps for token in step.tokens)][:-1]
        first = len(prompt) - 1
        sequence.rollback(0)
        rows = []
        for begin in range(0, len(text), WIDTH):
            segment = text[begin : begin + WIDTH]
            rows.append(sequence.forward(segment, range(-1, len(segment) - 1)))
            sequence.commit(range(len(segment)))
        found = np.concatenate([np.asarray(part) for part in rows])[first:]
        with torch.inference_mode():
            expected = judge(torch.tensor([text])).logits[0, first:].numpy()
        same += int((found.argmax(1) == expected.argmax(1)).sum())
        positions += len(found)
        for begin in range(0, len(found), WIDTH):  # in float64, a row of a large vocabulary takes megabytes
            some = slice(begin, begin + WIDTH)
            divergences += _divergence(expected[some], found[some]).tolist()
    return {
        "machine": machine(),
        "model": served.name,
        "backend": served.engine.backend,
        "questions": len(questions),
        "positions": positions,
        "same_greedy_choice_percent": round(100 * same / positions, 3),
        "mean_divergence": float(np.mean(divergences)),
        "largest_divergence": float(np.max(divergences)),
    }


def _divergence(expected: NDArray[np.float32], found: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the Kullback-Leibler divergence of each row's distribution from the expected one, in nats."""
    p, q = _log_softmax(expected.astype(np.float64)), _log_softmax(found.astype(np.float64))
    return np.asarray((np.exp(p) * (p - q)).sum(1))


def _log_softmax(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    shifted = rows - rows.max(1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(1, keepdims=True)))
