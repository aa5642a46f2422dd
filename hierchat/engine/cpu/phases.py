"""The phases of a forward: tasks that the threads of a team take from a counter until none is left.

A thread that comes late, or loses its core, leaves its tasks to the others. Which thread does a task changes no bit."""

from __future__ import annotations

import sys

import numpy as np
from numba import types

from hierchat.engine.cpu.attention import attend_chunk, attend_tail, first_seen, merge, store
from hierchat.engine.cpu.llvm import atomic_add, atomic_load, kernel, pause
from hierchat.engine.cpu.memory import CHUNK, FLOATS, GATED, HEIGHT, K, V
from hierchat.engine.cpu.rows import (
    ONE,
    ROWS,
    added,
    capped,
    height_at,
    multiplied,
    normalise,
    product,
    quantise,
    quantise_part,
    rotate,
    unit_of,
)
from hierchat.engine.cpu.softmax import clamped_gate, gelu_gate, silu_gate
from hierchat.jit import LANES
from hierchat.models.architectures.families import ACTIVATIONS, CLAMPED

SPINS = 4000
"""Looks at a counter before a waiting thread offers its core to others."""
TILES = 3
"""Tiles of a matrix per thread: each costs two counters that travel between cores."""
LARGEST_TILE = 64
"""Rows of weights that stay in the first cache while one group of activations after another passes over them."""
SILU, CLAMPED_SILU = ACTIVATIONS.index("silu"), ACTIVATIONS.index(CLAMPED)
COUNTER = 16
"""int64s from one phase's counters to the next: taken and done, each in a cache line of its own."""

if sys.platform == "win32":

    @kernel
    def rest():  # type: ignore[no-untyped-def]
        pause()

else:
    _sched_yield = types.ExternalFunction("sched_yield", types.int32())

    @kernel
    def rest():  # type: ignore[no-untyped-def]
        _sched_yield()


@kernel
def take(counters, phase):  # type: ignore[no-untyped-def]
    """The number of the next task of this phase."""
    return atomic_add(counters.ctypes.data + phase * COUNTER * 8, 1)


@kernel
def done(counters, phase):  # type: ignore[no-untyped-def]
    atomic_add(counters.ctypes.data + phase * COUNTER * 8 + 64, 1)


@kernel
def wait(counters, phase, tasks):  # type: ignore[no-untyped-def]
    """Until all tasks of a phase are done."""
    spins = 0
    while atomic_load(counters.ctypes.data + phase * COUNTER * 8 + 64) < tasks:
        pause()
        spins += 1
        if spins > SPINS:
            rest()


@kernel
def norm_phase(  # type: ignore[no-untyped-def]
    counters, phase, rows, shape, work, forms, bias, before, norm, adding, factor
):
    """The residual stream takes in the last product (`adding`), is multiplied by `factor` and normalised, and becomes
    what products read, in the `forms` that they want. The product itself gets `bias` and is normalised by `before`.
    What is empty is left out."""
    scale = np.float32(shape.residual_scale)
    size = work.x.shape[1]
    while True:
        row = take(counters, phase)
        if row >= rows:
            break
        if adding:
            if bias.shape[0]:
                added(work.out[row], bias, ONE)
            if before.shape[0]:
                normalise(work.out[row], before, shape.epsilon, work.out[row])
            added(work.x[row], work.out[row], scale)
        if factor != ONE:
            multiplied(work.x[row], factor)
        plain = work.input.plain[row * size : (row + 1) * size]
        if norm.shape[0]:
            normalise(work.x[row], norm, shape.epsilon, plain)
        else:
            plain[:] = work.x[row]
        quantise(plain, forms, 0, row, rows, work.input)
        done(counters, phase)
    wait(counters, phase, rows)


@kernel
def tile_size(height, rows, threads):  # type: ignore[no-untyped-def]
    """Rows of a matrix in one task."""
    tile = max((height // (threads * TILES) + LANES - 1) // LANES * LANES, LANES)
    return tile if rows <= ROWS else min(tile, LARGEST_TILE)


@kernel
def product_tasks(counters, phase, matrix, rows, given, out, stride, threads):  # type: ignore[no-untyped-def]
    """A matrix times all rows, tile by tile; see product. Does not wait."""
    height = matrix[HEIGHT]
    tile = tile_size(height, rows, threads)
    while True:
        first = take(counters, phase) * tile
        if first >= height:
            break
        product(matrix, 0, first, min(first + tile, height), 0, rows, given, out, stride)
        done(counters, phase)


@kernel
def product_wait(counters, phase, matrix, rows, threads):  # type: ignore[no-untyped-def]
    """Until product_tasks is done."""
    tile = tile_size(matrix[HEIGHT], rows, threads)
    wait(counters, phase, (matrix[HEIGHT] + tile - 1) // tile)


@kernel
def place_phase(  # type: ignore[no-untyped-def]
    counters, phase, rows, texts, shape, weights, slots, qkv, work, layer
):
    """Biases, query, key and value norms, rotary positions; keys and values, where the layer has its own, go into the
    blocks' slots. Without values of its own, these are its keys before norm and rotation."""
    rotation, kept = weights.rotations[layer], weights.slots[layer]
    every = shape.heads * shape.head_dim
    own = weights.matrices[layer, K, HEIGHT] > 0
    heads = shape.heads + 2 * shape.kv_heads if own else shape.heads
    copied = shape.kv_heads if own and weights.matrices[layer, V, HEIGHT] == 0 else 0
    while True:
        row = take(counters, phase)
        if row >= rows:
            break
        position = work.positions[row]
        cosines = weights.cosines[rotation, position, : shape.turned]
        sines = weights.sines[rotation, position, : shape.turned]
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
                rotate(head, cosines, sines, shape.apart)
            if h < shape.heads:
                for j in range(shape.head_dim):
                    head[j] *= factor
            else:
                kv = h - shape.heads
                store(head, slots.keys[page, kept, kv], slots.key_scales[page, kept, kv], at, 0)
        done(counters, phase)
    wait(counters, phase, rows)


@kernel
def attention_phase(  # type: ignore[no-untyped-def]
    counters, phase, rows, texts, shape, window, slots, qkv, places, work, kept, identity, attended, scratch
):
    """Every kv head against every whole chunk of a text, and against the tail for every row. Two counters. `kept`: the
    layer of the slots."""
    group = shape.heads // shape.kv_heads
    unseen = first_seen(texts.starts.min(), window) // CHUNK
    whole = max(texts.starts.max() // CHUNK - unseen, 0)
    wholes = texts.starts.shape[0] * shape.kv_heads * whole
    while True:
        task = take(counters, phase)
        if task >= wholes:
            break
        text, head = task // whole // shape.kv_heads, task // whole % shape.kv_heads
        chunk = unseen + task % whole
        first, last = texts.rows[text], texts.rows[text + 1]
        if first < rows and chunk < texts.starts[text] // CHUNK:
            attend_chunk(
                qkv[first:last], work.positions[first:last], window, texts.pages[text, chunk], chunk, head,
                group, slots, kept, shape.score_cap, attended[first:last], identity, scratch,
            )  # fmt: skip
        done(counters, phase)
    tails = rows * shape.kv_heads
    while True:
        task = take(counters, phase + 1)
        if task >= tails:
            break
        head, row = task % shape.kv_heads, task // shape.kv_heads
        text = work.texts[row]
        attend_tail(
            qkv, texts.rows[text + 1] - texts.rows[text], texts.pages[text], texts.starts[text], row, head,
            group, slots, kept, shape.score_cap, attended, work.positions, window, work.order, places, scratch,
        )  # fmt: skip
        done(counters, phase + 1)
    wait(counters, phase, wholes)
    wait(counters, phase + 1, tails)


@kernel
def merge_phase(  # type: ignore[no-untyped-def]
    counters, phase, rows, shape, window, sinks, work, forms, attended
):
    """Chunks are added in order of position; the result becomes what the next product reads."""
    size = shape.heads * shape.head_dim
    while True:
        row = take(counters, phase)
        if row >= rows:
            break
        plain = work.input.plain[row * size : (row + 1) * size]
        position = work.positions[row]
        begin, end = first_seen(position, window) // CHUNK, position // CHUNK + 1
        for h in range(shape.heads):
            out = plain[h * shape.head_dim : (h + 1) * shape.head_dim]
            merge(attended[row, h, begin:end], sinks[h : h + 1], out)
        quantise(plain, forms, 0, row, rows, work.input)
        done(counters, phase)
    wait(counters, phase, rows)


@kernel
def gated(activation, gates, ups, size, out):  # type: ignore[no-untyped-def]
    """SwiGLU, GeGLU or gpt-oss' clamped gate of one row, by addresses of float32 [size]."""
    if activation == SILU:
        silu_gate(gates, ups, size, out)
    elif activation == CLAMPED_SILU:
        clamped_gate(gates, ups, size, out)
    else:
        gelu_gate(gates, ups, size, out)


@kernel
def cap_phase(counters, phase, rows, cap, logits):  # type: ignore[no-untyped-def]
    """Logits stay within a soft cap."""
    while True:
        row = take(counters, phase)
        if row >= rows:
            break
        capped(logits[row], cap)
        done(counters, phase)
    wait(counters, phase, rows)


@kernel
def gate_up_phase(  # type: ignore[no-untyped-def]
    counters, phase, gate, up, forms, rows, shape, work, threads, scratch
):
    """Gate and up projections and the activation, of a tile and of the rows of one pass at a time, so that what lies
    between them stays in the nearest cache (`scratch`); the result is what the down projection reads, in the `forms`
    that it wants."""
    size, unit = gate[HEIGHT], unit_of(forms)
    room = ROWS * GATED
    most = room // height_at(0, rows) // unit * unit
    tile = min((tile_size(size, rows, threads) + unit - 1) // unit * unit, most)
    gates, ups, product_of = scratch[:room], scratch[room : 2 * room], scratch[2 * room : 3 * room]
    while True:
        first = take(counters, phase) * tile
        if first >= size:
            break
        width = min(first + tile, size) - first
        for begin in range(0, rows, ROWS):
            count = min(ROWS, rows - begin)
            for matrix, out in ((gate, gates), (up, ups)):
                product(
                    matrix, 0, first, first + width, begin, count, work.input,
                    np.int64(out.ctypes.data) - first * 4, width * 4,
                )  # fmt: skip
            for row in range(count):
                at = (begin + row) * size + first
                plain = work.inner.plain[at : at + width] if forms & FLOATS else product_of[:width]
                own = slice(row * width, (row + 1) * width)
                gated(
                    shape.activation, gates[own].ctypes.data, ups[own].ctypes.data, width, plain.ctypes.data
                )
                quantise_part(plain, first, size, forms, 0, begin + row, rows, work.inner)
        done(counters, phase)
    wait(counters, phase, (size + tile - 1) // tile)


# The phases of layers that have experts beside what others have alone (memory.Beside).


@kernel
def hold_phase(counters, phase, rows, layer, shape, work, forms, beside):  # type: ignore[no-untyped-def]
    """What the others brought is normalised and held; the residual stream becomes what the router reads."""
    size = shape.hidden
    while True:
        row = take(counters, phase)
        if row >= rows:
            break
        normalise(work.out[row], beside.after_dense_norms[layer], shape.epsilon, beside.held[row])
        plain = work.input.plain[row * size : (row + 1) * size]
        normalise(work.x[row], beside.router_norms[layer], shape.epsilon, plain)
        quantise(plain, forms, 0, row, rows, work.input)
        done(counters, phase)
    wait(counters, phase, rows)


@kernel
def join_phase(counters, phase, rows, layer, shape, work, beside):  # type: ignore[no-untyped-def]
    """What the experts brought is normalised, and takes in what is held."""
    while True:
        row = take(counters, phase)
        if row >= rows:
            break
        normalise(work.out[row], beside.after_expert_norms[layer], shape.epsilon, work.out[row])
        added(work.out[row], beside.held[row], ONE)
        done(counters, phase)
    wait(counters, phase, rows)


# The phases of inputs that layers have of their own, beside the residual stream.


@kernel
def input_phase(counters, phase, rows, inputs):  # type: ignore[no-untyped-def]
    """The token's part of each layer's input takes in the embedding's, normalised (memory.Inputs)."""
    while True:
        row = take(counters, phase)
        if row >= rows:
            break
        for layer in range(inputs.layers.shape[1]):
            part = inputs.projected[row, layer]
            normalise(part, inputs.norm, inputs.epsilon, part)
            added(inputs.layers[row, layer], part, ONE)
        done(counters, phase)
    wait(counters, phase, rows)


@kernel
def open_phase(counters, phase, rows, layer, shape, work, forms, inputs):  # type: ignore[no-untyped-def]
    """As much of a layer's input as the last product opens becomes what the next product reads."""
    size = inputs.layers.shape[2]
    while True:
        row = take(counters, phase)
        if row >= rows:
            break
        plain = work.input.plain[row * size : (row + 1) * size]
        gates, ups = work.gate[row].ctypes.data, inputs.layers[row, layer].ctypes.data
        gated(shape.activation, gates, ups, size, plain.ctypes.data)
        quantise(plain, forms, 0, row, rows, work.input)
        done(counters, phase)
    wait(counters, phase, rows)
