"""Running states along the nodes of a tree, on a processor: Gated DeltaNet and Mamba 2 are one recurrence.

A head's state is a matrix [size, width]. A node lets it fade, adds key times change, and reads it by its query. The
change is the node's value, in DeltaNet less what the state has for that key already. Sums go over `size` in order, so
a node's bits are the same in any tree. torch would take ten passes over a state, and wait for its threads in each.

States of one head stay in the cache, and are forgotten. Of a tree what is kept is each node's change: the state behind
what is committed is made once more from these.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from hierchat.engine.cpu.jit import kernel
from hierchat.engine.cpu.phases import COUNTER, done, take, wait
from hierchat.engine.torch.states import Share, StateLayer

Floats = NDArray[np.float32]


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
    """[rows, heads, width] float32; zeros in rows that are no nodes. The layer is told how to make their states."""
    parents, share = np.array(layer.slots.parents, np.int64), layer.slots.share
    heads, width = values.shape[1:]
    shape = (heads, keys.shape[2], width)
    before = layer.state.running
    first = np.zeros(shape, np.float32) if before is None else before[0].numpy()
    ends = layer.slots.reading or len(parents) == 1  # nothing but the last state can be committed
    last = np.empty(shape if ends else (0, *shape[1:]), np.float32)
    out = np.zeros((len(values), heads, width), np.float32)
    changes = np.empty_like(out)
    query, key, value, fade, rate = (_floats(tensor) for tensor in (queries, keys, values, fades, rates))

    def job(counters: NDArray[np.int64]) -> None:
        advance(query, key, value, fade, rate, parents, first, changes, last, out, corrects, counters)

    _shared(share, job)
    if ends:
        layer.follow(lambda _: torch.from_numpy(last[None]))
    else:
        layer.follow(partial(_behind, share, key, fade, changes, parents, first))
    return torch.from_numpy(out)


def _behind(
    share: Share,
    keys: Floats,
    fades: Floats,
    changes: Floats,
    parents: NDArray[np.int64],
    first: Floats,
    node: int,
) -> torch.Tensor:
    path = [node]
    while parents[path[-1]] >= 0:
        path.append(parents[path[-1]])
    nodes, state = np.array(path[::-1], np.int64), np.empty_like(first)
    _shared(share, lambda counters: repeat(keys, fades, changes, nodes, first, state, counters))
    return torch.from_numpy(state[None])


def _shared(share: Share, job: Callable[[NDArray[np.int64]], None]) -> None:
    counters = np.zeros(COUNTER, np.int64)
    share(lambda rank: job(counters))


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
    changes: Floats,
    last: Floats,
    out: Floats,
    corrects: bool,
    counters: NDArray[np.int64],
) -> None:
    """Fill `changes` and `out`, and `last` with the end of a chain unless it is empty. Threads share the heads."""
    nodes = len(parents)
    heads, size, width = first.shape
    share = heads // keys.shape[1]
    ends = len(last) > 0
    kept = 2 if ends else nodes
    near = np.empty((kept, size, width), np.float32)
    while True:
        head = take(counters, 0)
        if head >= heads:
            break
        group = head // share
        for node in range(nodes):
            parent = parents[node]
            before = first[head] if parent < 0 else near[parent % kept]
            state = last[head] if ends and node == nodes - 1 else near[node % kept]
            change, read = changes[node, head], out[node, head]
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
        done(counters, 0)
    wait(counters, 0, heads)


@kernel
def repeat(
    keys: Floats,
    fades: Floats,
    changes: Floats,
    path: NDArray[np.int64],
    first: Floats,
    state: Floats,
    counters: NDArray[np.int64],
) -> None:
    """Fill `state` [heads, size, width] with that behind a path of nodes, to the bit as `advance` had it."""
    heads, size, width = first.shape
    share = heads // keys.shape[1]
    while True:
        head = take(counters, 0)
        if head >= heads:
            break
        group, own = head // share, state[head]
        own[:] = first[head]
        for node in path:
            fade, key, change = fades[node, head], keys[node, group], changes[node, head]
            for i in range(size):
                for j in range(width):
                    own[i, j] = own[i, j] * fade + key[i] * change[j]
        done(counters, 0)
    wait(counters, 0, heads)
