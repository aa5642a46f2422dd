"""Which rows of a file's tensor make a matrix of the engine, where it is not all of them as they lie there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hierchat.models.architectures.architecture import Architecture
from hierchat.models.architectures.layers import expert_width, has_experts_beside, matrices_of
from hierchat.models.architectures.rope import rotary_size
from hierchat.models.architectures.sizes import experts_of, heads_of

Rows = NDArray[np.int64]


def row_orders(
    architecture: Architecture, config: Mapping[str, Any], *, pairs_neighbours: bool
) -> dict[str, Rows]:
    """By the names of MATRICES: rows out of one tensor that holds several matrices, and rows of queries and keys that
    the file pairs with their neighbours (`pairs_neighbours`), put half of what is rotated apart."""
    heads, kv_heads, size = heads_of(config)
    inner, matrices = expert_width(config, architecture), matrices_of(architecture, config, 0)
    experts = experts_of(config)[0] if has_experts_beside(config, architecture) else 1
    heights = {"q": heads * size, "k": kv_heads * size, "v": kv_heads * size, "gate": inner, "up": inner}
    found: dict[str, Rows] = {}
    for place, name in matrices.items():
        together = [other for other, its in matrices.items() if its == name]
        if len(together) > 1:
            before = sum(heights[other] for other in together[: together.index(place)])
            begins = np.arange(experts)[:, None] * sum(heights[other] for other in together)
            found[place] = (begins + before + np.arange(heights[place])).reshape(-1)
        if pairs_neighbours and place in ("q", "k"):
            turned = _turned(heights[place] // size, size, rotary_size(config, architecture))
            found[place] = found[place][turned] if place in found else turned
    return found


def _turned(heads: int, size: int, rotated: int) -> Rows:
    """Rows of `heads` heads of `size`, of which the first `rotated` are paired, neighbours put half of them apart."""
    one = np.arange(size)
    one[:rotated] = one[:rotated].reshape(-1, 2).T.reshape(-1)
    return (np.arange(heads)[:, None] * size + one).reshape(-1)
