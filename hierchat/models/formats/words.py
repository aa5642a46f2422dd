"""The numbers of 32 weights between a file's block and the words that the kernels read.

In between they are eight words of four bytes, in order. Packed, bit b of word w of 32 numbers means:
4 bits: word i holds numbers 4 i to 4 i + 3 in the low halves of its bytes, and 16 further on in the high ones;
5 bits: before them a word of the fifth bits, those of pair t (numbers 4 (t / 2) + t % 2 and two further on) at bits
t and 16 + t;
6 bits: three words for every four, a byte each for three of them, and the fourth's bits two by two above.
"""

from __future__ import annotations

import numpy as np

from hierchat.jit import Kernels
from hierchat.models.formats.layouts import BYTES, NIBBLES, PAIRED

kernel = Kernels(__file__)

LOW = np.uint32(0x0F0F0F0F)
ONES = np.uint32(0x01010101)
TWOS = np.uint32(0x03030303)


@kernel
def word(halves, at):  # type: ignore[no-untyped-def]
    """The word at byte `at`, an even one, of uint16 `halves`."""
    return np.uint32(np.uint32(halves[at // 2]) | (np.uint32(halves[at // 2 + 1]) << np.uint32(16)))


@kernel
def any_word(halves, at):  # type: ignore[no-untyped-def]
    """The same at any byte: blocks of MXFP4 have 17."""
    if at % 2 == 0:
        return word(halves, at)
    low, high = np.uint32(halves[at // 2]) >> np.uint32(8), np.uint32(halves[at // 2 + 2]) & np.uint32(0xFF)
    return np.uint32(low | (np.uint32(halves[at // 2 + 1]) << np.uint32(8)) | (high << np.uint32(24)))


@kernel
def put(halves, at, value):  # type: ignore[no-untyped-def]
    halves[at // 2] = np.uint16(value & np.uint32(0xFFFF))
    halves[at // 2 + 1] = np.uint16(value >> np.uint32(16))


@kernel
def put_anywhere(halves, at, value):  # type: ignore[no-untyped-def]
    """The same at any byte; an odd one's halves are zero where it goes."""
    if at % 2 == 0:
        put(halves, at, value)
    else:
        halves[at // 2] |= np.uint16((value & np.uint32(0xFF)) << np.uint32(8))
        halves[at // 2 + 1] |= np.uint16((value >> np.uint32(8)) & np.uint32(0xFFFF))
        halves[at // 2 + 2] |= np.uint16(value >> np.uint32(24))


@kernel
def read(source, row, at, numbers, high, block, out):  # type: ignore[no-untyped-def]
    """Block `block` of 32 of the file's block at byte `at` of a row (uint16) into eight words."""
    if source == NIBBLES:
        for i in range(4):
            both = any_word(row, at + numbers + 16 * block + 4 * i)
            out[i] = both & LOW
            out[4 + i] = (both >> np.uint32(4)) & LOW
        if high:
            bits = word(row, at + high)
            for i in range(8):
                four = (bits >> np.uint32(4 * i)) & np.uint32(15)
                out[i] |= ((four * np.uint32(0x00204081)) & ONES) << np.uint32(4)
    elif source == PAIRED:  # two blocks share 32 bytes
        for i in range(8):
            both = word(row, at + numbers + 32 * (block // 2) + 4 * i)
            out[i] = (both >> np.uint32(4 * (block % 2))) & LOW
            if high:
                out[i] |= ((word(row, at + high + 4 * i) >> np.uint32(block)) & ONES) << np.uint32(4)
    elif source == BYTES:
        for i in range(8):
            out[i] = word(row, at + numbers + 4 * i)
    else:
        half, quarter = block // 4, block % 4
        for i in range(8):
            both = word(row, at + numbers + 64 * half + 32 * (quarter % 2) + 4 * i)
            two = word(row, at + high + 32 * half + 4 * i) >> np.uint32(2 * quarter)
            out[i] = ((both >> np.uint32(4 * (quarter // 2))) & LOW) | ((two & TWOS) << np.uint32(4))


@kernel
def write(source, row, at, numbers, high, block, given):  # type: ignore[no-untyped-def]
    """The way back; the row's bytes are zero before the first block is written."""
    if source == NIBBLES:
        bits = np.uint32(0)
        for i in range(8):
            five = (given[i] >> np.uint32(4)) & ONES
            bits |= (((five * np.uint32(0x10204080)) >> np.uint32(28)) & np.uint32(15)) << np.uint32(4 * i)
        for i in range(4):
            both = (given[i] & LOW) | ((given[4 + i] & LOW) << np.uint32(4))
            put_anywhere(row, at + numbers + 16 * block + 4 * i, both)
        if high:
            put(row, at + high, bits)
    elif source == PAIRED:
        for i in range(8):
            there = at + numbers + 32 * (block // 2) + 4 * i
            put(row, there, word(row, there) | ((given[i] & LOW) << np.uint32(4 * (block % 2))))
            if high:
                there = at + high + 4 * i
                put(row, there, word(row, there) | (((given[i] >> np.uint32(4)) & ONES) << np.uint32(block)))
    elif source == BYTES:
        for i in range(8):
            put(row, at + numbers + 4 * i, given[i])
    else:
        half, quarter = block // 4, block % 4
        for i in range(8):
            there = at + numbers + 64 * half + 32 * (quarter % 2) + 4 * i
            put(row, there, word(row, there) | ((given[i] & LOW) << np.uint32(4 * (quarter // 2))))
            there = at + high + 32 * half + 4 * i
            put(
                row, there, word(row, there) | (((given[i] >> np.uint32(4)) & TWOS) << np.uint32(2 * quarter))
            )


@kernel
def pack(bits, numbers, out):  # type: ignore[no-untyped-def]
    """Eight words of numbers into the words that lie in memory; returns how many."""
    if bits == 8:
        for i in range(8):
            out[i] = numbers[i]
        return 8
    if bits == 6:
        for i in range(2):
            fourth = numbers[4 * i + 3]
            for part in range(3):
                above = (fourth >> np.uint32(2 * part)) & TWOS
                out[3 * i + part] = numbers[4 * i + part] | (above << np.uint32(6))
        return 6
    first = 0
    if bits == 5:
        fifth = np.uint32(0)
        for i in range(8):
            ones = (numbers[i] >> np.uint32(4)) & ONES
            fifth |= ((ones | (ones >> np.uint32(7))) & np.uint32(0x00030003)) << np.uint32(2 * i)
        out[0] = fifth
        first = 1
    for i in range(4):
        out[first + i] = (numbers[i] & LOW) | ((numbers[4 + i] & LOW) << np.uint32(4))
    return first + 4


@kernel
def unpack(bits, words, out):  # type: ignore[no-untyped-def]
    """The way back."""
    if bits == 8:
        for i in range(8):
            out[i] = words[i]
        return
    if bits == 6:
        for i in range(2):
            fourth = np.uint32(0)
            for part in range(3):
                both = words[3 * i + part]
                out[4 * i + part] = both & np.uint32(0x3F3F3F3F)
                fourth |= ((both >> np.uint32(6)) & TWOS) << np.uint32(2 * part)
            out[4 * i + 3] = fourth
        return
    first = bits - 4
    for i in range(4):
        out[i] = words[first + i] & LOW
        out[4 + i] = (words[first + i] >> np.uint32(4)) & LOW
    if first:
        for i in range(8):
            two = (words[0] >> np.uint32(2 * i)) & np.uint32(0x00030003)
            out[i] |= ((two | (two << np.uint32(7))) & ONES) << np.uint32(4)
