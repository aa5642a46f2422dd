"""Compute attention over paged keys and values, chunk by chunk, in order of position.
A row's sums depend only on its own path, so its bits are the same in every segment."""

from __future__ import annotations

import numpy as np

from hierchat.engine.cpu.llvm import fma, kernel, rounded
from hierchat.engine.cpu.memory import CHUNK
from hierchat.engine.cpu.rows import MOST, NOTHING, ZERO
from hierchat.engine.cpu.softmax import QUERIES, score, soft_cap, weigh


@kernel
def lay_out(parents, start, pages, stride, positions, order, places):  # type: ignore[no-untyped-def]
    """Set the positions of a segment's nodes, and each one's path of slots after the last whole chunk (Work). parents
    int64 [n], -1 for committed text; pages int64 [chunks]; `stride`: slots of all heads and layers in a page."""
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
        order[node, last : last + 2] = start - base + node  # one more: weighed with zero behind an odd count
        for t in range(min(last + 2, order.shape[1])):
            at = base + order[node, t]
            places[node, t] = pages[at // CHUNK] * stride + at % CHUNK


@kernel
def store(head, numbers, scales, slot, along):  # type: ignore[no-untyped-def]
    """Store one key (along=0: a column of [head_dim, CHUNK]) or value (1: a row of [CHUNK, head_dim]) as int16."""
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
def first_seen(position, window):  # type: ignore[no-untyped-def]
    """Return the first position that a window of so many positions lets a query see; with `window` 0 it sees all."""
    return max(position + 1 - window, 0) if window else 0


@kernel
def queries_a_pass(group):  # type: ignore[no-untyped-def]
    """Return how many of a kv head's `group` queries pass over a chunk together, so that all passes are about equal."""
    passes = (group + QUERIES - 1) // QUERIES
    return (group + passes - 1) // passes


@kernel
def attend_chunk(  # type: ignore[no-untyped-def]
    queries, positions, window, page, chunk, head, group, slots, layer, cap, attended, identity, scratch
):
    """Let all rows attend to a whole chunk of committed slots, for the `group` query heads of one kv head.
    queries [rows, heads, head_dim]; attended [rows, heads, chunks, head_dim + 2]; `cap` of the scores, 0: none."""
    size = queries.shape[2]
    keys, key_scales = slots.keys[page, layer, head], slots.key_scales[page, layer, head]
    values, gains = slots.values[page, layer, head], slots.value_scales[page, layer, head]
    scores, together = scratch.ctypes.data, queries_a_pass(group)
    stride = attended.shape[2] * (size + 2) * 4
    for row in range(positions.shape[0]):
        begin = max(first_seen(positions[row], window) - chunk * CHUNK, 0)
        if begin >= CHUNK:
            continue
        for first in range(0, group, together):
            count = min(together, group - first)
            query = queries[row, head * group + first]
            out = attended[row, head * group + first, chunk]
            score(count, query.ctypes.data, keys.ctypes.data, key_scales.ctypes.data, size, scores, CHUNK * 4)
            if cap:
                soft_cap(scores, count * CHUNK, np.float32(cap))
            weigh(
                count, scores, CHUNK * 4, begin, CHUNK, gains.ctypes.data, values.ctypes.data,
                identity.ctypes.data, size, out.ctypes.data, stride,
            )  # fmt: skip


@kernel
def attend_tail(  # type: ignore[no-untyped-def]
    queries, texts, text, row, head, group, slots, layer, cap, attended, work, window, places, scratch
):
    """Let one row of a text's block attend to all slots from the last whole chunk on, along its own path."""
    rows, pages, start = texts.rows[text + 1] - texts.rows[text], texts.pages[text], texts.starts[text]
    size = queries.shape[2]
    begin = start // CHUNK
    chunks = (start + rows - 1) // CHUNK + 1 - begin
    width = chunks * CHUNK
    scores = scratch[: QUERIES * width].reshape(QUERIES, width)
    path = scratch[QUERIES * width : QUERIES * (width + CHUNK)].reshape(QUERIES, CHUNK)
    gains = scratch[QUERIES * (width + CHUNK) : QUERIES * (width + CHUNK) + CHUNK]
    values = slots.values[0, layer, head]
    scales = slots.value_scales.reshape(-1)[(layer * slots.values.shape[2] + head) * CHUNK :]
    stride = attended.shape[2] * (size + 2) * 4
    length = work.positions[row] + 1 - begin * CHUNK
    unseen = max(first_seen(work.positions[row], window) - begin * CHUNK, 0)
    together = queries_a_pass(group)
    for first in range(0, group, together):
        number = min(together, group - first)
        query = queries[row, head * group + first].ctypes.data
        for chunk in range(chunks):
            page = pages[begin + chunk]
            keys, key_scales = slots.keys[page, layer, head], slots.key_scales[page, layer, head]
            out = scores[0, chunk * CHUNK :]
            score(number, query, keys.ctypes.data, key_scales.ctypes.data, size, out.ctypes.data, width * 4)
        if cap:
            soft_cap(scores.ctypes.data, number * width, np.float32(cap))
        for chunk in range(unseen // CHUNK, -(-length // CHUNK)):
            since = max(unseen - chunk * CHUNK, 0)
            count = min(CHUNK, length - chunk * CHUNK)
            slot = places[row, chunk * CHUNK : chunk * CHUNK + CHUNK]
            for t in range(since, count):
                gains[t] = scales[slot[t]]
                at = work.order[row, chunk * CHUNK + t]
                for q in range(number):
                    path[q, t] = scores[q, at]
            share = attended[row, head * group + first, begin + chunk]
            weigh(
                number, path.ctypes.data, CHUNK * 4, since, count, gains.ctypes.data, values.ctypes.data,
                slot.ctypes.data, size, share.ctypes.data, stride,
            )  # fmt: skip


@kernel
def merge(parts, sink, out):  # type: ignore[no-untyped-def]
    """Merge one row's chunks of a head in order; parts [chunks, head_dim + 2], out [head_dim]; `sink` [1] or empty."""
    size = out.shape[0]
    highest, total = parts[0, size], parts[0, size + 1]
    for j in range(size):
        out[j] = parts[0, j]
    for chunk in range(1, parts.shape[0]):
        part = parts[chunk]
        most = part[size] if part[size] > highest else highest
        before, now = np.exp(highest - most), np.exp(part[size] - most)
        for j in range(size):
            out[j] = fma(out[j], before, part[j] * now)
        total = fma(total, before, part[size + 1] * now)
        highest = most
    if sink.shape[0]:
        most = sink[0] if sink[0] > highest else highest
        before = np.exp(highest - most)
        for j in range(size):
            out[j] *= before
        total = fma(total, before, np.exp(sink[0] - most))
    for j in range(size):
        out[j] /= total
