"""Run llama.cpp with a slot for each user, as its own server works: every step takes the next token of all who write
and as much of new prompts as fits into the batch. Without the server's HTTP."""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass, field
from typing import Any

BATCH = 512
"""Tokens of a batch at most."""


@dataclass
class _Slot:
    """Slot of a user: prompts still to be answered, and the reply in progress."""

    prompts: list[list[int]]
    pending: list[int] = field(default_factory=list)
    """Tokens that are to be evaluated next."""
    position: int = 0
    tokens: list[int] = field(default_factory=list)
    asked: float = 0.0
    first: float = 0.0
    row: int = -1
    """Of the batch, whose logits are needed."""
    served: list[dict[str, Any]] = field(default_factory=list)


def serve(llama: Any, request: dict[str, Any], threads: int) -> dict[str, Any]:
    """Answer the prompts of all users greedily; each asks again as soon as it has its reply."""
    import llama_cpp as low  # type: ignore[import-not-found]
    import numpy as np

    slots = [_Slot(list(prompts)) for prompts in request["talks"]]
    longest = max(len(prompt) for slot in slots for prompt in slot.prompts) + request["max_new_tokens"]
    room = -(-longest // 256) * 256
    wanted = low.llama_context_default_params()
    wanted.n_ctx, wanted.n_seq_max, wanted.n_batch = room * len(slots), len(slots), BATCH
    wanted.n_threads = wanted.n_threads_batch = threads
    context = low.llama_init_from_model(llama._model.model, wanted)
    batch = low.llama_batch_init(BATCH, 0, 1)
    words = llama.n_vocab()
    try:
        began = time.perf_counter()
        for number, slot in enumerate(slots):
            _next(low, context, number, slot)
        while any(slot.pending for slot in slots):
            batch.n_tokens = 0
            # Those who write first: one token each.
            for number, slot in sorted(enumerate(slots), key=lambda one: len(one[1].pending)):
                slot.row = -1
                part = slot.pending[: BATCH - batch.n_tokens]
                for token in part:
                    _add(batch, token, slot.position, number)
                    slot.position += 1
                del slot.pending[: len(part)]
                if part and not slot.pending:
                    slot.row = batch.n_tokens - 1
                    batch.logits[slot.row] = True
            if low.llama_decode(context, batch):
                raise RuntimeError("llama_decode failed")
            for number, slot in enumerate(slots):
                if slot.row < 0:
                    continue
                logits = np.ctypeslib.as_array(low.llama_get_logits_ith(context, slot.row), (words,))
                token = int(np.argmax(logits))
                now = time.perf_counter()
                slot.first = slot.first or now
                slot.tokens.append(token)
                if token in request["end_ids"] or len(slot.tokens) >= request["max_new_tokens"]:
                    slot.served.append(
                        {"tokens": slot.tokens, "first": slot.first - slot.asked, "all": now - slot.asked}
                    )
                    _next(low, context, number, slot)
                else:
                    slot.pending = [token]
        return {"seconds": time.perf_counter() - began, "served": [slot.served for slot in slots]}
    finally:
        low.llama_batch_free(batch)
        low.llama_free(context)


def _next(low: Any, context: Any, number: int, slot: _Slot) -> None:
    """Begin the next question of a slot, which keeps nothing of what it holds."""
    slot.asked, slot.first, slot.tokens = time.perf_counter(), 0.0, []
    slot.pending = slot.prompts.pop(0) if slot.prompts else []
    slot.position = 0
    low.llama_memory_seq_rm(low.llama_get_memory(context), ctypes.c_int32(number), -1, -1)


def _add(batch: Any, token: int, position: int, number: int) -> None:
    at = batch.n_tokens
    batch.token[at], batch.pos[at], batch.n_seq_id[at] = token, position, 1
    batch.seq_id[at][0], batch.logits[at] = number, False
    batch.n_tokens += 1
