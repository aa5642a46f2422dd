"""A whole forward of the decoder, run by every thread of a team at once."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil

from hierchat.engine.cpu.experts import (
    add_phase,
    choose_phase,
    expert_gate_phase,
    expert_tasks,
    expert_wait,
    gather_phase,
    grouped,
)
from hierchat.engine.cpu.llvm import clock, kernel
from hierchat.engine.cpu.memory import (
    CHUNK,
    DENSE_DOWN,
    DENSE_GATE,
    DENSE_UP,
    DOWN,
    FORM,
    GATE,
    HEIGHT,
    LAYER_GATE,
    LAYER_OUT,
    ROUTER,
    UP,
    K,
    O,
    Q,
    V,
)
from hierchat.engine.cpu.phases import (
    attention_phase,
    cap_phase,
    gate_up_phase,
    hold_phase,
    input_phase,
    join_phase,
    merge_phase,
    norm_phase,
    open_phase,
    place_phase,
    product_tasks,
    product_wait,
)
from hierchat.engine.cpu.rows import ONE

COUNTERS, COUNTERS_BESIDE = 18, 25
"""Counters of a layer; of one with experts beside the rest."""
LAST_COUNTERS = 6
"""Of the head, and of what makes the inputs of layers."""
PARTS = (
    "norms",
    "query, key, value",
    "rotate, store",
    "attention",
    "merge",
    "output",
    "choice of experts",
    "gate, up",
    "activation",
    "down",
    "sum of experts",
    "head",
)
"""What a profile tells apart."""
(
    NORMS, QKV, PLACE, ATTENTION, MERGE, OUTPUT, CHOICE, GATE_UP, ACTIVATION, BACK, SUM, HEAD,
) = range(len(PARTS))  # fmt: skip


@kernel
def tick(cycles, part, since):  # type: ignore[no-untyped-def]
    """Adds what has passed since then to a part of the profile, where one is wanted; returns now."""
    if cycles.shape[0] == 0:
        return since
    now = clock()
    cycles[part] += now - since
    return now


@kernel
def experts(  # type: ignore[no-untyped-def]
    counters, phase, rows, layer, shape, weights, work, chosen, beside, threads, rank, cycles, since
):
    """The part of a layer behind its second norm, or behind beside.hold_phase, where it has several experts; returns
    the time as `tick` does."""
    matrices, woken, inner, hidden = weights.matrices[layer], work.woken, shape.inner, shape.hidden
    scores = np.int64(woken.scores.ctypes.data)
    product_tasks(counters, phase, matrices[ROUTER], rows, work.input, scores, shape.experts * 4, threads)
    product_wait(counters, phase, matrices[ROUTER], rows, threads)
    choose_phase(
        counters,
        phase + 1,
        rows,
        shape,
        weights.router_biases[layer],
        weights.expert_scales[layer],
        woken,
        chosen,
    )
    if beside is not None:
        none, norm = weights.last_norm[:0], beside.expert_norms[layer]
        forms = matrices[GATE, FORM] | matrices[UP, FORM]
        norm_phase(counters, phase + 8, rows, shape, work, forms, none, none, norm, False, ONE)
    awake, most = grouped(rows, shape, woken, chosen, rank)
    gate, up, down = matrices[GATE], matrices[UP], matrices[DOWN]
    gather_phase(counters, phase + 2, rows, shape, work, gate[FORM] | up[FORM], chosen, rank)
    since = tick(cycles, CHOICE, since)
    expert_tasks(counters, phase + 3, gate, inner, awake, most, woken, rank, woken.gate, threads)
    expert_tasks(counters, phase + 4, up, inner, awake, most, woken, rank, woken.up, threads)
    expert_wait(counters, phase + 3, inner, awake, most, threads)
    expert_wait(counters, phase + 4, inner, awake, most, threads)
    since = tick(cycles, GATE_UP, since)
    expert_gate_phase(
        counters,
        phase + 5,
        rows,
        shape,
        down[FORM],
        weights.gate_biases[layer],
        weights.up_biases[layer],
        woken,
        chosen,
        rank,
    )
    since = tick(cycles, ACTIVATION, since)
    expert_tasks(counters, phase + 6, down, hidden, awake, most, woken, rank, woken.out, threads)
    expert_wait(counters, phase + 6, hidden, awake, most, threads)
    since = tick(cycles, BACK, since)
    add_phase(counters, phase + 7, rows, shape, weights.down_biases[layer], work, chosen, rank)
    return tick(cycles, SUM, since)


@kernel
def dense_beside(  # type: ignore[no-untyped-def]
    counters, phase, rows, layer, shape, weights, work, beside, threads, scratch, cycles, since
):
    """What a layer has beside its experts, as far as hold_phase; returns the time as `tick` does."""
    matrices = weights.matrices[layer]
    gate, up, down = matrices[DENSE_GATE], matrices[DENSE_UP], matrices[DENSE_DOWN]
    gate_up_phase(counters, phase, gate, up, down[FORM], rows, shape, work, threads, scratch)
    since = tick(cycles, GATE_UP, since)
    out = np.int64(work.out.ctypes.data)
    product_tasks(counters, phase + 3, matrices[DENSE_DOWN], rows, work.inner, out, shape.hidden * 4, threads)
    product_wait(counters, phase + 3, matrices[DENSE_DOWN], rows, threads)
    since = tick(cycles, BACK, since)
    hold_phase(counters, phase + 4, rows, layer, shape, work, matrices[ROUTER, FORM], beside)
    return tick(cycles, NORMS, since)


@kernel
def make_inputs(  # type: ignore[no-untyped-def]
    counters, phase, rows, shape, weights, work, inputs, threads, cycles, since
):
    """The inputs of all layers, out of the embeddings in work.x; returns the time as `tick` does."""
    none, matrix = weights.last_norm[:0], weights.matrices[shape.layers, K]
    norm_phase(counters, phase, rows, shape, work, matrix[FORM], none, none, none, False, ONE)
    place = np.int64(inputs.projected.ctypes.data)
    product_tasks(counters, phase + 1, matrix, rows, work.input, place, matrix[HEIGHT] * 4, threads)
    product_wait(counters, phase + 1, matrix, rows, threads)
    input_phase(counters, phase + 2, rows, inputs)
    return tick(cycles, GATE_UP, since)


@kernel
def add_input(  # type: ignore[no-untyped-def]
    counters, phase, rows, layer, shape, weights, work, inputs, threads, cycles, since
):
    """The part of a layer that brings its own input in, as far as the product behind it; returns the time as `tick`
    does."""
    matrices, none = weights.matrices[layer], weights.last_norm[:0]
    forms, norm = matrices[LAYER_GATE, FORM], weights.after_inner_norms[layer]
    norm_phase(counters, phase, rows, shape, work, forms, none, norm, none, True, ONE)
    gate = np.int64(work.gate.ctypes.data)
    product_tasks(
        counters, phase + 1, matrices[LAYER_GATE], rows, work.input, gate, work.gate.shape[1] * 4, threads
    )
    product_wait(counters, phase + 1, matrices[LAYER_GATE], rows, threads)
    open_phase(counters, phase + 2, rows, layer, shape, work, matrices[LAYER_OUT, FORM], inputs)
    out = np.int64(work.out.ctypes.data)
    product_tasks(counters, phase + 3, matrices[LAYER_OUT], rows, work.input, out, shape.hidden * 4, threads)
    product_wait(counters, phase + 3, matrices[LAYER_OUT], rows, threads)
    return tick(cycles, BACK, since)


@kernel
def forward(  # type: ignore[no-untyped-def]
    shapes,
    weights,
    slots,
    work,
    identity,
    texts,
    told,
    chosen,
    beside,
    inputs,
    logits,
    counters,
    threads,
    rank,
    cycles,
):
    """Logits of blocks whose embeddings stand in work.x and whose paths in work.order (attention.lay_out).

    `shapes` and `slots`: of each kind of layers (memory.Shape, memory.KeyValues). `texts` (memory.Texts): the sequences
    that the blocks belong to, one behind the other. `logits` float32 [`told` padded to ROWS, vocabulary]: those of the
    first `told` rows; of the others only keys and values are wanted. `chosen` int64 [layers, rows, active]: the experts
    that each row wakes are written here; None where layers have none. `beside`, `inputs`: memory.Beside, memory.Inputs,
    or None. No other forward may use any of these, nor `counters`: int64, all zero, phases.COUNTER for each counter.
    `identity` int32 [CHUNK], the numbers from 0 on. Every thread of the team calls it with its own `rank`; it returns
    when all is done. `cycles` int64 [PARTS], or empty: no profile.
    """
    layers, last_kept = shapes[0].layers, shapes[0].last_kept
    own_counters = COUNTERS if beside is None else COUNTERS_BESIDE
    rows = texts.rows[-1]
    chunks = 0
    for text in range(texts.starts.shape[0]):
        width = texts.rows[text + 1] - texts.rows[text]
        chunks = max(chunks, (texts.starts[text] + width - 1) // CHUNK + 1)
    all_rows = rows
    scratch = work.scratch[rank]
    none = weights.last_norm[:0]
    since = clock() if cycles.shape[0] else 0
    if inputs is not None:
        since = make_inputs(
            counters,
            layers * own_counters + 3,
            rows,
            shapes[0],
            weights,
            work,
            inputs,
            threads,
            cycles,
            since,
        )
    for layer in range(layers):
        phase = layer * own_counters
        kind = weights.kinds[layer]
        shape, kept, qkv, places = shapes[kind], slots[kind], work.qkv[kind], work.places[kind]
        size = shape.head_dim
        attended = work.attended[: all_rows * shape.heads * chunks * (size + 2)]
        attended = attended.reshape(all_rows, shape.heads, chunks, size + 2)
        wide = qkv.shape[1] * size * 4
        query = np.int64(qkv.ctypes.data)
        key = query + shape.heads * size * 4
        value = key + shape.kv_heads * size * 4
        matrices, window = weights.matrices[layer], weights.windows[layer]
        before, norm = weights.leaving_norms[max(layer - 1, 0)], weights.attention_norms[layer]
        factor = weights.scales[layer - 1] if layer else ONE
        forms = matrices[Q, FORM] | matrices[K, FORM] | matrices[V, FORM]
        norm_phase(counters, phase, rows, shape, work, forms, none, before, norm, layer > 0, factor)
        since = tick(cycles, NORMS, since)
        product_tasks(counters, phase + 1, matrices[Q], rows, work.input, query, wide, threads)
        product_tasks(counters, phase + 2, matrices[K], rows, work.input, key, wide, threads)
        product_tasks(counters, phase + 3, matrices[V], rows, work.input, value, wide, threads)
        product_wait(counters, phase + 1, matrices[Q], rows, threads)
        product_wait(counters, phase + 2, matrices[K], rows, threads)
        product_wait(counters, phase + 3, matrices[V], rows, threads)
        since = tick(cycles, QKV, since)
        place_phase(counters, phase + 4, rows, texts, shape, weights, kept, qkv, work, layer)
        since = tick(cycles, PLACE, since)
        if layer == last_kept:
            if not told:
                return
            rows = told
        attention_phase(
            counters,
            phase + 5,
            rows,
            texts,
            shape,
            window,
            kept,
            qkv,
            places,
            work,
            weights.slots[layer],
            identity,
            attended,
            scratch,
        )
        since = tick(cycles, ATTENTION, since)
        forms = matrices[O, FORM]
        merge_phase(counters, phase + 7, rows, shape, window, weights.sinks[layer], work, forms, attended)
        since = tick(cycles, MERGE, since)
        out, stride = np.int64(work.out.ctypes.data), shape.hidden * 4
        product_tasks(counters, phase + 8, matrices[O], rows, work.input, out, stride, threads)
        product_wait(counters, phase + 8, matrices[O], rows, threads)
        since = tick(cycles, OUTPUT, since)
        before, norm = weights.after_attention_norms[layer], weights.inner_norms[layer]
        bias = weights.output_biases[layer]
        forms = (
            matrices[GATE, FORM] | matrices[UP, FORM] | matrices[DENSE_GATE, FORM] | matrices[DENSE_UP, FORM]
        )
        forms |= matrices[ROUTER, FORM]
        norm_phase(counters, phase + 9, rows, shape, work, forms, bias, before, norm, True, ONE)
        since = tick(cycles, NORMS, since)
        if beside is not None:
            since = dense_beside(
                counters,
                phase + 10,
                rows,
                layer,
                shape,
                weights,
                work,
                beside,
                threads,
                scratch,
                cycles,
                since,
            )
        if chosen is not None:  # else nothing of experts is compiled
            since = experts(
                counters,
                phase + (10 if beside is None else 15),
                rows,
                layer,
                shape,
                weights,
                work,
                chosen[layer],
                beside,
                threads,
                rank,
                cycles,
                since,
            )
            if beside is not None:
                join_phase(counters, phase + 24, rows, layer, shape, work, beside)
            continue
        gate, up, down = matrices[GATE], matrices[UP], matrices[DOWN]
        gate_up_phase(counters, phase + 10, gate, up, down[FORM], rows, shape, work, threads, scratch)
        since = tick(cycles, GATE_UP, since)
        product_tasks(counters, phase + 13, matrices[DOWN], rows, work.inner, out, stride, threads)
        product_wait(counters, phase + 13, matrices[DOWN], rows, threads)
        since = tick(cycles, BACK, since)
        if inputs is not None:  # the same
            since = add_input(
                counters, phase + 14, rows, layer, shape, weights, work, inputs, threads, cycles, since
            )
    shape, phase = shapes[0], layers * own_counters
    head = weights.matrices[layers, Q]
    before, factor = weights.leaving_norms[layers - 1], weights.scales[layers - 1]
    norm_phase(counters, phase, rows, shape, work, head[FORM], none, before, weights.last_norm, True, factor)
    place = np.int64(logits.ctypes.data)
    product_tasks(counters, phase + 1, head, rows, work.input, place, logits.shape[1] * 4, threads)
    product_wait(counters, phase + 1, head, rows, threads)
    if shape.logit_cap:
        cap_phase(counters, phase + 2, rows, shape.logit_cap, logits)
    tick(cycles, HEAD, since)


# A team of threads that computes one forward after another.


Job = Callable[[int], Any]
"""Called by every thread with its rank, 0 for the one that asks; must return in all threads once all is done."""


def cores() -> int:
    """Processor cores that this process may use; a second thread of the same core brings nothing."""
    try:
        allowed = len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        allowed = os.cpu_count() or 1
    return max(1, min(allowed, psutil.cpu_count(logical=False) or allowed))


class Team:
    """`threads` threads, the caller one of them. A helper that is late finds the work done and goes back to sleep.

    Between jobs it holds nothing of its owner's, so that a model that is replaced leaves the memory.
    """

    def __init__(self, threads: int | None = None) -> None:
        self.threads = threads or cores()
        self._bells = [threading.Semaphore(0) for _ in range(self.threads - 1)]
        self._job: Job | None = None
        self._closed = False
        for rank, bell in enumerate(self._bells, 1):
            threading.Thread(target=self._help, args=(rank, bell), daemon=True, name=f"engine {rank}").start()

    def run(self, job: Job) -> None:
        """`job` in all threads; returns when it is done."""
        self._job = job
        self._ring()
        try:
            job(0)
        finally:
            self._job = None

    def close(self) -> None:
        """Send the helpers home."""
        self._closed = True
        self._ring()

    def _ring(self) -> None:
        for bell in self._bells:
            bell.release()

    def _help(self, rank: int, bell: threading.Semaphore) -> None:
        while not self._closed:
            bell.acquire()
            while bell.acquire(blocking=False):  # only the latest job matters
                pass
            job = self._job
            if job is not None:
                job(rank)
            del job
