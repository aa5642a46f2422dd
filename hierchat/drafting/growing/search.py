"""Where a suffix of the text occurs in a sorted run."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from hierchat.drafting.growing import kernel
from hierchat.drafting.growing.layout import BREAK, MAX_MATCH


@intrinsic
def peek(typing: Any, address: Any, index: Any) -> Any:
    """The int32 at `index` of an array at `address`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(32).as_pointer())
        return builder.load(builder.gep(pointer, [arguments[1]]))

    return types.int32(types.int64, types.int64), generate


@kernel
def compare(tokens, length, position, text, end, size):  # type: ignore[no-untyped-def]
    """Sign of the order of what stands at `position` and the last `size` tokens of text[:end]."""
    for i in range(size):
        at = position + i
        token = peek(tokens, at) if at < length else BREAK
        wanted = text[end - size + i]
        if token != wanted:
            return -1 if token < wanted else 1
    return 0


@kernel
def occurrences(tokens, length, order, count, text, end, size):  # type: ignore[no-untyped-def]
    """The range of the order whose suffixes begin with the last `size` tokens of text[:end]."""
    low, high = 0, count
    above = count
    while low < high:
        middle = (low + high) // 2
        sign = compare(tokens, length, peek(order, middle), text, end, size)
        if sign < 0:
            low = middle + 1
        else:
            high = middle
            if sign > 0:
                above = middle
    first = low
    high = above
    while low < high:
        middle = (low + high) // 2
        if compare(tokens, length, peek(order, middle), text, end, size) > 0:
            high = middle
        else:
            low = middle + 1
    return first, low


@kernel
def narrowed(tokens, length, order, low, high, offset, token):  # type: ignore[no-untyped-def]
    """The part of a range whose suffixes go on with `token` after `offset` tokens."""
    end = high
    while low < high:
        middle = (low + high) // 2
        at = peek(order, middle) + offset
        if (peek(tokens, at) if at < length else BREAK) < token:
            low = middle + 1
        else:
            high = middle
    first, high = low, end
    while low < high:
        middle = (low + high) // 2
        at = peek(order, middle) + offset
        if (peek(tokens, at) if at < length else BREAK) > token:
            high = middle
        else:
            low = middle + 1
    return first, low


@kernel
def matched(tokens, place, text, end, known):  # type: ignore[no-untyped-def]
    """How many tokens before `place` in the log equal the last ones of text[:end]; `known` do."""
    size = known
    while size < MAX_MATCH and size < end and size < place:
        token = text[end - 1 - size]
        if token == BREAK or peek(tokens, place - 1 - size) != token:
            break
        size += 1
    return size
