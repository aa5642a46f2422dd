"""Multiply rows of activations by matrices in the blocks of a file (packed.py) on CUDA.

One kernel, compiled once for each block type, computes any number of rows in tiles of ROWS: one tile for a step of
decoding, many for a prompt. The inputs of a row are summed in an order that the matrix's shape alone determines: SPANs
from first to last, each step by step. Rows of a tile never mix. So a row has the same bits in every forward.
If rows chose experts, a tile has rows of one expert only, and everything else is the same."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from hierchat.engine.cuda.packed import LIFTED, SIX_BITS, Format, Packed
from hierchat.models.formats.layouts import LEVELS

ROWS = 32
"""Rows of a tile; those that are missing are zeros."""
OUT = 64
"""Outputs of a program."""
SPAN = 1024
"""Inputs that are summed by themselves before they are added to those before: by another program if rows are few."""
FEW = 4 * ROWS
"""With at most so many rows, each span is computed by its own program; more rows need more programs anyway."""
JOINED = 256
PAIRS = 64
"""Pairs of a row and an expert that are counted at a time."""


class Routing(NamedTuple):
    """Experts that rows chose, int64 [rows, active], out of `experts`. `tiles`: numbers of pairs of a row and an
    expert, int32 [tiles, ROWS], each tile of one expert; -1 for no pair."""

    chosen: torch.Tensor
    experts: int
    tiles: torch.Tensor


def grouped(chosen: torch.Tensor, experts: int) -> Routing:
    """Put rows into tiles by the experts that they chose. A CUDA graph may hold its launches."""
    chosen, pairs = chosen.contiguous(), chosen.numel()
    most = min(pairs, pairs // ROWS + experts)  # tiles for any routing
    tiles = torch.full((most, ROWS), -1, dtype=torch.int32, device=chosen.device)
    _group[(experts,)](chosen, tiles, pairs, EXPERTS=triton.next_power_of_2(experts), PAIRS=PAIRS, ROWS=ROWS)
    return Routing(chosen, experts, tiles)


def multiply(
    x: torch.Tensor,
    matrix: Packed,
    bias: torch.Tensor | None = None,
    routing: Routing | None = None,
    weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """Multiply rows [rows, inputs] by a matrix: [rows, outputs]. A CUDA graph may hold its launches.

    With a `routing` the matrix has the rows of all experts, one expert after the other, and the result is [pairs,
    outputs]; `x` has one row for all pairs of a row, or one for each pair. `bias` [outputs], or [experts, outputs] with
    a `routing`. `weights` [rows, active]: return the weighted sums over the experts of each row, in the order of its
    choice."""
    form, (rows, inputs) = matrix.format, x.shape
    targets, outputs, tiles = rows, matrix.outputs, triton.cdiv(rows, ROWS)
    if routing:
        targets, outputs, tiles = routing.chosen.numel(), outputs // routing.experts, len(routing.tiles)
    steps = inputs // form.step
    spans = triton.cdiv(steps, SPAN // form.step)
    each = 1 if targets <= FEW else spans
    parts = triton.cdiv(spans, each)
    x, lifts = x.contiguous(), form.scale in (LIFTED, SIX_BITS)
    plain = torch.empty(inputs // form.group if lifts else 0, rows, dtype=torch.float32, device=x.device)
    if lifts:
        _add[rows, triton.cdiv(inputs, JOINED)](x, plain, inputs, GROUP=form.group, JOINED=JOINED)
    sums = torch.empty(parts, targets, outputs, dtype=torch.float32, device=x.device)
    chosen, pairs = (routing.chosen, routing.tiles) if routing else (x, x)  # any address: it is not read
    _multiply[tiles, triton.cdiv(outputs, OUT), parts](
        x, plain, matrix.codes, matrix.above, matrix.halves, matrix.words, matrix.levels, chosen, pairs, sums,
        rows, targets // rows, each, outputs, matrix.outputs, inputs, steps, spans,
        CHOSEN=routing is not None, **constants(form, matrix.name),
    )  # fmt: skip
    added = 1 if weights is None else weights.shape[1]
    out = torch.empty(targets // added, outputs, dtype=x.dtype, device=x.device)
    _join[len(out), triton.cdiv(outputs, JOINED)](
        sums, sums if bias is None else bias, chosen, sums if weights is None else weights.contiguous(), out,
        parts, added, outputs,
        CHOSEN=routing is not None, BIASED=bias is not None, WEIGHTED=weights is not None, JOINED=JOINED,
    )  # fmt: skip
    return out


def constants(form: Format, name: str) -> dict[str, int]:
    """Return the compile-time constants of the kernel for a block type."""
    return {
        "SCALE": form.scale, "STEP": form.step, "GROUP": form.group, "BITS": form.bits, "ABOVE": form.above,
        "OFFSET": form.offset, "HALVES": form.halves, "WORDS": form.words, "LEVELS": name in LEVELS,
        "LIFTS": form.scale in (LIFTED, SIX_BITS), "STEPS": SPAN // form.step, "ROWS": ROWS, "OUT": OUT,
    }  # fmt: skip


@triton.jit
def _half(halves, place, there):  # type: ignore[no-untyped-def]
    raw = tl.load(halves + place, mask=there, other=0)
    return raw.to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _scale(  # type: ignore[no-untyped-def]
    halves, words, step, n, there, outputs,
    SCALE: tl.constexpr, HALVES: tl.constexpr, WORDS: tl.constexpr, AT: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Load scale and lift of group AT of a step: float32 [OUT] each, the lift only if there is one."""
    half, word = step * HALVES * outputs + n, step * WORDS * outputs + n
    lift = tl.zeros_like(n).to(tl.float32)
    if SCALE == 0:
        scale = _half(halves, half + AT * outputs, there)
    elif SCALE == 1:
        scale = _half(halves, half + 2 * AT * outputs, there)
        lift = _half(halves, half + (2 * AT + 1) * outputs, there)
    elif SCALE == 2:
        first = tl.load(words + word, mask=there, other=0)
        second = tl.load(words + word + outputs, mask=there, other=0)
        if AT < 4:
            six, least = first >> 8 * AT & 63, second >> 8 * AT & 63
        else:
            third = tl.load(words + word + 2 * outputs, mask=there, other=0) >> 8 * (AT - 4)
            six = third & 15 | first >> 8 * (AT - 4) + 2 & 48
            least = third >> 4 & 15 | second >> 8 * (AT - 4) + 2 & 48
        scale = _half(halves, half, there) * six.to(tl.float32)
        lift = -(_half(halves, half + outputs, there) * least.to(tl.float32))
    elif SCALE == 3:
        eight = tl.load(words + word + (AT // 4) * outputs, mask=there, other=0)
        scale = _half(halves, half, there) * (eight << 24 - 8 * (AT % 4) >> 24).to(tl.float32)
    elif SCALE == 4:
        low = tl.load(words + word, mask=there, other=0) >> 4 * AT & 15
        high = tl.load(halves + half + outputs, mask=there, other=0).to(tl.int32) >> 2 * AT & 3
        scale = _half(halves, half, there) * ((low | high << 4) - 32).to(tl.float32)
    else:
        power = tl.load(halves + half, mask=there, other=0).to(tl.int32) >> 8 * AT & 255
        # 2 ** (power - 128) as bits of a float32; subnormal below 2 ** -126
        bits = tl.where(power < 2, 0x00200000 << power, (power - 1) << 23)
        scale = bits.to(tl.float32, bitcast=True)
    return scale, lift


@triton.jit
def _add(  # type: ignore[no-untyped-def]
    x, plain, inputs,
    GROUP: tl.constexpr, JOINED: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Add the inputs of each group of a row, which what lifts its weights is multiplied by."""
    row, begin, rows = tl.program_id(0), tl.program_id(1) * JOINED, tl.num_programs(0)
    place = begin + tl.arange(0, JOINED)
    given = tl.load(x + row * inputs + place, mask=place < inputs, other=0.0).to(tl.float32)
    group = begin // GROUP + tl.arange(0, JOINED // GROUP)
    found = tl.sum(tl.reshape(given, [JOINED // GROUP, GROUP]), 1)
    tl.store(plain + group * rows + row, found, mask=group < inputs // GROUP)


@triton.jit(do_not_specialize=["pairs"])
def _group(  # type: ignore[no-untyped-def]
    chosen, tiles, pairs,
    EXPERTS: tl.constexpr, PAIRS: tl.constexpr, ROWS: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Write the numbers of an expert's pairs, in order, into its tiles. The tiles of earlier experts come first."""
    expert, place, experts = tl.program_id(0), tl.arange(0, PAIRS), tl.arange(0, EXPERTS)
    counts = tl.zeros([EXPERTS], tl.int32)
    for begin in range(0, pairs, PAIRS):
        one = tl.load(chosen + begin + place, mask=begin + place < pairs, other=-1)
        counts += tl.sum((one[:, None] == experts[None, :]).to(tl.int32), 0)
    end = tl.sum(tl.where(experts < expert, (counts + ROWS - 1) // ROWS * ROWS, 0))
    for begin in range(0, pairs, PAIRS):
        mine = tl.load(chosen + begin + place, mask=begin + place < pairs, other=-1) == expert
        behind = end + tl.cumsum(mine.to(tl.int32), 0)
        tl.store(tiles + behind - 1, begin + place, mask=mine)
        end += tl.sum(mine.to(tl.int32))


@triton.jit(do_not_specialize=["rows", "each"])
def _multiply(  # type: ignore[no-untyped-def]
    x, plain, codes, above, halves, words, levels, chosen, tiles, sums,
    rows, active, each, width, outputs, inputs, steps, spans, CHOSEN: tl.constexpr,  # noqa: N803
    SCALE: tl.constexpr, STEP: tl.constexpr, GROUP: tl.constexpr, BITS: tl.constexpr, ABOVE: tl.constexpr,  # noqa: N803
    OFFSET: tl.constexpr, HALVES: tl.constexpr, WORDS: tl.constexpr, LEVELS: tl.constexpr,  # noqa: N803
    LIFTS: tl.constexpr, STEPS: tl.constexpr, ROWS: tl.constexpr, OUT: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Multiply a tile of rows by OUT outputs. A product has `width`, all experts of a matrix together `outputs`."""
    tile, panel, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    target, output = tile * ROWS + tl.arange(0, ROWS), panel * OUT + tl.arange(0, OUT)
    n, there, weight = output, output < width, tl.arange(0, GROUP)
    if CHOSEN:
        first = tl.load(tiles + tile * ROWS)
        if first < 0:
            return
        target = tl.load(tiles + target)
        n = output + tl.load(chosen + first).to(tl.int32) * width
        row, seen = target // active, target >= 0
    else:
        row, seen = target, target < rows
    none = part.to(tl.int64) * 0  # a matrix may have more numbers than 32 bits count
    total = tl.zeros([OUT, ROWS], tl.float32)
    for span in range(part * each, tl.minimum(part * each + each, spans)):
        sum_of_span = tl.zeros([OUT, ROWS], tl.float32)
        for step in range(span * STEPS, tl.minimum(span * STEPS + STEPS, steps)):
            wide = none + step
            for at in tl.static_range(STEP // GROUP):
                group = wide * (STEP // GROUP) + at
                pair = wide * (STEP // GROUP // 2) + at // 2 if BITS == 4 else group
                place = (pair * outputs + n)[:, None] * GROUP + weight[None, :]
                code = tl.load(codes + place, mask=there[:, None], other=0)
                if BITS == 4:
                    code = code >> 4 * (at % 2) & 15
                if ABOVE:
                    more = tl.load(above + group * outputs + n, mask=there, other=0)
                    code = code | ((more[:, None] >> ABOVE * weight[None, :] & (1 << ABOVE) - 1) << 4).to(
                        tl.uint8
                    )
                if LEVELS:
                    number = tl.load(levels + code)
                elif BITS == 8:
                    number = code.to(tl.int8, bitcast=True)
                elif BITS == 4:
                    number = code.to(tl.int8) - OFFSET
                else:
                    number = code
                entry = row[None, :] * inputs + (step * STEP + at * GROUP + weight)[:, None]
                given = tl.load(x + entry, mask=seen[None, :], other=0.0)
                if SCALE == 6:
                    sum_of_span = tl.dot(
                        number.to(x.dtype.element_ty), given, sum_of_span, input_precision="ieee"
                    )
                else:
                    product = tl.dot(number.to(x.dtype.element_ty), given, input_precision="ieee")
                    scale, lift = _scale(halves, words, wide, n, there, outputs, SCALE, HALVES, WORDS, at)
                    # Said outright, so that no compiler decides whether a product is rounded before it is added
                    sum_of_span = tl.fma(product, tl.broadcast_to(scale[:, None], [OUT, ROWS]), sum_of_span)
                    if LIFTS:
                        added = tl.load(
                            plain + (step * (STEP // GROUP) + at) * rows + row, mask=seen, other=0.0
                        )
                        added = tl.broadcast_to(added[None, :], [OUT, ROWS])
                        sum_of_span = tl.fma(added, tl.broadcast_to(lift[:, None], [OUT, ROWS]), sum_of_span)
        total += sum_of_span
    out = sums + (part * rows * active + target).to(tl.int64)[None, :] * width + output[:, None]
    tl.store(out, total, mask=there[:, None] & seen[None, :])


@triton.jit(do_not_specialize=["parts"])
def _join(  # type: ignore[no-untyped-def]
    sums, bias, chosen, weights, out, parts, added, outputs,
    CHOSEN: tl.constexpr, BIASED: tl.constexpr, WEIGHTED: tl.constexpr, JOINED: tl.constexpr,  # noqa: N803
):  # fmt: skip
    row, n = tl.program_id(0), tl.program_id(1) * JOINED + tl.arange(0, JOINED)
    targets, there = tl.num_programs(0) * added, n < outputs
    total = tl.zeros([JOINED], tl.float32)
    for target in range(row * added, row * added + added):
        found = tl.zeros([JOINED], tl.float32)
        for part in range(parts):
            place = (part * targets + target).to(tl.int64) * outputs + n
            found += tl.load(sums + place, mask=there, other=0.0)
        if BIASED:
            first = tl.load(chosen + target) * outputs if CHOSEN else 0
            found += tl.load(bias + first + n, mask=there, other=0.0).to(tl.float32)
        if WEIGHTED:
            found *= tl.load(weights + target).to(tl.float32)
        total += found
    tl.store(out + row.to(tl.int64) * outputs + n, total, mask=there)
