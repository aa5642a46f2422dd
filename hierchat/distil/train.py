"""Teaches the draft, for a given time, in a way that can be stopped and gone on with."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy

from hierchat.distil.text import Samples

BATCH = 8
RATE = 1e-3
WARM_UP = 50
"""Steps in which the rate rises."""
LAST_RATE = 0.05
"""Part of the rate that is left at the end."""
EVERY = 120.0
"""Seconds between two checkpoints."""
CHECKPOINT = "checkpoint.pt"


@dataclass(slots=True)
class State:
    """How far it has come. `measured`: (step, seconds, loss, agreement) on text held back, each time it was measured:
    nats a token, and how often the draft's best token is the next one."""

    step: int
    seconds: float
    measured: list[tuple[int, float, float, float]]


Tell = Callable[[State, float], None]
"""Hears of every step, and of its loss."""


def train(student: Any, samples: Samples, minutes: float, seed: int, folder: Path, tell: Tell) -> State:
    """Teaches for so many minutes in all, earlier runs included; a checkpoint in `folder` is gone on with.

    Raises ValueError where the checkpoint is of another draft or text. KeyboardInterrupt leaves a checkpoint.
    """
    optimiser = torch.optim.AdamW(
        student.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.05, fused=True
    )
    state = State(0, 0.0, [])
    file = folder / CHECKPOINT
    shape = [
        list(student.model.embed_tokens.weight.shape),
        len(student.model.layers),
        len(samples.learned),
        seed,
    ]
    if file.exists():
        _restore(file, student, optimiser, state, shape)
    total = minutes * 60.0
    saved = state.seconds
    student.train()
    try:
        while state.seconds < total:
            began = time.monotonic()
            loss = _step(student, optimiser, samples.learned, state.step, state.seconds / total, seed)
            state.step += 1
            state.seconds += time.monotonic() - began
            tell(state, loss)
            if state.seconds - saved >= EVERY:
                saved = state.seconds
                _measure(student, samples.held_back, state)
                _save(file, student, optimiser, state, shape)
        if not state.measured or state.measured[-1][0] != state.step:
            _measure(student, samples.held_back, state)
            _save(file, student, optimiser, state, shape)
    except KeyboardInterrupt:
        _save(file, student, optimiser, state, shape)
        raise
    return state


def _step(
    student: Any, optimiser: Any, learned: NDArray[np.int64], step: int, done: float, seed: int
) -> float:
    """On samples that follow from the number of the step alone."""
    chosen = np.random.default_rng([seed, step]).integers(len(learned), size=BATCH)
    batch = torch.from_numpy(learned[chosen]).to(student.device)
    for group in optimiser.param_groups:
        group["lr"] = _rate(step, done)
    loss = _loss(student, batch)[0]
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
    optimiser.step()
    return float(loss.detach())


def _rate(step: int, done: float) -> float:
    fallen = LAST_RATE + (1.0 - LAST_RATE) * 0.5 * (1.0 + math.cos(math.pi * min(done, 1.0)))
    return RATE * min(1.0, (step + 1) / WARM_UP) * fallen


def _loss(student: Any, batch: Any) -> tuple[Any, Any, Any]:
    """Mean loss; likeliest tokens and the tokens that came, of places whose token the draft knows."""
    hidden = student.model(input_ids=batch[:, :-1], use_cache=False).last_hidden_state
    unknown = student.config.vocab_size - 1
    labels = batch[:, 1:].reshape(-1)
    there = labels != unknown
    logits = student.lm_head(hidden.reshape(-1, hidden.shape[-1])[there])
    # Not its own mean: that of no tokens is NaN.
    loss = cross_entropy(logits, labels[there], reduction="sum") / max(len(logits), 1)
    return loss, logits.argmax(-1), labels[there]


@torch.no_grad()
def _measure(student: Any, held_back: NDArray[np.int64], state: State) -> None:
    student.eval()
    losses, right, seen, places = 0.0, 0, 0, 0
    for at in range(0, len(held_back), BATCH):
        batch = torch.from_numpy(held_back[at : at + BATCH]).to(student.device)
        loss, likeliest, came = _loss(student, batch)
        losses += float(loss) * len(came)
        right += int((likeliest == came).sum())
        seen += len(came)
        places += batch[:, 1:].numel()
    student.train()
    # A token that the draft does not know is one that it gets wrong.
    state.measured.append((state.step, state.seconds, losses / max(seen, 1), right / places))


def _save(file: Path, student: Any, optimiser: Any, state: State, shape: list[Any]) -> None:
    part = file.with_suffix(".part")
    torch.save(
        {
            "shape": shape,
            "state": asdict(state),
            "student": student.state_dict(),
            "optimiser": optimiser.state_dict(),
        },
        part,
    )
    os.replace(part, file)


def _restore(file: Path, student: Any, optimiser: Any, state: State, shape: list[Any]) -> None:
    try:
        saved = torch.load(file, map_location=student.device, weights_only=True)
    except Exception as error:  # whatever pickle and zip make of a damaged file
        raise ValueError(f"{file} cannot be read ({error}). Delete it to begin anew.") from error
    other = ValueError(f"{file} is of another draft or another text. Delete it, or choose another folder.")
    try:
        if saved["shape"] != shape:
            raise other
        student.load_state_dict(saved["student"])
        optimiser.load_state_dict(saved["optimiser"])
        state.step, state.seconds = saved["state"]["step"], saved["state"]["seconds"]
        state.measured = [tuple(one) for one in saved["state"]["measured"]]
    except (RuntimeError, KeyError, TypeError) as error:
        raise other from error
