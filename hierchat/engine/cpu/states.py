"""Compute layers that keep a running state: Gated DeltaNet, Mamba 2 and short convolutions.

Let C be STEP. Chunk n holds the positions n C to (n + 1) C - 1. A row of chunk n reads the state from before chunk
n - 1 and the records of its own ancestors since, oldest first, and nothing else. So a row's bits depend on its own path
only, however its text was cut into forwards, and a tree needs no state per node: a rejected row is forgotten with its
record. A state is written once in C positions.

One recurrence serves both families. A head's state is a matrix [key size, value size]; with fades f, keys k, queries q
and changes d of a path, F(j, t) the product of the fades after j up to t:

    read(x) = F(s, t) S' x + sum over ancestors j of F(j, t) (k_j . x) d_j
    d_t     = rate (v_t - read(k_t)) for Gated DeltaNet, rate v_t for Mamba 2
    out_t   = read(q_t) + (k_t . q_t) d_t

Gated DeltaNet: Yang et al., 2024, arXiv 2412.06464. Mamba 2: Dao and Gu, 2024, arXiv 2405.21060."""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import carray, types

from hierchat.engine.cpu import llvm
from hierchat.engine.cpu.llvm import (
    F32,
    I8,
    I64,
    broadcast,
    fma,
    fused,
    i64,
    kernel,
    load,
    loop,
    store,
    vector,
)
from hierchat.engine.cpu.memory import (
    CONVOLUTION,
    DELTA,
    MAMBA,
    SLOTS,
    STATES,
    STEP,
    Scratch,
)
from hierchat.engine.cpu.phases import tasks, wait
from hierchat.engine.cpu.rows import ONE, ZERO, normalise, quantise
from hierchat.engine.cpu.softmax import QUERIES, counted, registers_of, sigmoid_gate, silu_gate
from hierchat.jit import LANES

TOGETHER = QUERIES // 2
"""Rows whose reads of one state are computed in one pass: each by its key and by its query."""
TILE = 16
"""Rows of a state that are read together: 8 KB, which stay in the nearest cache for all queries."""
UNIT = np.float32(1e-6)
"""Added to the squared length of queries and keys of Gated DeltaNet before they are divided by it."""
LINEAR = np.float32(20)
"""Above this, softplus is the number itself."""
_FLOATS = vector(F32, LANES)


def _entry(b: ir.IRBuilder, addresses: ir.Value, index: ir.Value) -> ir.Value:
    return load(b, I64, b.add(addresses, b.mul(index, i64(8))), 8)


@counted(6)
def dots(b: ir.IRBuilder, queries: int, *given: ir.Value) -> None:
    """Emit out[q][j] = x[q] . vector[j]. `given`: address of `queries` addresses of float32 x [size]; count and
    addresses of the vectors; size, a multiple of 16; address of the addresses of out [vectors]."""
    xs, count, vectors, size, outs = given
    inputs, results = ([_entry(b, many, i64(q)) for q in range(queries)] for many in (xs, outs))

    def all_of(parts: int) -> None:
        """Emit a vector's dot products, each as `parts` separate sums, so that additions do not wait."""

        def one(j: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            at = _entry(b, vectors, j)

            def step(k: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
                grown = []
                for part in range(parts):
                    place = b.mul(b.add(b.mul(k, i64(parts)), i64(part)), i64(4 * LANES))
                    piece = load(b, _FLOATS, b.add(at, place), 4)
                    grown += [
                        fused(b, load(b, _FLOATS, b.add(x, place), 4), piece, sums[part * queries + q])
                        for q, x in enumerate(inputs)
                    ]
                return grown

            steps = b.sdiv(size, i64(parts * LANES))
            sums = loop(b, i64(0), steps, [llvm.zeros(_FLOATS)] * (queries * parts), step)
            for q, result in enumerate(results):
                both = b.fadd(sums[q], sums[queries + q]) if parts == 2 else sums[q]
                store(b, llvm.folded(b, both, b.fadd), b.add(result, b.mul(j, i64(4))))
            return []

        with b.if_then(b.icmp_signed(">", count, i64(0))):
            loop(b, i64(0), count, [], one)

    in_pairs = b.icmp_signed("==", b.srem(size, i64(2 * LANES)), i64(0))  # with 8 lanes always
    with b.if_else(in_pairs) as (pairs, single):
        with pairs:
            all_of(2)
        with single:
            all_of(1)


@counted(6)
def weighted(b: ir.IRBuilder, queries: int, *given: ir.Value) -> None:
    """Emit out[q] += the sum over j of x[q][j] * vector[j], in order. `given`: address of the addresses of float32
    x [vectors]; count and addresses of the vectors; size, a multiple of 16; address of the addresses of out [size]."""
    xs, count, vectors, size, outs = given
    inputs, results = ([_entry(b, many, i64(q)) for q in range(queries)] for many in (xs, outs))
    most = registers_of(queries)
    whole = b.sdiv(size, i64(most * LANES))
    for registers in (most, 1):
        begin = i64(0) if registers > 1 else b.mul(whole, i64(most))
        end = whole if registers > 1 else b.sdiv(size, i64(LANES))
        with b.if_then(b.and_(b.icmp_signed("<", begin, end), b.icmp_signed(">", count, i64(0)))):

            def part(index: ir.Value, _: list[ir.Value], registers: int = registers) -> list[ir.Value]:
                columns = [
                    b.mul(b.add(b.mul(index, i64(registers)), i64(n)), i64(4 * LANES))
                    for n in range(registers)
                ]
                sums = [load(b, _FLOATS, b.add(out, place), 4) for out in results for place in columns]

                def step(j: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
                    at = _entry(b, vectors, j)
                    pieces = [load(b, _FLOATS, b.add(at, place), 4) for place in columns]
                    grown = []
                    for q, x in enumerate(inputs):
                        factor = broadcast(b, load(b, F32, b.add(x, b.mul(j, i64(4))), 4), LANES)
                        own = sums[q * registers : (q + 1) * registers]
                        grown += [
                            fused(b, factor, piece, total) for piece, total in zip(pieces, own, strict=True)
                        ]
                    return grown

                sums = loop(b, i64(0), count, sums, step)
                for q, out in enumerate(results):
                    for n, place in enumerate(columns):
                        store(b, sums[q * registers + n], b.add(out, place))
                return []

            loop(b, begin, end, [], part)


@llvm.emits(types.void, *[types.int64] * 6)
def taps(b: ir.IRBuilder, *given: ir.Value) -> None:
    """Emit out += the sum over j of x[j] * factor[j]. `given`: address of the addresses of `count` float32 x [size];
    count; address and byte stride of the factors; size, a multiple of 16; address of out."""
    xs, count, factors, stride, size, out = given

    def part(index: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
        column = b.mul(index, i64(4 * LANES))
        place = b.add(out, column)

        def step(j: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
            x = load(b, _FLOATS, b.add(_entry(b, xs, j), column), 4)
            factor = load(b, _FLOATS, b.add(b.add(factors, b.mul(stride, j)), column), 4)
            return [fused(b, x, factor, sums[0])]

        (total,) = loop(b, i64(0), count, [load(b, _FLOATS, place, 4)], step)
        store(b, total, place)
        return []

    loop(b, i64(0), b.sdiv(size, i64(LANES)), [], part)


@llvm.emits(types.voidptr, types.int64)
def _pointer(b: ir.IRBuilder, address: ir.Value) -> ir.Value:
    return b.inttoptr(address, I8.as_pointer())


@kernel
def lay_paths(parents, start, first, positions, paths, lengths):  # type: ignore[no-untyped-def]
    """Set each node's path: the records of its ancestors since three chunks before its own. parents, positions int64
    [n]; `first`: row of node 0 in the forward. paths int32 [n, 4 STEP]: a record slot, or ~row if below 0; lengths
    int64 [n]."""
    for node in range(parents.shape[0]):
        position, parent = positions[node], parents[node]
        begin = max(position // STEP - 3, 0) * STEP
        if parent < 0:
            for place in range(begin, position):
                paths[node, place - begin] = place % SLOTS
        else:
            skipped = begin - max(positions[parent] // STEP - 3, 0) * STEP
            count = positions[parent] - begin
            for place in range(count):
                paths[node, place] = paths[parent, skipped + place]
            paths[node, count] = ~(first + parent)
        lengths[node] = position - begin


@kernel
def key_head(shape, head):  # type: ignore[no-untyped-def]
    """Return which key head a value head reads."""
    return head // (shape.heads // shape.key_heads) if shape.grouped else head % shape.key_heads


@kernel
def value_phase(run, phase, rows, shape, work):  # type: ignore[no-untyped-def]
    """Make the inputs of a short convolution: its gate times its value."""
    size = shape.channels
    for row in tasks(run.counters, phase, rows):
        mixed, record = work.mixed[row], work.records[row]
        for j in range(size):
            record[j] = mixed[j] * mixed[2 * size + j]
    wait(run, phase, rows)


@kernel
def scratch_of(work, rank):  # type: ignore[no-untyped-def]
    """Return a thread's own buffers."""
    return Scratch(
        work.scratch.factors[rank],
        work.scratch.addresses[rank],
        work.scratch.reads[rank],
        work.scratch.dots[rank],
        work.scratch.state[rank],
        work.scratch.places[rank],
    )


@kernel
def look_back(row, texts, layer, shape, kept, work, scratch):  # type: ignore[no-untyped-def]
    """Put the addresses of a row's convolution inputs into scratch.addresses[1], oldest first; return their number."""
    records = kept.records[texts.numbers[work.texts[row]], layer]
    old, new = records.ctypes.data, work.records.ctypes.data
    old_size, new_size = 4 * records.shape[1], 4 * work.records.shape[1]
    length = work.lengths[row]
    count = min(shape.width, length + 1)
    for j in range(count - 1):
        place = work.paths[row, length - count + 1 + j]
        scratch.addresses[1, j] = old + place * old_size if place >= 0 else new + ~place * new_size
    scratch.addresses[1, count - 1] = new + row * new_size
    return count


@kernel
def convolve(count, layer, first, last, out, shape, weights, scratch):  # type: ignore[no-untyped-def]
    """Set out [last - first] to the convolution of channels `first` to `last` - 1 over `count` inputs (look_back)."""
    if weights.conv_biases.shape[1]:
        out[:] = weights.conv_biases[layer, first:last]
    else:
        out[:] = ZERO
    for j in range(count):
        scratch.addresses[0, j] = scratch.addresses[1, j] + 4 * first
    factors = weights.conv[layer, shape.width - count].ctypes.data + 4 * first
    inputs = scratch.addresses[0].ctypes.data
    taps(inputs, count, factors, 4 * shape.channels, last - first, out.ctypes.data)


@kernel
def scale_to(out, length, scratch):  # type: ignore[no-untyped-def]
    """Scale a vector to a length, as Gated DeltaNet does with queries and keys."""
    scratch.addresses[0, 0], scratch.addresses[2, 0] = out.ctypes.data, scratch.dots[0].ctypes.data
    inputs, results = scratch.addresses[0].ctypes.data, scratch.addresses[2].ctypes.data
    dots(1, inputs, 1, inputs, out.shape[0], results)
    factor = length / np.sqrt(scratch.dots[0, 0] + UNIT)
    for j in range(out.shape[0]):
        out[j] *= factor


@kernel
def mix_phase(run, phase, rows, texts, layer, shape, weights, kept, work):  # type: ignore[no-untyped-def]
    """Compute queries, keys, values, fades and rates of all rows; a short convolution goes to work.read."""
    units = 2 * shape.key_heads + shape.heads
    parts = 1 if rows >= 2 * run.threads else min(2 * run.threads, units)
    scratch = scratch_of(work, run.rank)
    for task in tasks(run.counters, phase, rows * parts):
        row, part = task // parts, task % parts
        count = look_back(row, texts, layer, shape, kept, work, scratch)
        for unit in range(units * part // parts, units * (part + 1) // parts):
            if shape.kind == CONVOLUTION:
                source, size = unit * shape.value_size, shape.value_size
                out = work.read[row, source : source + size]
                convolve(count, layer, source, source + size, out, shape, weights, scratch)
                continue
            if unit < 2 * shape.key_heads:
                size, head = shape.key_size, unit % shape.key_heads
                is_query = unit < shape.key_heads
                source = (shape.query_at if is_query else shape.key_at) + head * size
                goal = (shape.queries if is_query else shape.keys) + head * size
            else:
                size, head, is_query = shape.value_size, unit - 2 * shape.key_heads, False
                source, goal = shape.value_at + head * size, shape.changes + head * size
            out = work.records[row, goal : goal + size]
            convolve(count, layer, source, source + size, out, shape, weights, scratch)
            sigmoid_gate(out.ctypes.data, out.ctypes.data, size, out.ctypes.data)
            if unit >= 2 * shape.key_heads:
                step = work.steps[row, head] + weights.step_biases[layer, head]
                step = step if step > LINEAR else np.log1p(np.exp(step))
                work.records[row, shape.fades + head] = np.exp(weights.decays[layer, head] * step)
                rate = ONE / (ONE + np.exp(-work.rates[row, head]))
                work.rates[row, head] = rate if shape.kind == DELTA else step
            elif shape.kind == DELTA:
                scale_to(out, ONE / np.sqrt(np.float32(size)) if is_query else ONE, scratch)
    wait(run, phase, rows * parts)


@kernel
def locate(path, count, head, records, shape, work, scratch):  # type: ignore[no-untyped-def]
    """Put the addresses of keys and changes at `count` places of a path into scratch.addresses[1] and [3], and their
    fades into scratch.dots[2]."""
    keys = 4 * (shape.keys + key_head(shape, head) * shape.key_size)
    changes, fade = 4 * (shape.changes + head * shape.value_size), shape.fades + head
    old, new = records.ctypes.data, work.records.ctypes.data
    old_size, new_size = 4 * records.shape[1], 4 * work.records.shape[1]
    addresses, fades = scratch.addresses, scratch.dots[2]
    for i in range(count):
        place = path[i]
        if place >= 0:
            at = old + place * old_size
            fades[i] = records[place, fade]
        else:
            at = new + ~place * new_size
            fades[i] = work.records[~place, fade]
        addresses[1, i] = at + keys
        addresses[3, i] = at + changes


@kernel
def fold(source, known, target, places, head, records, shape, work, scratch):  # type: ignore[no-untyped-def]
    """Set `target` to the state `source`, zero unless `known`, after the records at `places`."""
    size, width = shape.key_size, shape.value_size
    locate(places, STEP, head, records, shape, work, scratch)
    inputs, vectors, outs, changes = scratch.addresses
    factor = ONE
    for i in range(STEP - 1, -1, -1):
        key = carray(_pointer(vectors[i]), (size,), np.float32)
        for a in range(size):
            scratch.factors[a, i] = key[a] * factor
        factor *= scratch.dots[2, i]
    for a in range(size):
        for v in range(width):
            target[a, v] = source[a, v] * factor if known else ZERO
    factors, rows = scratch.factors.ctypes.data, target.ctypes.data
    for begin in range(0, size, QUERIES):
        count = min(QUERIES, size - begin)
        for q in range(count):
            inputs[q], outs[q] = factors + (begin + q) * STEP * 4, rows + (begin + q) * width * 4
        weighted(count, inputs.ctypes.data, STEP, changes.ctypes.data, width, outs.ctypes.data)


@kernel
def fold_committed(  # type: ignore[no-untyped-def]
    states, folded, chunk, start, first, head, records, shape, work, scratch
):
    """Bring stored states up to the one before `chunk`, from `folded` on, and return the last stored. Records are in
    slots up to `start`, then in rows from `first`."""
    while folded < chunk:
        for i in range(STEP):
            position = folded * STEP + i
            scratch.places[i] = position % SLOTS if position < start else ~(first + position - start)
        source, target = states[folded % STATES], states[(folded + 1) % STATES]
        fold(source, folded > 0, target, scratch.places, head, records, shape, work, scratch)
        folded += 1
    return folded


@kernel
def read_state(state, known, first, last, head, shape, work, scratch):  # type: ignore[no-untyped-def]
    """Set work.read of rows `first` to `last` - 1, and scratch.reads, to a state's answers to queries and to keys."""
    size, width, own = shape.key_size, shape.value_size, key_head(shape, head) * shape.key_size
    inputs, vectors, outs, _ = scratch.addresses
    count = 0
    for row in range(first, last):
        record, out = work.records[row].ctypes.data, work.read[row, head * width : (head + 1) * width]
        out[:] = ZERO
        inputs[count], outs[count] = record + 4 * (shape.queries + own), out.ctypes.data
        count += 1
        if shape.kind == DELTA:
            out = scratch.reads[row - first]
            out[:] = ZERO
            inputs[count], outs[count] = record + 4 * (shape.keys + own), out.ctypes.data
            count += 1
    if not known:
        return
    rows = state.ctypes.data
    for a in range(size):
        vectors[a] = rows + a * width * 4
    for begin in range(0, size, TILE):  # a tile stays in the nearest cache
        these = min(TILE, size - begin)
        weighted(count, inputs.ctypes.data, these, vectors[begin:].ctypes.data, width, outs.ctypes.data)
        for q in range(count):
            inputs[q] += 4 * these


@kernel
def finish(row, read, head, layer, shape, weights, records, work, scratch):  # type: ignore[no-untyped-def]
    """Add a row's ancestors to what it read of the state (`read`: by its key), and compute its change and output."""
    size, width, own = shape.key_size, shape.value_size, key_head(shape, head) * shape.key_size
    record, out = work.records[row], work.read[row, head * width : (head + 1) * width]
    change = record[shape.changes + head * width : shape.changes + (head + 1) * width]
    chunk = work.positions[row] // STEP
    skipped = (max(chunk - 1, 0) - max(chunk - 3, 0)) * STEP
    count, factor = work.lengths[row] - skipped, record[shape.fades + head]
    locate(work.paths[row, skipped:], count, head, records, shape, work, scratch)
    inputs, vectors, outs, changes = scratch.addresses
    by_query, by_key, fades = scratch.dots
    inputs[0], outs[0] = record.ctypes.data + 4 * (shape.queries + own), by_query.ctypes.data
    inputs[1], outs[1] = record.ctypes.data + 4 * (shape.keys + own), by_key.ctypes.data
    vectors[count] = inputs[1]
    queries = 2 if shape.kind == DELTA else 1
    dots(queries, inputs.ctypes.data, count + 1, vectors.ctypes.data, size, outs.ctypes.data)
    with_itself = by_query[count]
    for i in range(count - 1, -1, -1):
        by_query[i] *= factor
        by_key[i] *= factor
        factor *= fades[i]
    for v in range(width):
        out[v] *= factor
        read[v] *= factor
    inputs[0], outs[0] = by_query.ctypes.data, out.ctypes.data
    inputs[1], outs[1] = by_key.ctypes.data, read.ctypes.data
    weighted(queries, inputs.ctypes.data, count, changes.ctypes.data, width, outs.ctypes.data)
    rate = work.rates[row, head]
    if shape.kind == DELTA:
        for v in range(width):
            change[v] = (change[v] - read[v]) * rate
            out[v] = fma(with_itself, change[v], out[v])
    else:
        skip = weights.skips[layer, head]
        for v in range(width):
            value = change[v]
            change[v] = value * rate
            out[v] = fma(with_itself, change[v], fma(value, skip, out[v]))


@kernel
def advance(text, head, texts, layer, shape, weights, kept, work, rank):  # type: ignore[no-untyped-def]
    """Compute one head of one text in all its rows, and bring its stored states up to date."""
    start, row, end = texts.starts[text], texts.rows[text], texts.rows[text + 1]
    number, first, reading = texts.numbers[text], row, texts.reading[text]
    states, records = kept.running[number, layer, head], kept.records[number, layer]
    scratch = scratch_of(work, rank)
    folded, chunk = texts.folded[text], start // STEP
    while row < end:
        folded = fold_committed(states, folded, chunk, start, first, head, records, shape, work, scratch)
        now = work.positions[row] // STEP
        if reading and now > chunk:
            chunk = now
            continue
        last, state = row + 1, states[max(now - 1, 0) % STATES]
        if now - 1 > folded:  # a deep draft: its state is made of its own path
            for at in range(folded, now - 1):
                source = states[folded % STATES] if at == folded else scratch.state
                places = work.paths[row, (at - max(now - 3, 0)) * STEP :]
                fold(source, at > 0, scratch.state, places, head, records, shape, work, scratch)
            state = scratch.state
        else:
            while last < end and last - row < TOGETHER and work.positions[last] // STEP == now:
                last += 1
        read_state(state, now > 1, row, last, head, shape, work, scratch)
        for one in range(row, last):
            finish(one, scratch.reads[one - row], head, layer, shape, weights, records, work, scratch)
        row = last


@kernel
def state_phase(run, phase, texts, layer, shape, weights, kept, work):  # type: ignore[no-untyped-def]
    """Compute the output of every head of every row. One head of one text is a task, row after row."""
    count = texts.starts.shape[0] * shape.heads
    for task in tasks(run.counters, phase, count):
        advance(task // shape.heads, task % shape.heads, texts, layer, shape, weights, kept, work, run.rank)
    wait(run, phase, count)


@kernel
def leave_phase(  # type: ignore[no-untyped-def]
    run, phase, rows, wanted, texts, layer, shape, weights, kept, work, given, forms
):
    """Normalise and gate what the heads read, for the next product (`given`), which is of the first `wanted` rows, and
    keep the records of all."""
    size = shape.width_out
    for row in tasks(run.counters, phase, rows):
        plain = given.plain[row * size : (row + 1) * size]
        norm = weights.state_norms[layer]
        if shape.kind == DELTA:
            for begin in range(0, size, norm.shape[0]):
                part = slice(begin, begin + norm.shape[0])
                normalise(work.read[row, part], norm, shape.epsilon, plain[part])
            silu_gate(work.gates[row].ctypes.data, plain.ctypes.data, size, plain.ctypes.data)
        elif shape.kind == MAMBA:
            read = work.read[row]
            silu_gate(work.gates[row].ctypes.data, read.ctypes.data, size, read.ctypes.data)
            for begin in range(0, size, shape.norm_size):
                part = slice(begin, begin + shape.norm_size)
                normalise(read[part], norm[part], shape.epsilon, plain[part])
        else:
            for j in range(size):
                plain[j] = work.read[row, j] * work.mixed[row, size + j]
        if row < wanted:  # how rows lie depends on how many there are
            quantise(plain, forms, 0, row, wanted, given)
        text = work.texts[row]
        node, number = row - texts.rows[text], texts.numbers[text]
        if node >= texts.rows[text + 1] - texts.rows[text] - SLOTS:
            record = kept.records[number, layer, (texts.starts[text] + node) % SLOTS]
            record[:] = work.records[row, : record.shape[0]]
    wait(run, phase, rows)
