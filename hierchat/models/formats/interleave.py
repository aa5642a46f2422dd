"""Matrices of a file into panels (layouts) and rows of them back, compiled."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
from numpy.typing import NDArray

from hierchat.jit import Kernels
from hierchat.models.formats.layouts import LAYOUTS
from hierchat.models.formats.words import pack, read, unpack, write

kernel = Kernels(__file__)

Raw = NDArray[np.uint8]
THREADS = 2
_LITTLE = 64
"""Panels below which a second thread is not worth its start."""


def interleave(name: str, raw: Raw, lanes: int, order: NDArray[np.int64] | None = None) -> Raw:
    """Rows as a file has them, uint8 [rows, bytes of a row], as one piece of panels. `order`: which row goes where."""
    order = np.arange(len(raw)) if order is None else order
    row_bytes, panels = raw.shape[1], -(-len(order) // lanes)
    out = np.empty(panels * lanes * row_bytes, np.uint8)
    out[(len(order) // lanes) * lanes * row_bytes :] = 0
    # A row of MXFP4 may have an odd number of bytes
    raw = np.pad(raw, ((0, 0), (0, 1))) if row_bytes % 2 else np.ascontiguousarray(raw)
    cuts = np.linspace(0, panels, 4 * THREADS + 1 if panels > _LITTLE else 2).astype(int).tolist()

    def part(number: int) -> None:
        _interleave(
            raw, raw.view(np.uint16), order, *_tables(name), lanes, cuts[number], cuts[number + 1], out
        )

    part(0)
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(part, range(1, len(cuts) - 1)))
    return out


def restore(name: str, data: Raw, lanes: int, rows: NDArray[np.int64], row_bytes: int) -> Raw:
    """Some rows of panels as a file has them: uint8 [len(rows), row_bytes]."""
    out = np.zeros((len(rows), row_bytes + row_bytes % 2), np.uint8)
    _restore(data, rows, *_tables(name), lanes, out, out.view(np.uint16))
    return out[:, :row_bytes]


@cache
def _tables(name: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The fields of the head, and the rest of a layout."""
    layout = LAYOUTS[name]
    fields = np.array([[f.offset, f.size, f.count] for f in layout.head], np.int64)
    rest = [layout.weights, layout.size, layout.bits, layout.source, layout.numbers, layout.high]
    return fields, np.array(rest, np.int64)


@kernel
def _interleave(raw, halves, order, fields, rest, lanes, first, last, out):  # type: ignore[no-untyped-def]
    """Panels first .. last - 1; row r of the result is row order[r] of `raw`, which `halves` shows as uint16."""
    weights, size, bits, source, numbers, high = rest
    words = out.view(np.uint32)
    row_bytes = raw.shape[1] // size * size
    some, packed = np.zeros(8, np.uint32), np.zeros(8, np.uint32)
    for panel in range(first, last):
        begin = panel * lanes
        for lane in range(min(lanes, order.shape[0] - begin)):
            row, row_halves = raw[order[begin + lane]], halves[order[begin + lane]]
            for block in range(row_bytes // size):
                at = block * size
                to = begin * row_bytes + at * lanes
                for f in range(fields.shape[0]):
                    width = fields[f, 1]
                    for element in range(fields[f, 2]):
                        for byte in range(width):
                            out[to + lane * width + byte] = row[at + fields[f, 0] + element * width + byte]
                        to += lanes * width
                if bits:
                    place = to // 4 + lane
                    for number in range(weights // 32):
                        read(source, row_halves, at, numbers, high, number, some)
                        for i in range(pack(bits, some, packed)):
                            words[place] = packed[i]
                            place += lanes


@kernel
def _restore(data, rows, fields, rest, lanes, out, halves):  # type: ignore[no-untyped-def]
    """Rows of panels into `out` [len(rows), bytes of a row], zeros before, which `halves` shows as uint16."""
    weights, size, bits, source, numbers, high = rest
    row_bytes = out.shape[1] // size * size
    some, packed = np.zeros(8, np.uint32), np.zeros(8, np.uint32)
    for index in range(rows.shape[0]):
        begin, lane = rows[index] // lanes * lanes, rows[index] % lanes
        for block in range(row_bytes // size):
            at = block * size
            source_at = begin * row_bytes + at * lanes
            for f in range(fields.shape[0]):
                width = fields[f, 1]
                for element in range(fields[f, 2]):
                    for byte in range(width):
                        out[index, at + fields[f, 0] + element * width + byte] = data[
                            source_at + lane * width + byte
                        ]
                    source_at += lanes * width
            for number in range(weights // 32 if bits else 0):
                for i in range(bits):  # 32 numbers of so many bits are so many words
                    place = source_at + 4 * (i * lanes + lane)
                    packed[i] = (
                        np.uint32(data[place])
                        | np.uint32(data[place + 1]) << np.uint32(8)
                        | np.uint32(data[place + 2]) << np.uint32(16)
                        | np.uint32(data[place + 3]) << np.uint32(24)
                    )
                unpack(bits, packed, some)
                write(source, halves[index], at, numbers, high, number, some)
                source_at += 4 * bits * lanes
