"""Running states along the nodes of a tree, on a processor: Gated DeltaNet and Mamba 2 are one recurrence.

A head's state is a matrix [size, width]. A node lets it fade, adds key times change, and reads it by its query. The
change is the node's value, in DeltaNet less what the state has for that key already. Sums go over `size` in order, so
a node's bits are the same in any tree. torch would take ten passes over a state, and wait for its threads in each.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from hierchat.engine.torch.states import StateLayer
from hierchat.jit import Kernels

Floats = NDArray[np.float32]

kernel = Kernels(__file__)


def scan(
    layer: StateLayer,
    queries: torch.Tensor,  # [rows, groups, size]: heads in order share those of a group
    keys: torch.Tensor,  # [rows, groups, size]
    values: torch.Tensor,  # [rows, heads, width]
    fades: torch.Tensor,  # [rows, heads]: factors
    rates: torch.Tensor,  # [rows, heads]: of change
    *,
    corrects: bool,
) -> torch.Tensor:
    """[rows, heads, width] float32; zeros in rows that are no nodes. The layer holds the states behind the nodes."""
    parents = np.array(layer.slots.parents, np.int64)
    heads, width = values.shape[1:]
    shape = (heads, keys.shape[2], width)
    before = layer.state.running
    first = np.zeros(shape, np.float32) if before is None else before[0].numpy()
    kept = 2 if layer.slots.reading else len(parents)  # of a chain only the end counts
    states = np.empty((kept, *shape), np.float32)
    out = np.zeros((len(values), heads, width), np.float32)
    advance(
        _floats(queries),
        _floats(keys),
        _floats(values),
        _floats(fades),
        _floats(rates),
        parents,
        first,
        states,
        out,
        corrects,
    )
    for node in (len(parents) - 1,) if layer.slots.reading else range(len(parents)):
        layer.put(node, torch.from_numpy(states[node % kept][None]))
    return torch.from_numpy(out)


def _floats(tensor: torch.Tensor) -> Floats:
    return tensor.float().contiguous().numpy()


@kernel
def advance(
    queries: Floats,
    keys: Floats,
    values: Floats,
    fades: Floats,
    rates: Floats,
    parents: NDArray[np.int64],
    first: Floats,
    states: Floats,
    out: Floats,
    corrects: bool,
) -> None:
    """Fill `states` [kept, heads, size, width] and `out`. Node n's state lies at n modulo `kept`."""
    kept, heads, size, width = states.shape
    share = heads // keys.shape[1]
    change = np.empty(width, np.float32)
    for head in range(heads):
        group = head // share
        for node in range(len(parents)):
            parent = parents[node]
            before = first[head] if parent < 0 else states[parent % kept, head]
            state, read = states[node % kept, head], out[node, head]
            fade, rate = fades[node, head], rates[node, head]
            key, query, value = keys[node, group], queries[node, group], values[node, head]
            for j in range(width):
                change[j] = 0.0
            if corrects:
                for i in range(size):
                    for j in range(width):
                        change[j] += before[i, j] * fade * key[i]
            for j in range(width):
                change[j] = (value[j] - change[j]) * rate
            for i in range(size):
                for j in range(width):
                    now = before[i, j] * fade + key[i] * change[j]
                    state[i, j] = now
                    read[j] += now * query[i]
