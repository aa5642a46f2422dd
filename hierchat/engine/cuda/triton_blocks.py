"""Multiply rows of activations by matrices in the blocks of a file (packed.py) on CUDA.

One kernel, compiled once for each block type, computes any number of rows in tiles of ROWS: one tile for a step of
decoding, many for a prompt. The inputs of a row are summed in an order that the matrix's shape alone determines: SPANs
from first to last, each step by step. Rows of a tile never mix. So a row has the same bits in every forward.
If rows chose experts, a tile has rows of one expert only, and everything else is the same."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, cast

import torch
import triton
import triton.language as tl

from hierchat.engine.cuda.packed import NONE, Format, Packed

ROWS = 32
"""Rows of a tile; those that are missing are zeros."""
OUT = 64
"""Outputs of a program."""
SPAN = 1024
"""Inputs that are summed by themselves before they are added to those before: by another program if rows are few."""
FEW = 4 * ROWS
"""With at most so many rows, each span is computed by its own program; more rows need more programs anyway."""
WIDEST = 256
"""Inputs of a step, at most."""
JOINED = 256
LIFTS = 2 * (WIDEST // 32)
"""Numbers that hold the sums of each 32 inputs of a step, in two parts each. They multiply what is added to weights."""
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
    """Multiply rows [..., inputs] by a matrix: [rows, outputs]. A CUDA graph may hold its launches.

    With a `routing` the matrix has the rows of all experts, one expert after the other, and the result is [pairs,
    outputs]; `x` has one row for all pairs of a row, or one for each pair. `bias` [outputs], or [experts, outputs] with
    a `routing`. `weights` [rows, active]: return the weighted sums over the experts of each row, in the order of its
    choice."""
    form, inputs, rows = matrix.format, matrix.inputs, x.numel() // matrix.inputs
    targets, outputs, tiles = rows, matrix.outputs, triton.cdiv(rows, ROWS)
    if routing:
        targets, outputs, tiles = routing.chosen.numel(), outputs // routing.experts, len(routing.tiles)
    fixed = constants(form, inputs)
    steps, spans = inputs // fixed["STEP"], triton.cdiv(inputs, SPAN)
    each = 1 if targets <= FEW else spans
    parts = triton.cdiv(spans, each)
    given = Scaled(x.contiguous(), x, x) if form.scale == NONE else _scaled_down(x, rows, fixed["STEP"])
    sums = torch.empty(parts, targets, outputs, dtype=torch.float32, device=x.device)
    chosen, pairs = (routing.chosen, routing.tiles) if routing else (x, x)  # any addresses: they are not read
    _multiply[tiles, triton.cdiv(outputs, OUT), parts](
        *given, _words(matrix.codes), _words(matrix.above), matrix.halves, matrix.words, matrix.levels,
        chosen, pairs, sums, rows, targets // rows, each, outputs, matrix.outputs, inputs, steps, spans,
        CHOSEN=routing is not None, **fixed,
    )  # fmt: skip
    added = 1 if weights is None else weights.shape[1]
    out = torch.empty(targets // added, outputs, dtype=x.dtype, device=x.device)
    _join[len(out), triton.cdiv(outputs, JOINED)](
        sums, sums if bias is None else bias, chosen, sums if weights is None else weights.contiguous(), out,
        parts, added, outputs,
        CHOSEN=routing is not None, BIASED=bias is not None, WEIGHTED=weights is not None, JOINED=JOINED,
    )  # fmt: skip
    return out


class Scaled(NamedTuple):
    """Rows of which each span is divided by a power of two, so that it fits float16: float16 `rows` [rows, inputs];
    `sums` of each 32 of them, twice LIFTS // 2 of a step; float32 `units` [spans, rows], the powers."""

    rows: torch.Tensor
    sums: torch.Tensor
    units: torch.Tensor


def _scaled_down(x: torch.Tensor, rows: int, step: int) -> Scaled:
    """Return rows with numbers below 1,024, and sums for steps of `step` inputs. Float32 numbers stay float32. The
    tensor keeps the result, because several matrices may multiply it; nothing may be written to it afterwards."""
    if found := getattr(x, "scaled_down", None):
        return cast(Scaled, found)
    inputs, kind = x.shape[-1], torch.float32 if x.dtype == torch.float32 else torch.float16
    scaled = Scaled(
        torch.empty(rows, inputs, dtype=kind, device=x.device),
        torch.empty(rows, inputs // step, LIFTS, dtype=kind, device=x.device),
        torch.empty(triton.cdiv(inputs, SPAN), rows, device=x.device),
    )
    _scale_down[rows, len(scaled.units)](x.contiguous(), *scaled, inputs, STEP=step, SPAN=SPAN, LIFTS=LIFTS)
    x.scaled_down = scaled  # type: ignore[attr-defined]
    return scaled


def _words(numbers: torch.Tensor) -> torch.Tensor:
    """View the bits of two neighbouring numbers as one."""
    wider = {torch.int16: torch.int32, torch.uint8: torch.int16}
    return numbers.view(wider.get(numbers.dtype, numbers.dtype))


def constants(form: Format, inputs: int) -> dict[str, Any]:
    """Return the compile-time constants of the kernel for rows of a block type. Its steps may be several of the
    format's, so that more loads are under way."""
    step = math.gcd(inputs, SPAN, WIDEST // 2 if form.scale == NONE else WIDEST)
    several = step // form.step
    return {
        "SCALE": form.scale, "STEP": step, "GROUP": form.group, "RUN": form.run, "BITS": form.bits,
        "ABOVE": form.above, "OFFSET": form.offset, "HALVES": form.halves * several, "WORDS": form.words,
        "UNIT": form.unit, "LEVELS": form.looked_up, "STEPS": SPAN // step, "LIFTS": LIFTS, "ROWS": ROWS,
        "OUT": OUT,
    }  # fmt: skip


@triton.jit
def _scale_down(  # type: ignore[no-untyped-def]
    x, scaled, sums, units, inputs,
    STEP: tl.constexpr, SPAN: tl.constexpr, LIFTS: tl.constexpr,  # noqa: N803
):  # fmt: skip
    row, span, rows = tl.program_id(0), tl.program_id(1), tl.num_programs(0)
    place = span * SPAN + tl.arange(0, SPAN)
    given = tl.load(x + row * inputs + place, mask=place < inputs, other=0.0).to(tl.float32)
    # The bits of a float32 hold its exponent. We read that of the largest, and make powers of two of such bits
    exponent = tl.max(tl.abs(given), 0).to(tl.int32, bitcast=True) >> 23
    exponent = tl.minimum(tl.maximum(exponent, 10), 244)
    given *= (263 - exponent << 23).to(tl.float32, bitcast=True)
    tl.store(units + span * rows + row, (exponent - 9 << 23).to(tl.float32, bitcast=True))
    tl.store(scaled + row * inputs + place, given, mask=place < inputs)
    group, each = span * (SPAN // 32) + tl.arange(0, SPAN // 32), STEP // 32
    found = tl.sum(tl.reshape(given, [SPAN // 32, 32]), 1)
    # A sum takes two numbers of 16 bits: itself rounded, and what that leaves
    rounded = found.to(sums.dtype.element_ty)
    entry = sums + (row * (inputs // STEP) + group // each) * LIFTS + group % each
    tl.store(entry, rounded, mask=group < inputs // 32)
    tl.store(entry + each, found - rounded.to(tl.float32), mask=group < inputs // 32)


@triton.jit
def _half(halves, place, there):  # type: ignore[no-untyped-def]
    return tl.load(halves + place, mask=there, other=0).to(tl.float16, bitcast=True)


@triton.jit
def _numbers(  # type: ignore[no-untyped-def]
    code, more, levels, six, PLACE: tl.constexpr, HIGH: tl.constexpr, SCALE: tl.constexpr, BITS: tl.constexpr,  # noqa: N803
    ABOVE: tl.constexpr, OFFSET: tl.constexpr, LEVELS: tl.constexpr, OUT: tl.constexpr, RUN: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Take a run's numbers out of words [OUT, RUN // 2], which hold those of two weights in their halves, and multiply
    them by scales of 6 bits, if there are: float16 [OUT, RUN], in units of the format."""
    both: tl.constexpr = 0x10001
    number = code >> PLACE * BITS & ((1 << BITS) - 1) * both
    if ABOVE:
        down: tl.constexpr = HIGH * ABOVE - 4
        moved = more >> down if down > 0 else more << -down
        number |= moved & ((1 << ABOVE) - 1 << 4) * both
    if SCALE == 2:
        number *= six[:, None]
    elif SCALE == 5:  # move sign, exponent and mantissa to their places in a float16
        number = (number & 8 * both) << 12 | (number & 7 * both) << 9
    first, second = number & 0xFFFF, number >> 16
    if LEVELS:
        first, second = tl.load(levels + first), tl.load(levels + second)
    # The bits of a whole number below 2,048 are those of a float16, 2 ** 24 times as small
    first = first.to(tl.int16).to(tl.float16, bitcast=True)
    second = second.to(tl.int16).to(tl.float16, bitcast=True)
    return tl.reshape(tl.join(first, second), [OUT, RUN]) - OFFSET * 2.0**-24


@triton.jit
def _scale(  # type: ignore[no-untyped-def]
    halves, words, half, word, there, outputs,
    SCALE: tl.constexpr, AT: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Load the scale of group AT of a step, without the one of the whole step: float32 [OUT], or whole numbers."""
    if SCALE == 0:
        scale = _half(halves, half + AT * outputs, there).to(tl.float32)
    elif SCALE == 1:
        scale = _half(halves, half + 2 * AT * outputs, there).to(tl.float32)
    elif SCALE == 2:
        if AT < 4:
            scale = tl.load(words + word, mask=there, other=0) >> 8 * AT & 63
        else:
            scale = tl.load(words + word + 2 * outputs, mask=there, other=0) >> 8 * (AT - 4) & 15
            scale |= tl.load(words + word, mask=there, other=0) >> 8 * (AT - 4) + 2 & 48
    elif SCALE == 3:
        eight = tl.load(words + word + (AT // 4) * outputs, mask=there, other=0)
        scale = (eight << 24 - 8 * (AT % 4) >> 24).to(tl.float32)
    elif SCALE == 4:
        low = tl.load(words + word, mask=there, other=0) >> 4 * AT & 15
        high = tl.load(halves + half + outputs, mask=there, other=0).to(tl.int32) >> 2 * AT & 3
        scale = ((low | high << 4) - 32).to(tl.float32)
    else:
        both = tl.load(halves + half + AT // 2 * outputs, mask=there, other=0).to(tl.int32)
        power = both >> 8 * (AT % 2) & 255
        # 2 ** (power - 128) as bits of a float32; subnormal below 2 ** -126
        bits = tl.where(power < 2, 0x00200000 << power, (power - 1) << 23)
        scale = bits.to(tl.float32, bitcast=True)
    return scale


@triton.jit
def _least(  # type: ignore[no-untyped-def]
    halves, words, half, word, there, outputs,
    SCALE: tl.constexpr, GROUPS: tl.constexpr, LIFTS: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Load what is added to the weights of each group of a step, twice: float16 [OUT, LIFTS]. Where a step has a scale
    of them all, they are without it."""
    group = tl.arange(0, LIFTS) % GROUPS
    if SCALE == 1:
        place = half[:, None] + (2 * group + 1)[None, :] * outputs
        least = _half(halves, place, there[:, None] & (tl.arange(0, LIFTS) < 2 * GROUPS)[None, :])
    else:
        second = tl.load(words + word + outputs, mask=there, other=0)[:, None]
        third = tl.load(words + word + 2 * outputs, mask=there, other=0)[:, None]
        by = (group % 4 * 8)[None, :]
        upper = third >> by + 4 & 15 | second >> by + 2 & 48
        least = tl.where((group < 4)[None, :], second >> by & 63, upper).to(tl.float16)
    return least


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
    x, lifts, units, codes, above, halves, words, levels, chosen, tiles, sums,
    rows, active, each, width, outputs, inputs, steps, spans, CHOSEN: tl.constexpr,  # noqa: N803
    SCALE: tl.constexpr, STEP: tl.constexpr, GROUP: tl.constexpr, RUN: tl.constexpr, BITS: tl.constexpr,  # noqa: N803
    ABOVE: tl.constexpr, OFFSET: tl.constexpr, HALVES: tl.constexpr, WORDS: tl.constexpr, UNIT: tl.constexpr,  # noqa: N803
    LEVELS: tl.constexpr, STEPS: tl.constexpr, LIFTS: tl.constexpr, ROWS: tl.constexpr, OUT: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Multiply a tile of rows by OUT outputs. A product has `width`, all experts of a matrix together `outputs`."""
    tile, panel, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    target, output = tile * ROWS + tl.arange(0, ROWS), panel * OUT + tl.arange(0, OUT)
    n, there, weight = output, output < width, tl.arange(0, RUN)
    if CHOSEN:
        first = tl.load(tiles + tile * ROWS)
        if first < 0:
            return
        target = tl.load(tiles + target)
        n = output + tl.load(chosen + first).to(tl.int32) * width
        row, seen = target // active, target >= 0
    else:
        row, seen = target, target < rows
    kind: tl.constexpr = x.dtype.element_ty
    runs: tl.constexpr = STEP // RUN
    joined: tl.constexpr = 16 // BITS  # runs whose numbers share words of 16 bits
    highs: tl.constexpr = 8 // ABOVE if ABOVE else 1  # runs whose bits above share bytes
    words_of_run: tl.constexpr = RUN if BITS == 16 else RUN // 2
    word_of_run = tl.arange(0, words_of_run)
    none = part.to(tl.int64) * 0  # a matrix may have more numbers than 32 bits count
    total = tl.zeros([OUT, ROWS], tl.float32)
    for span in range(part * each, tl.minimum(part * each + each, spans)):
        sum_of_span = tl.zeros([OUT, ROWS], tl.float32)
        for step in range(span * STEPS, tl.minimum(span * STEPS + STEPS, steps)):
            wide = none + step
            half, word = wide * HALVES * outputs + n, wide * WORDS * outputs + n
            sum_of_step = tl.zeros([OUT, ROWS], tl.float32)
            for run in tl.static_range(runs):
                if run % joined == 0:
                    unit = wide * (runs // joined) + run // joined
                    place = (unit * outputs + n)[:, None] * words_of_run + word_of_run[None, :]
                    code = tl.load(codes + place, mask=there[:, None], other=0)
                if ABOVE == 0:
                    more = code
                elif run % highs == 0:
                    unit = wide * (runs // highs) + run // highs
                    place = (unit * outputs + n)[:, None] * words_of_run + word_of_run[None, :]
                    more = tl.load(above + place, mask=there[:, None], other=0).to(tl.int32)
                    more = more & 0xFF | (more & 0xFF00) << 8
                entry = row[None, :] * inputs + (step * STEP + run * RUN + weight)[:, None]
                given = tl.load(x + entry, mask=seen[None, :], other=0.0)
                if SCALE == 6:
                    sum_of_span = tl.dot(code, given, sum_of_span, input_precision="ieee")
                else:
                    scale = _scale(halves, words, half, word, there, outputs, SCALE, run * RUN // GROUP)
                    number = _numbers(
                        code, more, levels, scale, run % joined, run % highs, SCALE, BITS, ABOVE, OFFSET, LEVELS,
                        OUT, RUN,
                    ).to(kind)  # fmt: skip
                    if SCALE == 2:
                        sum_of_step = tl.dot(number, given, sum_of_step, input_precision="ieee")
                    else:
                        if run * RUN % GROUP == 0:
                            product = tl.zeros([OUT, ROWS], tl.float32)
                        product = tl.dot(number, given, product, input_precision="ieee")
                        if (run + 1) * RUN % GROUP == 0:
                            # Said outright, so that no compiler decides whether a product is rounded before it is added
                            if SCALE < 2 or SCALE == 5:
                                scale = tl.broadcast_to((scale * UNIT)[:, None], [OUT, ROWS])
                                sum_of_span = tl.fma(product, scale, sum_of_span)
                            else:
                                scale = tl.broadcast_to(scale[:, None], [OUT, ROWS])
                                sum_of_step = tl.fma(product, scale, sum_of_step)
            if SCALE > 1 and SCALE < 5:
                whole = _half(halves, half, there).to(tl.float32) * UNIT
                sum_of_span = tl.fma(sum_of_step, tl.broadcast_to(whole[:, None], [OUT, ROWS]), sum_of_span)
            if SCALE == 1 or SCALE == 2:
                lift = tl.arange(0, LIFTS)[:, None]
                entry = (row[None, :] * steps + step) * LIFTS + lift
                given = tl.load(lifts + entry, mask=seen[None, :] & (lift < 2 * STEP // GROUP), other=0.0)
                least = _least(halves, words, half, word, there, outputs, SCALE, STEP // GROUP, LIFTS)
                if SCALE == 1:
                    sum_of_span = tl.dot(least.to(kind), given, sum_of_span, input_precision="ieee")
                else:
                    whole = -_half(halves, half + outputs, there).to(tl.float32)
                    product = tl.dot(least.to(kind), given, input_precision="ieee")
                    sum_of_span = tl.fma(product, tl.broadcast_to(whole[:, None], [OUT, ROWS]), sum_of_span)
        if SCALE == 6:
            total += sum_of_span
        else:
            back = tl.load(units + span * rows + row, mask=seen, other=0.0)
            total = tl.fma(sum_of_span, tl.broadcast_to(back[None, :], [OUT, ROWS]), total)
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
