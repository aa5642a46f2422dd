"""Compute attention of a segment's rows on CUDA: one program for a row, a key-value head and a SPLIT of positions.
A second kernel adds the splits in order. No tile holds two rows, so a row's bits depend only on its own text."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

SPLIT = 512
"""Positions of one program."""
BLOCK = 64
"""Positions of one product, at most, and"""
NUMBERS = 8192
"""numbers of these positions: more do not fit into registers."""


def attend(
    query: torch.Tensor,  # [heads, rows, d]
    keys: torch.Tensor,  # [kv, slots, d], contiguous in slots and d
    values: torch.Tensor,  # as keys
    positions: torch.Tensor,  # [rows]
    starts: torch.Tensor,  # [rows]
    paths: torch.Tensor,  # [rows, depth]
    texts: torch.Tensor,  # [rows]
    tables: torch.Tensor,  # [texts, pages]
    page: int,
    view: int,
    scale: float,
    window: int = 0,
    cap: float = 0.0,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute attention [rows, heads, d]. StaticSegment says in which slot a row's position is. `scale`: factor of
    scores; `window`: latest positions that a row sees, 0: all; `cap`: bound that scores approach, 0: none; `sinks`
    [heads]: scores of sinks, which take weight and bring nothing. Nothing that is launched depends on a value, so a
    CUDA graph may hold it."""
    (heads, rows, width), kv = query.shape, keys.shape[0]
    splits = triton.cdiv(view, SPLIT)
    padded, tile = (max(16, triton.next_power_of_2(size)) for size in (width, heads // kv))
    out = query.new_empty(rows, heads, width)
    sums = query.new_empty(splits, rows, heads, padded, dtype=torch.float32)
    bests = query.new_empty(splits, rows, heads, dtype=torch.float32)
    totals = torch.empty_like(bests)
    _split[rows, kv, splits](
        query, keys, values, positions, starts, paths, texts, tables, sums, bests, totals, scale,
        query.stride(0), query.stride(1), keys.stride(0), paths.stride(0), tables.stride(0), window or view, cap,
        CAPPED=bool(cap), GROUP=heads // kv, WIDTH=width, PADDED=padded, TILE=tile, SPLIT=SPLIT,
        BLOCK=min(BLOCK, NUMBERS // padded), PAGE=page,
    )  # fmt: skip
    given = bests if sinks is None else sinks  # any address: it is not read
    _join[rows, heads](
        positions, given, sums, bests, totals, out, window or view,
        SINKS=sinks is not None, WIDTH=width, PADDED=padded, SPLIT=SPLIT,
    )  # fmt: skip
    return out


# Compile-time sizes: GROUP query heads share keys; WIDTH is d; TILE and PADDED are both as a matrix product takes them.
@triton.jit
def _split(  # type: ignore[no-untyped-def]
    query, keys, values, positions, starts, paths, texts, tables, sums, bests, totals, scale,
    query_head, query_row, kv_head, path_row, table_row, window, cap,
    CAPPED: tl.constexpr,  # noqa: N803
    GROUP: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr,  # noqa: N803
    SPLIT: tl.constexpr, BLOCK: tl.constexpr, PAGE: tl.constexpr,  # noqa: N803
):  # fmt: skip
    row, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    rows, kv = tl.num_programs(0), tl.num_programs(1)
    last, first = tl.load(positions + row), tl.load(starts + row)
    lowest = tl.maximum(last - window + 1, 0)
    begin = tl.maximum(split * SPLIT, lowest // BLOCK * BLOCK)
    end = tl.minimum(split * SPLIT + SPLIT, last + 1)
    if begin >= end:
        return
    table = tables + tl.load(texts + row) * table_row
    member, column = tl.arange(0, TILE), tl.arange(0, PADDED)
    inside = column < WIDTH
    at = query + (head * GROUP + member)[:, None] * query_head + row * query_row + column[None, :]
    asked = tl.load(at, mask=(member < GROUP)[:, None] & inside[None, :], other=0.0)
    best = tl.full([TILE], float("-inf"), tl.float32)
    total = tl.zeros([TILE], tl.float32)
    weighed = tl.zeros([TILE, PADDED], tl.float32)
    for block in range(begin, end, BLOCK):
        position = block + tl.arange(0, BLOCK)
        seen = (position <= last) & (position >= lowest)
        own = seen & (position >= first)
        place = tl.load(paths + row * path_row + position - first, mask=own, other=0)
        place = tl.where(own, place, position)
        slot = tl.load(table + place // PAGE, mask=seen, other=0) * PAGE + place % PAGE
        offset = head.to(tl.int64) * kv_head + slot[:, None] * WIDTH + column[None, :]
        held = seen[:, None] & inside[None, :]
        key = tl.load(keys + offset, mask=held, other=0.0)
        score = tl.dot(asked, tl.trans(key), input_precision="ieee") * scale
        if CAPPED:
            score = cap - 2.0 * cap / (tl.exp(2.0 * score / cap) + 1.0)  # cap * tanh(score / cap)
        score = tl.where(seen[None, :], score, float("-inf"))
        higher = tl.maximum(best, tl.max(score, 1))
        weight, fade = tl.exp(score - higher[:, None]), tl.exp(best - higher)
        value = tl.load(values + offset, mask=held, other=0.0)
        total = total * fade + tl.sum(weight, 1)
        weighed = weighed * fade[:, None] + tl.dot(weight.to(value.dtype), value, input_precision="ieee")
        best = higher
    place = (split * rows + row) * kv * GROUP + head * GROUP + member
    tl.store(bests + place, best, mask=member < GROUP)
    tl.store(totals + place, total, mask=member < GROUP)
    tl.store(sums + place[:, None] * PADDED + column[None, :], weighed, mask=(member < GROUP)[:, None])


@triton.jit
def _join(  # type: ignore[no-untyped-def]
    positions, sinks, sums, bests, totals, out, window,
    SINKS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, SPLIT: tl.constexpr,  # noqa: N803
):  # fmt: skip
    row, head = tl.program_id(0), tl.program_id(1)
    rows, heads = tl.num_programs(0), tl.num_programs(1)
    column, last = tl.arange(0, PADDED), tl.load(positions + row)
    lowest = tl.maximum(last - window + 1, 0) // SPLIT
    place = (lowest * rows + row) * heads + head
    best, total = tl.load(bests + place), tl.load(totals + place)
    weighed = tl.load(sums + place * PADDED + column)
    for split in range(lowest + 1, last // SPLIT + 1):
        at = (split * rows + row) * heads + head
        found = tl.load(bests + at)
        higher = tl.maximum(best, found)
        fade, gain = tl.exp(best - higher), tl.exp(found - higher)
        total = total * fade + tl.load(totals + at) * gain
        weighed = weighed * fade + tl.load(sums + at * PADDED + column) * gain
        best = higher
    if SINKS:
        sink = tl.load(sinks + head).to(tl.float32)
        higher = tl.maximum(best, sink)
        fade = tl.exp(best - higher)
        total = total * fade + tl.exp(sink - higher)
        weighed = weighed * fade
    tl.store(out + (row * heads + head) * WIDTH + column, weighed / total, mask=column < WIDTH)
