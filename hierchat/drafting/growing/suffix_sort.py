"""Orders of suffixes: lexicographic by the tokens that follow, DEPTH tokens deep.

A BREAK, or the end of the log, ends a comparison, and what ends comes before what goes on. Suffixes that are equal
so far stand by position, the older first: every order is unique. DEPTH bounds each comparison, so that a text which
repeats itself a hundred thousand times costs no more than another.
"""

from __future__ import annotations

import numpy as np

from hierchat.drafting.growing import kernel

BREAK = -1
"""Follows every text; smaller than all tokens."""
DEPTH = 64
_FEW = 10
"""Up to here insertion is faster than partition."""


def suffix_order(tokens: np.ndarray) -> np.ndarray:
    """The positions (int32) of all that is no BREAK in `tokens` (int32), in the order of their suffixes."""
    if tokens.size and tokens.min() < BREAK:
        raise ValueError("a token id is negative")
    # One kind of array: for those that cannot be written all would be compiled a second time.
    tokens = np.require(tokens, requirements=["C", "W"])
    most = int(tokens.max(initial=0))
    # Counting how often each token occurs pays where there are more tokens than kinds of them.
    return ordered(tokens, most if most < tokens.size else 0)


@kernel
def less(tokens: np.ndarray, a: int, b: int, depth: int) -> bool:
    """Whether the suffix at `a` comes before the one at `b`; the first `depth` tokens are known to be equal."""
    end = tokens.size
    for d in range(depth, DEPTH):
        x = tokens[a + d] if a + d < end else BREAK
        y = tokens[b + d] if b + d < end else BREAK
        if x != y:
            return x < y
        if x == BREAK:
            break
    return a < b


@kernel
def ordered(tokens: np.ndarray, kinds: int) -> np.ndarray:
    """The order of `tokens`. `kinds`: the largest token, to put them into one bucket for each; 0: into one for all."""
    firsts = np.zeros(kinds + 2, np.int64)
    for token in tokens:
        if token != BREAK:
            firsts[(token if kinds else 0) + 1] += 1
    for kind in range(kinds + 1):
        firsts[kind + 1] += firsts[kind]
    order = np.empty(firsts[kinds + 1], np.int32)
    ends = firsts.copy()
    for position in range(tokens.size):
        token = tokens[position]
        if token != BREAK:
            kind = token if kinds else 0
            order[ends[kind]] = position
            ends[kind] += 1
    for kind in range(kinds + 1):
        sort_bucket(tokens, order[firsts[kind] : firsts[kind + 1]], 1 if kinds else 0)
    return order


@kernel
def put(parts: np.ndarray, at: int, low: int, high: int, depth: int, keyed: int) -> None:
    """One row of parts. Number by number: a tuple put into a row takes two seconds to compile."""
    parts[at, 0] = low
    parts[at, 1] = high
    parts[at, 2] = depth
    parts[at, 3] = keyed


@kernel
def sort_bucket(tokens: np.ndarray, order: np.ndarray, depth: int) -> None:
    """Sort positions whose first `depth` tokens are equal: quicksort in three parts, token by token."""
    end = tokens.size
    keys = np.empty(order.size, np.int32)
    parts = np.empty(
        (128, 4), np.int64
    )  # from, to, tokens known to be equal, whether the keys are those of this depth
    put(parts, 0, 0, order.size, depth, 0)
    top = 1
    while top:
        top -= 1
        low, high, depth, keyed = parts[top]
        if high - low <= _FEW:
            for i in range(low + 1, high):
                moving = order[i]
                j = i
                while j > low and less(tokens, moving, order[j - 1], depth):
                    order[j] = order[j - 1]
                    j -= 1
                order[j] = moving
            continue
        if not keyed:
            for i in range(low, high):
                at = order[i] + depth
                # Beyond DEPTH the position decides.
                keys[i] = order[i] if depth >= DEPTH else tokens[at] if at < end else BREAK
        a, b, c = keys[low + (high - low) // 4], keys[(low + high) // 2], keys[high - 1 - (high - low) // 4]
        pivot = max(min(a, b), min(max(a, b), c))
        smaller, i, larger = low, low, high
        while i < larger:
            key = keys[i]
            if key < pivot:
                keys[i], keys[smaller] = keys[smaller], key
                order[i], order[smaller] = order[smaller], order[i]
                smaller += 1
                i += 1
            elif key > pivot:
                larger -= 1
                keys[i], keys[larger] = keys[larger], key
                order[i], order[larger] = order[larger], order[i]
            else:
                i += 1
        first = top
        put(parts, top, low, smaller, depth, 1)
        put(parts, top + 1, larger, high, depth, 1)
        # Texts that have ended alike differ in their position only.
        put(parts, top + 2, smaller, larger, DEPTH if pivot == BREAK else depth + 1, 0)
        top += 3
        # The largest part waits below: so few ever wait.
        for other in range(first + 1, top):
            if parts[other, 1] - parts[other, 0] > parts[first, 1] - parts[first, 0]:
                for column in range(4):
                    parts[first, column], parts[other, column] = parts[other, column], parts[first, column]


@kernel
def merged(tokens: np.ndarray, older: np.ndarray, newer: np.ndarray) -> np.ndarray:
    """One order made of two."""
    order = np.empty(older.size + newer.size, np.int32)
    i = j = 0
    for k in range(order.size):
        if j == newer.size or (i < older.size and less(tokens, older[i], newer[j], 0)):
            order[k] = older[i]
            i += 1
        else:
            order[k] = newer[j]
            j += 1
    return order


@kernel
def drop_breaks(tokens: np.ndarray, order: np.ndarray) -> int:
    """Close the gaps that BREAKs written over tokens leave in `order`; how many positions remain, at its beginning."""
    kept = 0
    for position in order:
        if tokens[position] != BREAK:
            order[kept] = position
            kept += 1
    return kept
