"""A whole forward of the decoder, run by every thread of a team at once."""

from __future__ import annotations

import numpy as np

from hierchat.engine.cpu.experts import (
    add_phase,
    choose_phase,
    expert_gate_phase,
    expert_tasks,
    expert_wait,
    gather_phase,
    grouped,
)
from hierchat.engine.cpu.jit import kernel
from hierchat.engine.cpu.llvm import clock
from hierchat.engine.cpu.memory import CHUNK, DOWN, GATE, ROUTER, UP, K, O, Q, V
from hierchat.engine.cpu.phases import (
    attention_phase,
    cap_phase,
    gate_phase,
    merge_phase,
    norm_phase,
    place_phase,
    product_tasks,
    product_wait,
)

COUNTERS = 18
"""Counters of a layer; the head needs three more."""
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
    counters, phase, rows, layer, shape, weights, work, chosen, threads, rank, cycles, since
):
    """The part of a layer behind its second norm, where it has several experts; returns the time as `tick` does."""
    matrices, woken, inner, hidden = weights.matrices[layer], work.woken, shape.inner, shape.hidden
    scores = np.int64(woken.scores.ctypes.data)
    product_tasks(counters, phase, matrices[ROUTER], rows, work, scores, shape.experts * 4, threads)
    product_wait(counters, phase, matrices[ROUTER], rows, threads)
    choose_phase(counters, phase + 1, rows, shape, weights.router_biases[layer], woken, chosen)
    awake, most = grouped(rows, shape, woken, chosen, rank)
    gather_phase(counters, phase + 2, rows, shape, work, chosen, rank)
    since = tick(cycles, CHOICE, since)
    gate, up, down = matrices[GATE], matrices[UP], matrices[DOWN]
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
def forward(  # type: ignore[no-untyped-def]
    shape, weights, slots, work, identity, texts, told, chosen, logits, counters, threads, rank, cycles
):
    """Logits of blocks whose embeddings stand in work.x and whose paths in work.order (attention.lay_out).

    `texts` (memory.Texts): the sequences that the blocks belong to, one behind the other.
    `logits` float32 [`told` padded to ROWS, vocabulary]: those of the first `told` rows; of the others only keys and
    values are wanted. `chosen` int64 [layers, rows, active]: the experts that each row wakes are written here; None
    where layers have none. No other forward may use it, nor `counters`: int64, all zero, phases.COUNTER for each
    counter. `identity` int32 [CHUNK], the numbers from 0 on. Every thread of the team calls it with its own `rank`; it
    returns when all is done. `cycles` int64 [PARTS], or empty: no profile.
    """
    size = shape.head_dim
    rows = texts.rows[-1]
    chunks = 0
    for text in range(texts.starts.shape[0]):
        width = texts.rows[text + 1] - texts.rows[text]
        chunks = max(chunks, (texts.starts[text] + width - 1) // CHUNK + 1)
    attended = work.attended[: rows * shape.heads * chunks * (size + 2)]
    attended = attended.reshape(rows, shape.heads, chunks, size + 2)
    scratch = work.scratch[rank]
    none = weights.last_norm[:0]
    wide = work.qkv.shape[1] * size * 4
    query = np.int64(work.qkv.ctypes.data)
    key = query + shape.heads * size * 4
    value = key + shape.kv_heads * size * 4
    since = clock() if cycles.shape[0] else 0
    for layer in range(shape.layers):
        phase = layer * COUNTERS
        matrices, window = weights.matrices[layer], weights.windows[layer]
        before, norm = weights.after_inner_norms[max(layer - 1, 0)], weights.attention_norms[layer]
        norm_phase(counters, phase, rows, shape, work, none, before, norm, layer > 0)
        since = tick(cycles, NORMS, since)
        product_tasks(counters, phase + 1, matrices[Q], rows, work, query, wide, threads)
        product_tasks(counters, phase + 2, matrices[K], rows, work, key, wide, threads)
        product_tasks(counters, phase + 3, matrices[V], rows, work, value, wide, threads)
        product_wait(counters, phase + 1, matrices[Q], rows, threads)
        product_wait(counters, phase + 2, matrices[K], rows, threads)
        product_wait(counters, phase + 3, matrices[V], rows, threads)
        since = tick(cycles, QKV, since)
        place_phase(counters, phase + 4, rows, texts, shape, weights, slots, work, layer)
        since = tick(cycles, PLACE, since)
        if layer == shape.layers - 1:
            if not told:
                return
            rows = told
        attention_phase(
            counters, phase + 5, rows, texts, shape, window, slots, work, layer, identity, attended, scratch
        )
        since = tick(cycles, ATTENTION, since)
        merge_phase(counters, phase + 7, rows, shape, window, weights.sinks[layer], work, attended)
        since = tick(cycles, MERGE, since)
        out, stride = np.int64(work.out.ctypes.data), shape.hidden * 4
        product_tasks(counters, phase + 8, matrices[O], rows, work, out, stride, threads)
        product_wait(counters, phase + 8, matrices[O], rows, threads)
        since = tick(cycles, OUTPUT, since)
        before, norm = weights.after_attention_norms[layer], weights.inner_norms[layer]
        bias = weights.output_biases[layer]
        norm_phase(counters, phase + 9, rows, shape, work, bias, before, norm, True)
        since = tick(cycles, NORMS, since)
        if chosen is not None:  # else nothing of experts is compiled
            since = experts(
                counters,
                phase + 10,
                rows,
                layer,
                shape,
                weights,
                work,
                chosen[layer],
                threads,
                rank,
                cycles,
                since,
            )
            continue
        gate, up = np.int64(work.gate.ctypes.data), np.int64(work.up.ctypes.data)
        inner = shape.inner * 4
        product_tasks(counters, phase + 10, matrices[GATE], rows, work, gate, inner, threads)
        product_tasks(counters, phase + 11, matrices[UP], rows, work, up, inner, threads)
        product_wait(counters, phase + 10, matrices[GATE], rows, threads)
        product_wait(counters, phase + 11, matrices[UP], rows, threads)
        since = tick(cycles, GATE_UP, since)
        gate_phase(counters, phase + 12, rows, shape, work)
        since = tick(cycles, ACTIVATION, since)
        product_tasks(counters, phase + 13, matrices[DOWN], rows, work, out, stride, threads)
        product_wait(counters, phase + 13, matrices[DOWN], rows, threads)
        since = tick(cycles, BACK, since)
    phase = shape.layers * COUNTERS
    head = weights.matrices[shape.layers, Q]
    before = weights.after_inner_norms[shape.layers - 1]
    norm_phase(counters, phase, rows, shape, work, none, before, weights.last_norm, True)
    place = np.int64(logits.ctypes.data)
    product_tasks(counters, phase + 1, head, rows, work, place, logits.shape[1] * 4, threads)
    product_wait(counters, phase + 1, head, rows, threads)
    if shape.logit_cap:
        cap_phase(counters, phase + 2, rows, shape.logit_cap, logits)
    tick(cycles, HEAD, since)
