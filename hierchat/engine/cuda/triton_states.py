"""Walk through running states on CUDA (torch/running_states.py): one program for each walk, head and tile of values.
A walk takes its steps one after the other, in every mode by the same compiled kernel, so that a row has the same bits
in a prompt, in any tree, and behind any commit."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hierchat.engine.torch.running_states import TREE, UNIT, Steps, Walk

TILE = 16
"""Numbers of a value that one program computes."""
CHANNELS = 256
"""Channels of a convolution that one program computes."""


def convolve(
    inputs: torch.Tensor, walk: Walk, weight: torch.Tensor, bias: torch.Tensor | None, rows: int
) -> torch.Tensor:
    """Compute each row's convolution, [rows, channels], of `inputs` [size - 1 + nodes, channels] and weight [channels,
    size]."""
    channels, size = weight.shape
    out = torch.empty(rows, channels, dtype=inputs.dtype, device=inputs.device)
    given = weight if bias is None else bias  # any address: it is not read
    _convolve[rows, triton.cdiv(channels, CHANNELS)](
        inputs, weight.contiguous(), given, out, walk.positions, walk.start, walk.paths, walk.mode,
        channels, walk.paths.stride(0), SIZE=size, BIASED=bias is not None, CHANNELS=CHANNELS,
    )  # fmt: skip
    return out


def walk(
    way: Walk,
    running: torch.Tensor,  # [layers, heads, key size, value size]
    after: torch.Tensor,  # as running, where the state goes in READ and COMMIT
    steps: Steps,  # of all these layers
    query: torch.Tensor | None,  # [rows, key heads, key size], of one layer; None in COMMIT, and
    skip: torch.Tensor | None,  # [heads]: how much of its value a row adds to what it reads
    out: torch.Tensor | None,  # [rows, heads, value size]
    *,
    delta: bool,
) -> None:
    """Take the steps of each walk, and write what it reads into `out`, or the state behind it into `after`."""
    layers, heads, size, width = running.shape
    key_heads, rows = steps.keys.shape[-2], len(way.positions) if way.mode == TREE else 1
    tile = min(TILE, triton.next_power_of_2(width))
    tiles = triton.cdiv(width, tile)
    query, out = steps.keys if query is None else query, steps.values if out is None else out
    _walk[rows, heads * tiles, layers](
        query, *steps, steps.rates if skip is None else skip, running, after, out,
        way.positions, way.start, way.paths, way.rows, way.mode, way.paths.stride(0),
        heads, heads // key_heads, tiles, steps.keys.shape[1], size**-0.5 if delta else 1.0, UNIT,
        DELTA=delta, SKIPS=skip is not None, SIZE=size, PADDED=triton.next_power_of_2(size), WIDTH=width, TILE=tile,
        num_warps=4,
    )  # fmt: skip


@triton.jit(do_not_specialize=["bias", "positions", "start", "paths", "mode", "channels", "path_row"])
def _convolve(  # type: ignore[no-untyped-def]
    inputs, weight, bias, out, positions, start, paths, mode, channels, path_row,
    SIZE: tl.constexpr, BIASED: tl.constexpr, CHANNELS: tl.constexpr,  # noqa: N803
):  # fmt: skip
    row, channel = tl.program_id(0), tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    there = channel < channels
    first = tl.load(start)
    last = tl.load(positions + row) - first
    total = tl.zeros([CHANNELS], tl.float32)
    for tap in tl.static_range(SIZE):
        if mode == 0:
            place = first * 0 + row + tap
        else:
            reach = last - (SIZE - 1) + tap
            node = tl.load(paths + row * path_row + tl.maximum(reach, 0)) - first
            place = tl.maximum(tl.where(reach >= 0, node, reach) + SIZE - 1, 0)
        given = tl.load(inputs + place * channels + channel, mask=there, other=0.0).to(tl.float32)
        factor = tl.load(weight + channel * SIZE + tap, mask=there, other=0.0).to(tl.float32)
        total = tl.fma(given, factor, total)
    if BIASED:
        total += tl.load(bias + channel, mask=there, other=0.0).to(tl.float32)
    tl.store(out + row * channels + channel, total, mask=there)


# DELTA: Gated DeltaNet, else Mamba 2. SIZE and WIDTH are of a key and a value, PADDED and TILE as a program holds them.
@triton.jit(
    do_not_specialize=[
        "skip", "positions", "start", "paths", "count", "mode", "path_row", "heads", "group", "tiles", "kept",
    ]
)  # fmt: skip
def _walk(  # type: ignore[no-untyped-def]
    query, keys, values, fades, rates, skip, running, after, out,
    positions, start, paths, count, mode, path_row, heads, group, tiles, kept, scale, unit,
    DELTA: tl.constexpr, SKIPS: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr,  # noqa: N803
    WIDTH: tl.constexpr, TILE: tl.constexpr,  # noqa: N803
):  # fmt: skip
    row, layer = tl.program_id(0), tl.program_id(2).to(tl.int64)
    head, tile = tl.program_id(1) // tiles, tl.program_id(1) % tiles
    part, number = tl.arange(0, PADDED), tile * TILE + tl.arange(0, TILE)
    in_key, in_value = part < SIZE, number < WIDTH
    place = ((layer * heads + head) * SIZE + part)[:, None] * WIDTH + number[None, :]
    inside = in_key[:, None] & in_value[None, :]
    state = tl.load(running + place, mask=inside, other=0.0)
    first, length = tl.load(start), tl.load(count)
    if mode == 1:
        length = tl.load(positions + row) - first + 1
    key_head, key_heads, none = head // group, heads // group, first * 0
    for step in range(length):
        node = none + step
        if mode != 0:
            node = tl.load(paths + row * path_row + step) - first
        at = layer * kept + node
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
        if (mode == 0) | ((mode == 1) & (step == length - 1)):
            asker = none + row
            if mode == 0:
                asker = node
            asked = tl.load(query + (asker * key_heads + key_head) * SIZE + part, mask=in_key, other=0.0)
            asked = asked.to(tl.float32)
            if DELTA:
                asked = asked * tl.rsqrt(tl.sum(asked * asked, 0) + unit)
            read = tl.sum(state * (asked * scale)[:, None], 0)
            if SKIPS:
                read = tl.fma(value, tl.broadcast_to(tl.load(skip + head), [TILE]), read)
            tl.store(out + (asker * heads + head) * WIDTH + number, read, mask=in_value)
    if mode != 1:
        tl.store(after + place, state, mask=inside)
