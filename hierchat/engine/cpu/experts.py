"""The phases of several experts: which of them each row wakes, and their products, grouped by expert.

An expert's weights are read once, however many rows wake it. A row's bits depend on its own experts alone, in the order
in which it ranks them.
"""

from __future__ import annotations

import numpy as np

from hierchat.engine.cpu.llvm import fma, kernel
from hierchat.engine.cpu.phases import done, gated, take, tile_size, wait
from hierchat.engine.cpu.rows import HEIGHT_OF, ONE, ROWS, ZERO, added, product, quantise


@kernel
def choose(scores, shared_by_active, chosen, shares):  # type: ignore[no-untyped-def]
    """The best of a row's `scores` [experts], the first of equal ones first, into `chosen` [active], and the weight of
    each into `shares`: a softmax over these (`shared_by_active`) or over all."""
    experts, active = scores.shape[0], chosen.shape[0]
    for expert in range(experts):
        at = min(expert, active)
        while at > 0 and scores[expert] > scores[chosen[at - 1]]:
            if at < active:
                chosen[at] = chosen[at - 1]
            at -= 1
        if at < active:
            chosen[at] = expert
    highest, total = scores[chosen[0]], ZERO
    for rank in range(active):
        shares[rank] = np.exp(scores[chosen[rank]] - highest)
        total += shares[rank]
    if not shared_by_active:
        total = ZERO
        for expert in range(experts):
            total += np.exp(scores[expert] - highest)
    for rank in range(active):
        shares[rank] /= total


@kernel
def choose_phase(counters, phase, rows, shape, bias, scales, woken, chosen):  # type: ignore[no-untyped-def]
    """Every row's experts, out of its scores and their `bias`, and their shares times their `scales`, unless these are
    empty."""
    while True:
        row = take(counters, phase)
        if row >= rows:
            break
        if bias.shape[0]:
            added(woken.scores[row], bias, ONE)
        choose(woken.scores[row], shape.shared_by_active, chosen[row], woken.shares[row])
        if scales.shape[0]:
            for place in range(shape.active):
                woken.shares[row, place] *= scales[chosen[row, place]]
        done(counters, phase)
    wait(counters, phase, rows)


@kernel
def grouped(rows, shape, woken, chosen, rank):  # type: ignore[no-untyped-def]
    """This thread's lists of who wakes whom (memory.Woken); returns how many experts are awake, and the rows of the one
    that most rows wake.

    `chosen` belongs to this forward and layer alone: a thread that comes late must count the tasks of each phase as the
    others did, also when these are layers or a forward ahead.
    """
    counts, begins, awake = woken.counts[rank], woken.begins[rank], woken.awake[rank]
    counts[:] = 0
    for row in range(rows):
        for place in range(shape.active):
            expert = chosen[row, place]
            woken.numbers[rank, row * shape.active + place] = counts[expert]
            counts[expert] += 1
    number, at, most = 0, 0, 0
    for expert in range(shape.experts):
        count = counts[expert]
        if count:
            awake[number] = expert
            number += 1
            begins[expert] = at
            at += count // ROWS * ROWS + HEIGHT_OF[count % ROWS]
            most = max(most, count)
    return number, most


@kernel
def gather_phase(counters, phase, rows, shape, work, forms, chosen, rank):  # type: ignore[no-untyped-def]
    """The normalised rows beside those that wake the same expert, as what products read."""
    woken, size = work.woken, shape.hidden
    while True:
        task = take(counters, phase)
        if task >= rows * shape.active:
            break
        row, number = task // shape.active, woken.numbers[rank, task]
        expert = chosen[row, task % shape.active]
        begin = woken.begins[rank, expert]
        x = work.input.plain[row * size : (row + 1) * size]
        woken.input.plain[(begin + number) * size : (begin + number + 1) * size] = x
        quantise(x, forms, begin, number, woken.counts[rank, expert], woken.input)
        done(counters, phase)
    wait(counters, phase, rows * shape.active)


@kernel
def expert_tile(height, awake, most, threads):  # type: ignore[no-untyped-def]
    """Rows of an expert's matrix in one task."""
    return min(tile_size(height * awake, most, threads), height)


@kernel
def expert_tasks(  # type: ignore[no-untyped-def]
    counters, phase, matrix, height, awake, most, woken, rank, out, threads
):
    """One matrix of every expert that is awake, `height` rows of each, times the rows that wake it, into `out` [places,
    height]. Does not wait."""
    tile = expert_tile(height, awake, most, threads)
    tiles = (height + tile - 1) // tile
    while True:
        task = take(counters, phase)
        if task >= awake * tiles:
            break
        expert = woken.awake[rank, task // tiles]
        first, begin = task % tiles * tile, woken.begins[rank, expert]
        product(
            matrix, expert * height, first, min(first + tile, height), begin, woken.counts[rank, expert],
            woken.input, out[begin].ctypes.data, height * 4,
        )  # fmt: skip
        done(counters, phase)


@kernel
def expert_wait(counters, phase, height, awake, most, threads):  # type: ignore[no-untyped-def]
    """Until expert_tasks is done."""
    tile = expert_tile(height, awake, most, threads)
    wait(counters, phase, awake * ((height + tile - 1) // tile))


@kernel
def expert_gate_phase(  # type: ignore[no-untyped-def]
    counters, phase, rows, shape, forms, gate_biases, up_biases, woken, chosen, rank
):
    """phases.gate_phase of every row at each of its experts. Biases [experts, inner], or empty."""
    size = shape.inner
    while True:
        task = take(counters, phase)
        if task >= rows * shape.active:
            break
        number, expert = woken.numbers[rank, task], chosen[task // shape.active, task % shape.active]
        begin = woken.begins[rank, expert]
        at = begin + number
        if gate_biases.shape[0]:
            added(woken.gate[at], gate_biases[expert], ONE)
            added(woken.up[at], up_biases[expert], ONE)
        plain = woken.input.plain[at * size : (at + 1) * size]
        gates, ups = woken.gate[at].ctypes.data, woken.up[at].ctypes.data
        gated(shape.activation, gates, ups, size, plain.ctypes.data)
        quantise(plain, forms, begin, number, woken.counts[rank, expert], woken.input)
        done(counters, phase)
    wait(counters, phase, rows * shape.active)


@kernel
def add_phase(counters, phase, rows, shape, biases, work, chosen, rank):  # type: ignore[no-untyped-def]
    """What a row's experts bring, each by its share, added in the order of their rank. Biases [experts, hidden], or
    empty."""
    woken = work.woken
    while True:
        row = take(counters, phase)
        if row >= rows:
            break
        out = work.out[row]
        out[:] = ZERO
        for place in range(shape.active):
            share, expert = woken.shares[row, place], chosen[row, place]
            at = woken.begins[rank, expert] + woken.numbers[rank, row * shape.active + place]
            brought = woken.out[at]
            if biases.shape[0]:
                added(brought, biases[expert], ONE)
            for j in range(shape.hidden):
                out[j] = fma(share, brought[j], out[j])
        done(counters, phase)
    wait(counters, phase, rows)
