"""Compute the phases of a forward: tasks that the threads of a team take from a counter until none is left.
Any thread may do a task with the same bits. A row's bits depend only on its own experts, in the order of their rank."""

from __future__ import annotations

import sys
from typing import NamedTuple

import numpy as np
from numba import njit, types

from hierchat.engine.cpu import rows as by_row
from hierchat.engine.cpu.attention import attend_chunk, attend_tail, first_seen, merge, store
from hierchat.engine.cpu.llvm import atomic_add, atomic_load, fma, kernel, pause
from hierchat.engine.cpu.memory import CHUNK, FLOATS, GATED, MATRIX_ROWS, K, V
from hierchat.engine.cpu.rows import ONE, ROWS, ZERO, added, normalise, pass_rows, product, quantise
from hierchat.engine.cpu.softmax import clamped_gate, gelu_gate, relu_squared, sigmoid_gate, silu_gate
from hierchat.jit import LANES
from hierchat.models.architectures.families import ACTIVATIONS, CLAMPED

SPINS = 4000
"""Looks at a counter before a waiting thread offers its core to others."""
TILES = 3
"""Tiles of a matrix per thread: each costs two counters that travel between cores."""
LARGEST_TILE = 64
"""Rows of weights that stay in the first cache while one group of activations after another passes over them."""
SILU, CLAMPED_SILU, RELU2 = (ACTIVATIONS.index(name) for name in ("silu", CLAMPED, "relu2"))
NEARLY_NOTHING = np.float32(1e-20)
COUNTER = 16
"""int64s from one phase's counters to the next: taken and done, each in a cache line of its own."""

# The phases of a layer, each with a counter of its own. Not every layer has all of them: some have routed experts, a
# dense MLP beside these, or an input of their own. What comes before the first layer and behind the last one counts as
# the phases of one more layer.
PHASES = 46
(
    NORM, QUERY, KEY, VALUE, PLACE, ATTENTION, TAIL, MERGE, OUTPUT, INNER_NORM, GATE_UP, BACK,
    DENSE_GATE_UP, DENSE_BACK, HOLD, ROUTE, CHOOSE, EXPERT_NORM, GATHER, EXPERT_GATE, EXPERT_UP, ACTIVATE,
    EXPERT_BACK, ADD, JOIN, INPUT_NORM, INPUT_GATE, INPUT_OPEN, INPUT_BACK,
    EMBEDDING_NORM, EMBEDDING_PRODUCT, EMBEDDING_ADD, HEAD_NORM, HEAD, CAP,
    MIX, Z, BETA, ALPHA, INPUTS, CONVOLVE, ADVANCE, LEAVE, ATTENTION_GATE, DENSE_SCALE, SHARE,
) = range(PHASES)  # fmt: skip


class ForwardRun(NamedTuple):
    """State of a forward as one thread of the team sees it."""

    counters: int
    """Address of int64s, all zero: COUNTER for each phase."""
    threads: int
    rank: int
    """Number of this thread among those of the forward, 0 for the one that asks."""


if sys.platform == "win32":

    @kernel
    def rest():  # type: ignore[no-untyped-def]
        pause()

else:
    _sched_yield = types.ExternalFunction("sched_yield", types.int32())

    @kernel
    def rest():  # type: ignore[no-untyped-def]
        _sched_yield()


@njit(error_model="numpy")  # not kept on disk: numba cannot use a generator that it has read
def tasks(counters, phase, count):  # type: ignore[no-untyped-def]
    """Iterate over the tasks 0 .. count - 1 of a phase that this thread takes; each ends when the next is asked for."""
    counter = counters + phase * COUNTER * 8
    task = atomic_add(counter, 1)
    while task < count:
        yield task
        atomic_add(counter + 64, 1)
        task = atomic_add(counter, 1)


@kernel
def wait(run, phase, count):  # type: ignore[no-untyped-def]
    """Wait until all tasks of a phase are done."""
    counter = run.counters + phase * COUNTER * 8 + 64
    spins = 0
    while atomic_load(counter) < count:
        pause()
        spins += 1
        if spins > SPINS:
            rest()


@kernel
def norm_phase(  # type: ignore[no-untyped-def]
    run, phase, rows, shape, work, forms, bias, before, norm, adding, factor
):
    """Add the last product to the residual stream (`adding`), multiply by `factor`, normalise and quantise in `forms`.
    `bias` and `before` apply to the product first. Empty arrays leave steps out."""
    scale = np.float32(shape.residual_scale)
    size = work.x.shape[1]
    for row in tasks(run.counters, phase, rows):
        if adding:
            if bias.shape[0]:
                added(work.out[row], bias, ONE)
            if before.shape[0]:
                normalise(work.out[row], before, shape.epsilon, work.out[row])
            added(work.x[row], work.out[row], scale)
        if factor != ONE:
            by_row.multiplied(work.x[row], factor)
        plain = work.input.plain[row * size : (row + 1) * size]
        if norm.shape[0]:
            normalise(work.x[row], norm, shape.epsilon, plain)
        else:
            plain[:] = work.x[row]
        quantise(plain, forms, 0, row, rows, work.input)
    wait(run, phase, rows)


@kernel
def tile_size(outputs, rows, threads):  # type: ignore[no-untyped-def]
    """Return how many rows of a matrix of `outputs` rows one task computes."""
    tile = max((outputs // (threads * TILES) + LANES - 1) // LANES * LANES, LANES)
    return tile if rows <= ROWS else min(tile, LARGEST_TILE)


@kernel
def product_tasks(run, phase, matrix, rows, given, out, stride):  # type: ignore[no-untyped-def]
    """Multiply a matrix with all rows, tile by tile (see rows.product), without waiting for other threads."""
    outputs = matrix[MATRIX_ROWS]
    tile = tile_size(outputs, rows, run.threads)
    for number in tasks(run.counters, phase, (outputs + tile - 1) // tile):
        first = number * tile
        product(matrix, 0, first, min(first + tile, outputs), 0, rows, given, out, stride)


@kernel
def row_tasks(run, phase, matrix, rows, given, out):  # type: ignore[no-untyped-def]
    """Multiply a matrix with all rows into float32 `out` [rows padded to ROWS, ...], without waiting."""
    product_tasks(run, phase, matrix, rows, given, np.int64(out.ctypes.data), out.shape[1] * 4)


@kernel
def product_wait(run, phase, matrix, rows):  # type: ignore[no-untyped-def]
    """Wait until every thread's product_tasks of a phase are done."""
    tile = tile_size(matrix[MATRIX_ROWS], rows, run.threads)
    wait(run, phase, (matrix[MATRIX_ROWS] + tile - 1) // tile)


@kernel
def product_phase(run, phase, matrix, rows, given, out):  # type: ignore[no-untyped-def]
    """Multiply a matrix with all rows into float32 `out` [rows padded to ROWS, ...], and wait until all is done."""
    row_tasks(run, phase, matrix, rows, given, out)
    product_wait(run, phase, matrix, rows)


@kernel
def place_phase(run, phase, rows, texts, shape, weights, slots, qkv, work, layer):  # type: ignore[no-untyped-def]
    """Add biases, normalise and rotate queries, keys and values, and store keys and values in the segments' slots."""
    rotation, kept = weights.rotations[layer], weights.slots[layer]
    every = shape.heads * shape.head_dim
    own = weights.matrices[layer, K, MATRIX_ROWS] > 0
    heads = shape.heads + 2 * shape.kv_heads if own else shape.heads
    copied = shape.kv_heads if own and weights.matrices[layer, V, MATRIX_ROWS] == 0 else 0
    for row in tasks(run.counters, phase, rows):
        position = work.positions[row]
        cosines = weights.cosines[rotation, position, : shape.rotary_pairs]
        sines = weights.sines[rotation, position, : shape.rotary_pairs]
        factor = weights.query_scales[position]
        for h in range(shape.heads, shape.heads + copied):
            for j in range(shape.head_dim):
                qkv[row, h + copied, j] = qkv[row, h, j]
        if shape.joint_norms:
            whole = qkv[row].reshape(-1)
            queries, keys = whole[:every], whole[every : every + shape.kv_heads * shape.head_dim]
            normalise(queries, weights.query_norms[layer], shape.epsilon, queries)
            normalise(keys, weights.key_norms[layer], shape.epsilon, keys)
        text = work.texts[row]
        slot = texts.starts[text] + row - texts.rows[text]
        page, at = texts.pages[text, slot // CHUNK], slot % CHUNK
        for h in range(heads):
            head = qkv[row, h]
            if weights.biases.shape[0]:
                added(head, weights.biases[layer, h], ONE)
            if h >= shape.heads + shape.kv_heads:
                kv = h - shape.heads - shape.kv_heads
                if weights.value_norms.shape[0]:
                    normalise(head, weights.value_norms, shape.epsilon, head)
                store(head, slots.values[page, kept, kv], slots.value_scales[page, kept, kv], at, 1)
                continue
            if weights.query_norms.shape[0] and not shape.joint_norms:
                norms = weights.query_norms if h < shape.heads else weights.key_norms
                normalise(head, norms[layer], shape.epsilon, head)
            if rotation >= 0:
                by_row.rotate(head, cosines, sines, shape.rotary_offset)
            if h < shape.heads:
                for j in range(shape.head_dim):
                    head[j] *= factor
            else:
                kv = h - shape.heads
                store(head, slots.keys[page, kept, kv], slots.key_scales[page, kept, kv], at, 0)
    wait(run, phase, rows)


@kernel
def attention_phase(  # type: ignore[no-untyped-def]
    run, phase, rows, texts, shape, window, slots, qkv, places, work, kept, identity, attended
):
    """Attend with every kv head to every whole chunk of a text, then to the tail for every row. `kept`: its layer."""
    group, scratch = shape.heads // shape.kv_heads, work.scratch[run.rank]
    unseen = first_seen(texts.starts.min(), window) // CHUNK
    whole = max(texts.starts.max() // CHUNK - unseen, 0)
    wholes = texts.starts.shape[0] * shape.kv_heads * whole
    for task in tasks(run.counters, phase, wholes):
        text, head = task // whole // shape.kv_heads, task // whole % shape.kv_heads
        chunk = unseen + task % whole
        first, last = texts.rows[text], texts.rows[text + 1]
        if first < rows and chunk < texts.starts[text] // CHUNK:
            attend_chunk(
                qkv[first:last], work.positions[first:last], window, texts.pages[text, chunk], chunk, head,
                group, slots, kept, shape.score_cap, attended[first:last], identity, scratch,
            )  # fmt: skip
    tails = rows * shape.kv_heads
    for task in tasks(run.counters, phase + 1, tails):
        head, row = task % shape.kv_heads, task // shape.kv_heads
        attend_tail(
            qkv, texts, work.texts[row], row, head, group, slots, kept, shape.score_cap, attended, work, window,
            places, scratch,
        )  # fmt: skip
    wait(run, phase, wholes)
    wait(run, phase + 1, tails)


@kernel
def merge_phase(run, phase, rows, shape, window, sinks, work, gates, forms, attended):  # type: ignore[no-untyped-def]
    """Merge the chunks' attention in order; `gates` of work, one per number or head, open the result."""
    size = shape.heads * shape.head_dim
    for row in tasks(run.counters, phase, rows):
        plain = work.input.plain[row * size : (row + 1) * size]
        position = work.positions[row]
        begin, end = first_seen(position, window) // CHUNK, position // CHUNK + 1
        for h in range(shape.heads):
            out = plain[h * shape.head_dim : (h + 1) * shape.head_dim]
            merge(attended[row, h, begin:end], sinks[h : h + 1], out)
            if gates == shape.heads:
                by_row.multiplied(out, ONE / (ONE + np.exp(-work.gates[row, h])))
        if gates > shape.heads:
            opened = plain.ctypes.data
            sigmoid_gate(work.gates[row].ctypes.data, opened, size, opened)
        quantise(plain, forms, 0, row, rows, work.input)
    wait(run, phase, rows)


@kernel
def gated(activation, gates, ups, size, out):  # type: ignore[no-untyped-def]
    """Compute SwiGLU, GeGLU, gpt-oss' clamped gate or, without a gate, ReLU squared; of float32 [size] at addresses."""
    if activation == SILU:
        silu_gate(gates, ups, size, out)
    elif activation == RELU2:
        relu_squared(ups, ups, size, out)
    elif activation == CLAMPED_SILU:
        clamped_gate(gates, ups, size, out)
    else:
        gelu_gate(gates, ups, size, out)


@kernel
def cap_phase(run, phase, rows, cap, logits):  # type: ignore[no-untyped-def]
    for row in tasks(run.counters, phase, rows):
        by_row.capped(logits[row], cap)
    wait(run, phase, rows)


@kernel
def gate_up_phase(run, phase, gate, up, forms, rows, shape, work):  # type: ignore[no-untyped-def]
    """Compute gate, up and activation into the `forms` that the down projection reads, a tile and a pass at a time."""
    size, unit, scratch = up[MATRIX_ROWS], by_row.unit_of(forms), work.scratch[run.rank]
    room = ROWS * GATED
    most = room // pass_rows(0, rows) // unit * unit
    tile = min((tile_size(size, rows, run.threads) + unit - 1) // unit * unit, most)
    gates, ups, product_of = scratch[:room], scratch[room : 2 * room], scratch[2 * room : 3 * room]
    count = (size + tile - 1) // tile
    for number in tasks(run.counters, phase, count):
        first = number * tile
        width = min(first + tile, size) - first
        for begin in range(0, rows, ROWS):
            these = min(ROWS, rows - begin)
            for matrix, out in ((gate, gates), (up, ups)):
                if not matrix[MATRIX_ROWS]:  # without a gate
                    continue
                product(
                    matrix, 0, first, first + width, begin, these, work.input,
                    np.int64(out.ctypes.data) - first * 4, width * 4,
                )  # fmt: skip
            for row in range(these):
                at = (begin + row) * size + first
                plain = work.inner.plain[at : at + width] if forms & FLOATS else product_of[:width]
                own = slice(row * width, (row + 1) * width)
                gated(
                    shape.activation, gates[own].ctypes.data, ups[own].ctypes.data, width, plain.ctypes.data
                )
                by_row.quantise_part(plain, first, size, forms, 0, begin + row, rows, work.inner)
    wait(run, phase, count)


@kernel
def hold_phase(run, phase, rows, layer, shape, work, forms, dense, opened):  # type: ignore[no-untyped-def]
    """Store the output of the dense MLP beside the experts (memory.DenseMlp): `opened` by its gate, or normalised."""
    size = shape.hidden
    for row in tasks(run.counters, phase, rows):
        if not dense.after_dense_norms.shape[1]:
            dense.held[row] = work.out[row]
            if opened:
                by_row.multiplied(dense.held[row], ONE / (ONE + np.exp(-dense.gates[row, 0])))
            continue
        normalise(work.out[row], dense.after_dense_norms[layer], shape.epsilon, dense.held[row])
        plain = work.input.plain[row * size : (row + 1) * size]
        normalise(work.x[row], dense.router_norms[layer], shape.epsilon, plain)
        quantise(plain, forms, 0, row, rows, work.input)
    wait(run, phase, rows)


@kernel
def join_phase(run, phase, rows, layer, shape, work, dense):  # type: ignore[no-untyped-def]
    """Normalise the experts' output, and add what the dense MLP brought."""
    for row in tasks(run.counters, phase, rows):
        if dense.after_expert_norms.shape[1]:
            normalise(work.out[row], dense.after_expert_norms[layer], shape.epsilon, work.out[row])
        added(work.out[row], dense.held[row], ONE)
    wait(run, phase, rows)


@kernel
def input_phase(run, phase, rows, inputs):  # type: ignore[no-untyped-def]
    """Normalise the embedding's part of each layer's own input, and add it to the token's part (memory.Inputs)."""
    for row in tasks(run.counters, phase, rows):
        for layer in range(inputs.layers.shape[1]):
            part = inputs.projected[row, layer]
            normalise(part, inputs.norm, inputs.epsilon, part)
            added(inputs.layers[row, layer], part, ONE)
    wait(run, phase, rows)


@kernel
def open_phase(run, phase, rows, layer, shape, work, forms, inputs):  # type: ignore[no-untyped-def]
    """Gate a layer's own input by the last product, and quantise the result for the next product."""
    size = inputs.layers.shape[2]
    for row in tasks(run.counters, phase, rows):
        plain = work.input.plain[row * size : (row + 1) * size]
        gates, ups = work.gate[row].ctypes.data, inputs.layers[row, layer].ctypes.data
        gated(shape.activation, gates, ups, size, plain.ctypes.data)
        quantise(plain, forms, 0, row, rows, work.input)
    wait(run, phase, rows)


@kernel
def choose(scores, shared_by_active, bias, chosen, shares):  # type: ignore[no-untyped-def]
    """Choose a row's experts with the best `scores` [experts] into `chosen` [active], and their weights into `shares`:
    a softmax over these (`shared_by_active`) or over all. With a `bias` [experts], which counts in the choice only,
    a score is the logistic function of the router's."""
    experts, active, logistic = scores.shape[0], chosen.shape[0], bias.shape[0] > 0
    if logistic:
        for expert in range(experts):
            scores[expert] = ONE / (ONE + np.exp(-scores[expert])) + bias[expert]
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
        expert = chosen[rank]
        shares[rank] = scores[expert] - bias[expert] if logistic else np.exp(scores[expert] - highest)
        total += shares[rank]
    if logistic:
        total = total + NEARLY_NOTHING if shared_by_active else ONE
    elif not shared_by_active:
        total = ZERO
        for expert in range(experts):
            total += np.exp(scores[expert] - highest)
    for rank in range(active):
        shares[rank] /= total


@kernel
def choose_phase(run, phase, rows, shape, bias, scales, routed, chosen):  # type: ignore[no-untyped-def]
    """Choose every row's experts, and multiply their shares by their `scales`, unless these are empty."""
    for row in tasks(run.counters, phase, rows):
        if bias.shape[0] and not shape.logistic:
            added(routed.scores[row], bias, ONE)
        own = bias if shape.logistic else bias[:0]
        choose(routed.scores[row], shape.shared_by_active, own, chosen[row], routed.shares[row])
        if scales.shape[0]:
            for place in range(shape.active):
                routed.shares[row, place] *= scales[chosen[row, place]]
    wait(run, phase, rows)


@kernel
def grouped(rows, shape, routed, chosen, rank):  # type: ignore[no-untyped-def]
    """List this thread's rows of each expert (memory.RoutedExperts); return how many experts have rows, and the most
    rows. A late thread counts the same rows as the others, because `chosen` is only of this forward and layer."""
    counts, begins, used = routed.counts[rank], routed.begins[rank], routed.used[rank]
    counts[:] = 0
    for row in range(rows):
        for place in range(shape.active):
            expert = chosen[row, place]
            routed.numbers[rank, row * shape.active + place] = counts[expert]
            counts[expert] += 1
    number, at, most = 0, 0, 0
    for expert in range(shape.experts):
        count = counts[expert]
        if count:
            used[number] = expert
            number += 1
            begins[expert] = at
            at += count // ROWS * ROWS + by_row.PASS_ROWS[count % ROWS]
            most = max(most, count)
    return number, most


@kernel
def gather_phase(run, phase, rows, shape, work, forms, chosen):  # type: ignore[no-untyped-def]
    """Copy the normalised rows next to those of the same expert, as what products read."""
    routed, size, rank = work.routed, shape.hidden, run.rank
    for task in tasks(run.counters, phase, rows * shape.active):
        row, number = task // shape.active, routed.numbers[rank, task]
        expert = chosen[row, task % shape.active]
        begin = routed.begins[rank, expert]
        x = work.input.plain[row * size : (row + 1) * size]
        routed.input.plain[(begin + number) * size : (begin + number + 1) * size] = x
        quantise(x, forms, begin, number, routed.counts[rank, expert], routed.input)
    wait(run, phase, rows * shape.active)


@kernel
def expert_tile(outputs, used, most, threads):  # type: ignore[no-untyped-def]
    """Return how many rows of an expert's matrix one task computes."""
    return min(tile_size(outputs * used, most, threads), outputs)


@kernel
def expert_tasks(run, phase, matrix, outputs, used, most, routed, out):  # type: ignore[no-untyped-def]
    """Multiply one matrix of every expert by its rows into `out` [places, outputs]. Does not wait."""
    tile = expert_tile(outputs, used, most, run.threads)
    tiles = (outputs + tile - 1) // tile
    for task in tasks(run.counters, phase, used * tiles):
        expert = routed.used[run.rank, task // tiles]
        first, begin = task % tiles * tile, routed.begins[run.rank, expert]
        product(
            matrix, expert * outputs, first, min(first + tile, outputs), begin, routed.counts[run.rank, expert],
            routed.input, out[begin].ctypes.data, outputs * 4,
        )  # fmt: skip


@kernel
def expert_wait(run, phase, outputs, used, most):  # type: ignore[no-untyped-def]
    """Wait until every thread's expert_tasks of a phase are done."""
    tile = expert_tile(outputs, used, most, run.threads)
    wait(run, phase, used * ((outputs + tile - 1) // tile))


@kernel
def expert_gate_phase(  # type: ignore[no-untyped-def]
    run, phase, rows, shape, forms, gate_biases, up_biases, routed, chosen
):
    """Compute the activation of every row at each of its experts. Biases [experts, inner], or empty."""
    size, rank = shape.inner, run.rank
    for task in tasks(run.counters, phase, rows * shape.active):
        number, expert = routed.numbers[rank, task], chosen[task // shape.active, task % shape.active]
        begin = routed.begins[rank, expert]
        at = begin + number
        if gate_biases.shape[0]:
            added(routed.gate[at], gate_biases[expert], ONE)
            added(routed.up[at], up_biases[expert], ONE)
        plain = routed.input.plain[at * size : (at + 1) * size]
        gates, ups = routed.gate[at].ctypes.data, routed.up[at].ctypes.data
        gated(shape.activation, gates, ups, size, plain.ctypes.data)
        quantise(plain, forms, begin, number, routed.counts[rank, expert], routed.input)
    wait(run, phase, rows * shape.active)


@kernel
def add_phase(run, phase, rows, shape, biases, work, chosen):  # type: ignore[no-untyped-def]
    """Add up the outputs of a row's experts in the order of their rank. Biases [experts, hidden], or empty."""
    routed, rank = work.routed, run.rank
    for row in tasks(run.counters, phase, rows):
        out = work.out[row]
        out[:] = ZERO
        for place in range(shape.active):
            share, expert = routed.shares[row, place], chosen[row, place]
            at = routed.begins[rank, expert] + routed.numbers[rank, row * shape.active + place]
            brought = routed.out[at]
            if biases.shape[0]:
                added(brought, biases[expert], ONE)
            for j in range(shape.hidden):
                out[j] = fma(share, brought[j], out[j])
    wait(run, phase, rows)
