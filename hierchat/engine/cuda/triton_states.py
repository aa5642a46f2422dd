"""Walk through running states on CUDA (row_states.py): one program for each walk, head and tile of values.
A walk takes its steps one after the other, for prompts, trees and commits by the same compiled kernel, so that a row
has the same bits in all of them."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hierchat.engine.cuda.row_states import NODES, UNIT, Steps, Walk

TILE = 16
"""Numbers of a value that one program computes."""
CHANNELS = 256
"""Channels of a convolution that one program computes."""


def convolve(
    given: torch.Tensor,  # [places, channels]
    inputs: torch.Tensor,  # [layers, texts, size - 1, channels]
    after: torch.Tensor,  # as inputs; takes the last inputs of a piece
    layer: int,
    walk: Walk,
    weight: torch.Tensor,  # [channels, size]
    bias: torch.Tensor | None,
    pool: int,
) -> torch.Tensor:
    """Compute each row's convolution, [rows, channels]."""
    (channels, size), rows = weight.shape, len(walk.owners)
    out = torch.empty(rows, channels, dtype=given.dtype, device=given.device)
    added = weight if bias is None else bias  # any address: it is not read
    _convolve[rows, triton.cdiv(channels, CHANNELS)](
        given, inputs, after, weight.contiguous(), added, out, *walk,
        layer * inputs.shape[1], pool, channels, walk.paths.stride(0),
        SIZE=size, BIASED=bias is not None, CHANNELS=CHANNELS, NODES=NODES,
    )  # fmt: skip
    return out


def walk(
    way: Walk,
    running: torch.Tensor,  # [layers, texts, heads, key size, value size]
    after: torch.Tensor,  # as running; takes the states at the end of a piece or path
    layer: int,
    steps: Steps,
    query: torch.Tensor | None,  # [rows, key heads, key size]; None: only store the states of all layers
    skip: torch.Tensor | None,  # [heads]: how much of its value a row adds to what it reads
    out: torch.Tensor | None,  # [rows, heads, value size]
    *,
    pool: int,
    delta: bool,
) -> None:
    """Take the steps of each walk, and write what rows read into `out`, or states into `after`."""
    layers, texts, heads, size, width = running.shape
    key_heads, commits = steps.keys.shape[-2], query is None
    tile = min(TILE, triton.next_power_of_2(width))
    tiles = triton.cdiv(width, tile)
    query, out = steps.keys if query is None else query, steps.values if out is None else out
    _walk[len(way.owners), heads * tiles, layers if commits else 1](
        query, *steps, steps.rates if skip is None else skip, running, after, out, *way,
        layer, texts, pool, int(commits), way.paths.stride(0), heads, heads // key_heads, tiles,
        size**-0.5 if delta else 1.0, UNIT,
        DELTA=delta, SKIPS=not delta, SIZE=size, PADDED=triton.next_power_of_2(size),
        WIDTH=width, TILE=tile, NODES=NODES, num_warps=4,
    )  # fmt: skip


WHOLE = ["owners", "nodes", "steps", "reads", "starts", "paths", "path_row", "pool"]
"""Arguments whose values and addresses must not choose another kernel."""


@triton.jit(do_not_specialize=[*WHOLE, "bias", "first_text", "channels"])
def _convolve(  # type: ignore[no-untyped-def]
    given, inputs, after, weight, bias, out, owners, nodes, steps, reads, starts, paths,
    first_text, pool, channels, path_row,
    SIZE: tl.constexpr, BIASED: tl.constexpr, CHANNELS: tl.constexpr, NODES: tl.constexpr,  # noqa: N803
):  # fmt: skip
    row, channel = tl.program_id(0), tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    there = channel < channels
    text, reading, count = first_text + tl.load(owners + row), tl.load(reads + row), tl.load(steps + row)
    first, at = tl.load(starts + row), tl.load(nodes + row)
    if reading == 0:
        at = count - 1
    total = tl.zeros([CHANNELS], tl.float32)
    for tap in tl.static_range(SIZE):
        reach = at - (SIZE - 1) + tap
        own = reach >= 0
        place = pool + row + reach - at
        if reading == 0:
            place = text * NODES + tl.load(paths + row * path_row + tl.maximum(reach, 0)) - first
        new = tl.load(given + place * channels + channel, mask=there & own, other=0.0)
        before = (text * (SIZE - 1) + reach + SIZE - 1) * channels + channel
        old = tl.load(inputs + before, mask=there & (reach < 0), other=0.0)
        factor = tl.load(weight + channel * SIZE + tap, mask=there, other=0.0).to(tl.float32)
        total = tl.fma(tl.where(own, new, old).to(tl.float32), factor, total)
    if BIASED:
        total += tl.load(bias + channel, mask=there, other=0.0).to(tl.float32)
    tl.store(out + row * channels + channel, total, mask=there)
    if (reading == 1) & (count > 0):
        for tap in tl.static_range(SIZE - 1):
            reach = count - (SIZE - 1) + tap
            new = tl.load(
                given + (pool + row + reach) * channels + channel, mask=there & (reach >= 0), other=0.0
            )
            before = (text * (SIZE - 1) + reach + SIZE - 1) * channels + channel
            old = tl.load(inputs + before, mask=there & (reach < 0), other=0.0)
            goal = (text * (SIZE - 1) + tap) * channels + channel
            tl.store(after + goal, tl.where(reach >= 0, new, old), mask=there)


# DELTA: Gated DeltaNet, else Mamba 2. SIZE and WIDTH are of a key and a value, PADDED and TILE as a program holds them.
@triton.jit(
    do_not_specialize=[*WHOLE, "skip", "layer", "texts", "commits", "heads", "group", "tiles"]
)  # fmt: skip
def _walk(  # type: ignore[no-untyped-def]
    query, keys, values, fades, rates, skip, running, after, out,
    owners, nodes, steps, reads, starts, paths,
    layer, texts, pool, commits, path_row, heads, group, tiles, scale, unit,
    DELTA: tl.constexpr, SKIPS: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr,  # noqa: N803
    WIDTH: tl.constexpr, TILE: tl.constexpr, NODES: tl.constexpr,  # noqa: N803
):  # fmt: skip
    row, count = tl.program_id(0), tl.load(steps + tl.program_id(0))
    if count == 0:
        return
    head, tile = tl.program_id(1) // tiles, tl.program_id(1) % tiles
    text, reading = (layer + tl.program_id(2)) * texts + tl.load(owners + row), tl.load(reads + row)
    first, none = tl.load(starts + row), reading * 0
    part, number = tl.arange(0, PADDED), tile * TILE + tl.arange(0, TILE)
    in_key, in_value = part < SIZE, number < WIDTH
    place = ((text * heads + head) * SIZE + part)[:, None] * WIDTH + number[None, :]
    inside = in_key[:, None] & in_value[None, :]
    state = tl.load(running + place, mask=inside, other=0.0)
    key_head, key_heads = head // group, heads // group
    for step in range(count):
        at, asker = none + pool + row + step, none + row
        if reading == 0:
            at = text * NODES + tl.load(paths + row * path_row + step) - first
        else:
            asker += step
        key = tl.load(keys + (at * key_heads + key_head) * SIZE + part, mask=in_key, other=0.0).to(tl.float32)
        value = tl.load(values + (at * heads + head) * WIDTH + number, mask=in_value, other=0.0).to(
            tl.float32
        )
        fade, rate = tl.load(fades + at * heads + head), tl.load(rates + at * heads + head)
        state = state * tl.exp(fade)
        change = value
        if DELTA:
            key = key * tl.rsqrt(tl.sum(key * key, 0) + unit)
            change = value - tl.sum(state * key[:, None], 0)
        state = tl.fma(
            tl.broadcast_to(key[:, None], [PADDED, TILE]),
            tl.broadcast_to((rate * change)[None, :], [PADDED, TILE]),
            state,
        )
        if (reading == 1) | ((commits == 0) & (step == count - 1)):
            asked = tl.load(query + (asker * key_heads + key_head) * SIZE + part, mask=in_key, other=0.0)
            asked = asked.to(tl.float32)
            if DELTA:
                asked = asked * tl.rsqrt(tl.sum(asked * asked, 0) + unit)
            read = tl.sum(state * (asked * scale)[:, None], 0)
            if SKIPS:
                read = tl.fma(value, tl.broadcast_to(tl.load(skip + head), [TILE]), read)
            tl.store(out + (asker * heads + head) * WIDTH + number, read, mask=in_value)
    if (reading == 1) | (commits == 1):
        tl.store(after + place, state, mask=inside)
