"""The largest few of a row of logits: what the target would have said instead, for drafters that learn from it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hierchat.jit import Kernels

kernel = Kernels(__file__)

BLOCK = 256
"""Values that are compared in one go with the least of those held; few blocks have anything that is larger."""


def top_tokens(row: NDArray[np.float32], count: int) -> NDArray[np.int32]:
    """[count]: the tokens of the largest logits, largest first, the lower id first among equals; -1 beyond the
    vocabulary."""
    found = np.full(count, -1, np.int32)
    _top(row, found, np.empty(count, np.float32))
    return found


def prepare() -> None:
    """Compile, or read what was compiled, so that the first reply need not wait for it."""
    top_tokens(np.zeros(1, np.float32), 1)


@kernel
def _top(row: Any, found: Any, values: Any) -> None:
    count, held = len(found), 0
    least = np.float32(-np.inf)
    for begin in range(0, len(row), BLOCK):
        block = row[begin : begin + BLOCK]
        if held == count:
            larger = np.int32(0)
            for place in range(len(block)):  # this very form is what LLVM makes vectors of
                larger |= np.int32(block[place] > least)
            if not larger:
                continue
        for token in range(begin, begin + len(block)):
            value = row[token]
            if held < count:
                place = held
                held += 1
            elif value > least:
                place = count - 1
            else:
                continue
            while place > 0 and value > values[place - 1]:
                values[place], found[place] = values[place - 1], found[place - 1]
                place -= 1
            values[place], found[place] = value, token
            least = values[held - 1]
