"""Attention over key-value slots, chunk by chunk of absolute positions, the chunks added in order of position.

Each row of a block attends alone: to a chunk's keys one by one in order of position, whether they are committed slots
or nodes of the tree, so that a row's bits depend on its own path and on nothing else.
"""

from __future__ import annotations

import numpy as np

from hierchat.engine.cpu.jit import kernel
from hierchat.engine.cpu.llvm import fma, rounded
from hierchat.engine.cpu.memory import CHUNK
from hierchat.engine.cpu.rows import MOST, NOTHING, ZERO
from hierchat.engine.cpu.softmax import score, weigh


@kernel
def lay_out(parents, start, positions, order):  # type: ignore[no-untyped-def]
    """Positions of a block's nodes, and for each the slots of its path from the last whole chunk on.

    parents int64 [n], -1 for what follows the committed text; node i lies in slot start + i.
    """
    base = start // CHUNK * CHUNK
    for node in range(parents.shape[0]):
        parent = parents[node]
        if parent < 0:
            positions[node] = start
            for t in range(start - base):
                order[node, t] = t
        else:
            positions[node] = positions[parent] + 1
            for t in range(positions[node] - base):
                order[node, t] = order[parent, t]
        last = positions[node] - base
        order[node, last] = start - base + node
        if last + 1 < order.shape[1]:
            order[node, last + 1] = (
                start - base + node
            )  # weighed with zero where a chunk ends on an odd count


@kernel
def store(head, numbers, scales, slot, along):  # type: ignore[no-untyped-def]
    """One key (along=0: a column of numbers [head_dim, CHUNK]) or value (1: a row of [CHUNK, head_dim]) as int16."""
    most, nothing = ZERO, ZERO
    for j in range(head.shape[0]):
        value = abs(head[j])
        most = value if value > most else most
        nothing += value * ZERO
    inverse = MOST / most if most > NOTHING and nothing == ZERO else ZERO
    scales[slot] = most / MOST + nothing
    for j in range(head.shape[0]):
        number = np.int16(rounded(head[j] * inverse)) if inverse > ZERO else np.int16(0)
        if along == 0:
            numbers[j, slot] = number
        else:
            numbers[slot, j] = number


@kernel
def unpack_keys(numbers, scales, out):  # type: ignore[no-untyped-def]
    """int16 [head_dim, CHUNK] times a scale per column."""
    for j in range(numbers.shape[0]):
        for t in range(CHUNK):
            out[j, t] = np.float32(numbers[j, t]) * scales[t]


@kernel
def unpack_values(numbers, scales, out):  # type: ignore[no-untyped-def]
    """int16 [CHUNK, head_dim] times a scale per row."""
    for t in range(CHUNK):
        scale = scales[t]
        for j in range(numbers.shape[1]):
            out[t, j] = np.float32(numbers[t, j]) * scale


@kernel
def attend_chunk(queries, rows, chunk, head, group, slots, layer, attended, identity, scratch):  # type: ignore[no-untyped-def]
    """All rows of a block against a whole chunk of committed slots, for the `group` query heads of one kv head.

    queries [rows, at least heads, head_dim]; attended [rows, heads, chunks, head_dim + 2].
    """
    size = queries.shape[2]
    keys = scratch[: size * CHUNK].reshape(size, CHUNK)
    values = scratch[size * CHUNK : 2 * size * CHUNK].reshape(CHUNK, size)
    scores = scratch[2 * size * CHUNK : 2 * size * CHUNK + CHUNK]
    unpack_keys(slots.keys[layer, head, chunk], slots.key_scales[layer, head, chunk], keys)
    unpack_values(slots.values[layer, head, chunk], slots.value_scales[layer, head, chunk], values)
    for row in range(rows):
        for h in range(head * group, (head + 1) * group):
            score(queries[row, h].ctypes.data, keys.ctypes.data, size, scores.ctypes.data)
            out = attended[row, h, chunk].ctypes.data
            weigh(scores.ctypes.data, CHUNK, values.ctypes.data, identity.ctypes.data, size, out)


@kernel
def attend_tail(  # type: ignore[no-untyped-def]
    queries, rows, start, first, last, head, group, slots, layer, attended, positions, order, scratch
):
    """Rows first to last of a block against everything from the last whole chunk on, each along its own path."""
    size = queries.shape[2]
    begin = start // CHUNK
    chunks = (start + rows - 1) // CHUNK + 1 - begin
    keys = scratch[: size * CHUNK].reshape(size, CHUNK)
    place = size * CHUNK
    values = scratch[place : place + chunks * CHUNK * size].reshape(chunks * CHUNK, size)
    place += chunks * CHUNK * size
    width = chunks * CHUNK
    scores = scratch[place : place + (last - first) * group * width].reshape((last - first) * group, width)
    place += (last - first) * group * width
    path = scratch[place : place + CHUNK]
    for chunk in range(chunks):
        at = begin + chunk
        unpack_keys(slots.keys[layer, head, at], slots.key_scales[layer, head, at], keys)
        unpack_values(
            slots.values[layer, head, at],
            slots.value_scales[layer, head, at],
            values[chunk * CHUNK : (chunk + 1) * CHUNK],
        )
        for row in range(first, last):
            for h in range(group):
                out = scores[(row - first) * group + h, chunk * CHUNK : (chunk + 1) * CHUNK]
                query = queries[row, head * group + h].ctypes.data
                score(query, keys.ctypes.data, size, out.ctypes.data)
    for row in range(first, last):
        length = positions[row] + 1 - begin * CHUNK
        for chunk in range(-(-length // CHUNK)):
            count = min(CHUNK, length - chunk * CHUNK)
            slot = order[row, chunk * CHUNK : chunk * CHUNK + CHUNK]
            for h in range(group):
                own = scores[(row - first) * group + h]
                for t in range(count):
                    path[t] = own[slot[t]]
                out = attended[row, head * group + h, begin + chunk]
                weigh(path.ctypes.data, count, values.ctypes.data, slot.ctypes.data, size, out.ctypes.data)


@kernel
def merge(parts, chunks, out):  # type: ignore[no-untyped-def]
    """A row's chunks of one head added in order of position; parts [chunks, head_dim + 2], out [head_dim]."""
    size = out.shape[0]
    highest, total = parts[0, size], parts[0, size + 1]
    for j in range(size):
        out[j] = parts[0, j]
    for chunk in range(1, chunks):
        part = parts[chunk]
        most = part[size] if part[size] > highest else highest
        before, now = np.exp(highest - most), np.exp(part[size] - most)
        for j in range(size):
            out[j] = fma(out[j], before, part[j] * now)
        total = fma(total, before, part[size + 1] * now)
        highest = most
    for j in range(size):
        out[j] /= total
