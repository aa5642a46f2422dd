"""Keep matrices of a GGUF file on a device in their blocks, of the file's size and unrounded.
Parts of the blocks are separate tensors, in which rows are neighbours, so that loads are wide."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from hierchat.models.formats.blocks import floats_of
from hierchat.models.formats.layouts import LAYOUTS, LEVELS, numbers_of

HALF, LIFTED, SIX_BITS, EIGHT_BITS, IQ4, POWER, NONE = range(7)
"""Scale of a group of weights: a float16; that and a float16 to add; 6 bits and 6 of a minimum, times one float16 each;
8 bits, signed; 6 bits around 32; a power of two; none."""


@dataclass(frozen=True, slots=True)
class Format:
    """Layout of a block type on a device. A step along the rows is `step` weights in groups of `group`, which share a
    scale, and in runs of `run`. Numbers have `bits` in words of 16 bits, which hold one number each of two or four
    runs; `above` bits more are in bytes, which hold those of several runs. A weight is its number less `offset`, or its
    level, times the scale. The scales of a step are `halves` numbers of 16 bits and `words` of 32."""

    scale: int
    halves: int
    words: int = 0
    step: int = 256
    group: int = 32
    run: int = 32
    bits: int = 4
    above: int = 0
    offset: int = 0
    looked_up: bool = False
    """Whether the kernel looks the levels up; those of MXFP4 are made of the numbers' bits."""

    @property
    def unit(self) -> float:
        """Return what numbers count in the kernel, which takes bits of a number for those of a float16."""
        return 1.0 if self.looked_up else 2.0**15 if self.scale == POWER else 2.0**24


FORMATS = {
    "Q4_0": Format(HALF, 2, step=64, run=16, offset=8),
    "Q4_1": Format(LIFTED, 4, step=64, run=16),
    "Q5_0": Format(HALF, 4, step=128, run=16, above=1, offset=16),
    "Q5_1": Format(LIFTED, 8, step=128, run=16, above=1),
    "Q8_0": Format(HALF, 2, step=64, bits=8, offset=128),
    "Q4_K": Format(SIX_BITS, 2, 3),
    "Q5_K": Format(SIX_BITS, 2, 3, above=1),
    "Q6_K": Format(EIGHT_BITS, 1, 4, group=16, run=16, above=2, offset=32),
    "IQ4_NL": Format(HALF, 2, step=64, run=16, looked_up=True),
    "IQ4_XS": Format(IQ4, 2, 1, looked_up=True),
    "MXFP4": Format(POWER, 1, step=64, run=16),
    "PLAIN": Format(NONE, 0, step=32, bits=16),
}
"""Block types that the kernel computes (triton_blocks.py); PLAIN are weights of 16 bits."""
_AT_ONCE = 1 << 26
"""Weights that are laid out at a time, to bound memory."""


@dataclass(slots=True)
class Packed:
    """Matrix [outputs, inputs] of the format `name` on a device. `codes` [runs / runs in a word, outputs, run] int16 or
    16-bit floats; `above` [runs / runs in a byte, outputs, run] uint8; `halves` [steps, halves, outputs] int16; `words`
    [steps, words, outputs] int32."""

    name: str
    outputs: int
    inputs: int
    codes: torch.Tensor
    above: torch.Tensor
    halves: torch.Tensor
    words: torch.Tensor

    @property
    def format(self) -> Format:
        return FORMATS[self.name]

    @property
    def nbytes(self) -> int:
        return sum(one.nbytes for one in (self.codes, self.above, self.halves, self.words))

    @property
    def levels(self) -> torch.Tensor:
        """Return the bits of the levels that the kernel looks up, int16 [16]; empty if the numbers are the weights."""
        return _levels(self.name if self.format.looked_up else "", self.codes.device).view(torch.int16)

    def floats(self, rows: torch.Tensor | None = None) -> torch.Tensor:
        """Unpack rows of the matrix, all by default: float32 [rows, inputs]. Nothing is copied to the host."""
        form, parts = self.format, [self.codes, self.above, self.halves, self.words]
        if rows is not None:
            parts = [part.index_select(-1 if n > 1 else 1, rows) for n, part in enumerate(parts)]
        codes, above, halves, words = parts
        count = codes.shape[1]
        if form.scale == NONE:
            return codes.float().transpose(0, 1).reshape(count, -1)
        numbers = _apart(codes, form.bits)
        if form.above:
            numbers = numbers | _apart(above, form.above).to(torch.int16) << 4
        weights = numbers.float() - form.offset
        if self.name in LEVELS:
            weights = _levels(self.name, codes.device)[numbers.long()].float()
        scale, lift = _scales(form, halves, words)  # [groups, rows]
        weights = weights.transpose(0, 1).reshape(count, -1, form.group) * scale.T[..., None]
        if lift is not None:
            weights = weights + lift.T[..., None]
        return weights.reshape(count, -1)


def pack(
    name: str,
    raw: NDArray[np.uint8],
    device: torch.device | str,
    dtype: torch.dtype,
    order: NDArray[np.int64] | None = None,
) -> Packed:
    """Lay out a matrix of a file, uint8 [rows, bytes of a row], on a device. `order`: target row of each row.
    A type without a kernel becomes 16-bit `dtype`. Raises ValueError for rows that are no whole steps."""
    layout = LAYOUTS.get(name)
    count = len(raw) if order is None else len(order)
    inputs = raw.shape[1] // layout.size * layout.weights if layout else floats_of(name, raw[:1]).shape[1]
    kind = name if name in FORMATS and inputs % FORMATS[name].step == 0 else "PLAIN"
    form = FORMATS[kind]
    if inputs % form.step:
        raise ValueError(f"rows of {inputs} weights, which are no multiple of {form.step}")
    made = unfilled(kind, count, inputs, device, dtype)
    height = max(_AT_ONCE // inputs, 1)
    for begin in range(0, count, height):
        here = slice(begin, min(begin + height, count))
        rows = np.array(raw[here if order is None else order[here]], order="C")  # torch wants to write to it
        if kind == "PLAIN":
            floats = torch.from_numpy(np.ascontiguousarray(floats_of(name, rows))).to(device)
            made.codes[:, here] = plain(floats.to(dtype)).codes
            continue
        assert layout
        blocks = torch.from_numpy(rows).to(device).view(len(rows), -1, layout.size)
        shifts = torch.arange(8, dtype=torch.uint8, device=blocks.device)
        numbers = numbers_of(layout, blocks, shifts, torch).reshape(len(rows), -1, form.run).transpose(0, 1)
        low = numbers ^ 128 if form.bits == 8 else numbers & 15
        made.codes[:, here] = _together(low.to(torch.int16), form.bits)
        if form.above:
            made.above[:, here] = _together(numbers >> 4, form.above)
        for wide, part in ((2, made.halves), (4, made.words)):
            fields = [one for one in layout.head if (one.size * one.count % 4 == 0) == (wide == 4)]
            if fields:
                some = torch.cat([blocks[..., f.offset : f.offset + f.size * f.count] for f in fields], -1)
                some = some.reshape(len(rows), len(part), -1).contiguous()
                part[..., here] = some.view(part.dtype).permute(1, 2, 0)
    return made


def plain(weights: torch.Tensor) -> Packed:
    """Lay out weights of 16 bits, [outputs, inputs], on their device. Inputs are a multiple of 32."""
    outputs, inputs = weights.shape
    made = unfilled("PLAIN", outputs, inputs, weights.device, weights.dtype)
    made.codes.copy_(weights.detach().reshape(outputs, -1, FORMATS["PLAIN"].run).transpose(0, 1))
    return made


def unfilled(name: str, outputs: int, inputs: int, device: torch.device | str, dtype: torch.dtype) -> Packed:
    """Make room for a matrix of the format `name`."""
    form = FORMATS[name]
    runs, steps = inputs // form.run, inputs // form.step
    kind = torch.int16 if form.bits < 16 else dtype
    return Packed(
        name,
        outputs,
        inputs,
        torch.empty(runs * form.bits // 16, outputs, form.run, dtype=kind, device=device),
        torch.empty(runs * form.above // 8, outputs, form.run, dtype=torch.uint8, device=device),
        torch.empty(steps, form.halves, outputs, dtype=torch.int16, device=device),
        torch.empty(steps, form.words, outputs, dtype=torch.int32, device=device),
    )


def _together(numbers: torch.Tensor, bits: int) -> torch.Tensor:
    """Put the numbers of as many runs as have room into one, lowest bits first: [words, rows, run]."""
    shifts = range(0, 8 * numbers.itemsize, bits)
    of_place = numbers.unflatten(0, (-1, len(shifts))).unbind(1)
    return sum(one << by for one, by in zip(of_place, shifts, strict=True))


def _apart(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Undo `_together`: [runs, rows, run]."""
    numbers = [words >> by & (1 << bits) - 1 for by in range(0, 8 * words.itemsize, bits)]
    return torch.stack(numbers, 1).flatten(0, 1)


def _scales(
    form: Format, halves: torch.Tensor, words: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return scale and what is added to each weight, if anything, by group and row: float32 [groups, rows]."""

    def both(fields: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack(fields, 1).flatten(0, 1)

    values = halves.view(torch.float16).float()
    if form.scale == HALF:
        return values.flatten(0, 1), None
    if form.scale == LIFTED:
        return values[:, ::2].flatten(0, 1), values[:, 1::2].flatten(0, 1)
    if form.scale == SIX_BITS:
        first, second, third = words.unbind(1)
        scales = [first >> 8 * n & 63 for n in range(4)]
        scales += [third >> 8 * n & 15 | first >> 8 * n + 2 & 48 for n in range(4)]
        least = [second >> 8 * n & 63 for n in range(4)]
        least += [third >> 8 * n + 4 & 15 | second >> 8 * n + 2 & 48 for n in range(4)]
        return both([values[:, 0] * one for one in scales]), both([-values[:, 1] * one for one in least])
    if form.scale == EIGHT_BITS:
        return both([values[:, 0] * (words[:, n // 4] << 24 - 8 * (n % 4) >> 24) for n in range(16)]), None
    if form.scale == IQ4:
        low, high = words[:, 0], halves[:, 1].int()
        sixes = [(low >> 4 * n & 15 | (high >> 2 * n & 3) << 4) - 32 for n in range(8)]
        return both([values[:, 0] * one for one in sixes]), None
    return both([torch.exp2((halves[:, 0].int() >> 8 * n & 255).float() - 128) for n in range(2)]), None


@cache
def _levels(name: str, device: torch.device) -> torch.Tensor:
    return torch.tensor(LEVELS.get(name, ()), dtype=torch.float16, device=device)
