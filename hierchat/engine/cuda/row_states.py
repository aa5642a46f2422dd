"""Compute running states: each row alone, from the tokens of its own path.
A Triton kernel on CUDA (triton_states.py); plain torch here, slowly, so that the rest can be tested without a GPU.

One step of a head with state S [key size, value size], key k, query q, value v, fade g and rate b:

    S = exp(g) S,  c = b (v - S' k) for Gated DeltaNet, b v for Mamba 2,  S = S + k c',  out = S' q

Gated DeltaNet: Yang et al., 2024, arXiv 2412.06464. Mamba 2: Dao and Gu, 2024, arXiv 2405.21060."""

from __future__ import annotations

from typing import NamedTuple

import torch

NODES = 96
"""Nodes of a tree, at most."""
UNIT = 1e-6
"""Added to the squared length of queries and keys of Gated DeltaNet before they are divided by it."""


class Walk(NamedTuple):
    """Walks through states, int64 on a device, [walks] each: row w takes `steps` steps from the state of text `owners`.
    A row of a prompt's piece (`reads`) is followed by the rows behind it, and the state where they end is stored. Each
    other row takes the nodes of its own path: paths[w], less `starts`. `nodes` are the places of rows in a piece."""

    owners: torch.Tensor
    nodes: torch.Tensor
    steps: torch.Tensor
    reads: torch.Tensor
    starts: torch.Tensor
    paths: torch.Tensor


class Steps(NamedTuple):
    """Keys, values, fades and rates of rows. First come rows of trees, by layer, text and node; then rows of pieces."""

    keys: torch.Tensor
    """[rows, key heads, key size]."""
    values: torch.Tensor
    """[rows, heads, value size]."""
    fades: torch.Tensor
    """[rows, heads] logarithms, float32."""
    rates: torch.Tensor
    """[rows, heads], float32."""


def _taken(walk: Walk, row: int, layer: int, texts: int, pool: int) -> list[int]:
    """Return the places of what a walk takes, oldest first."""
    count = int(walk.steps[row])
    if walk.reads[row]:
        return list(range(pool + row, pool + row + count))
    first = (layer * texts + int(walk.owners[row])) * NODES
    places: list[int] = (walk.paths[row, :count] - walk.starts[row] + first).tolist()
    return places


def convolve_plainly(
    given: torch.Tensor,  # [places, channels]
    inputs: torch.Tensor,  # [layers, texts, size - 1, channels]
    after: torch.Tensor,  # as inputs
    layer: int,
    walk: Walk,
    weight: torch.Tensor,  # [channels, size]
    bias: torch.Tensor | None,
    pool: int,
) -> torch.Tensor:
    """Compute in plain torch what triton_states.convolve computes: [rows, channels]."""
    size, out = weight.shape[-1], []
    for row, owner in enumerate(walk.owners.tolist()):
        places = _taken(walk, row, layer, inputs.shape[1], pool)
        if walk.reads[row]:
            if places:
                after[layer, owner] = torch.cat((inputs[layer, owner], given[places]))[len(places) :]
            places = list(range(pool + row - int(walk.nodes[row]), pool + row + 1))
        window = torch.cat((inputs[layer, owner], given[places]))[-size:]
        total = (window.float() * weight.float().T).sum(0)
        out.append(total if bias is None else total + bias.float())
    return torch.stack(out).to(given.dtype)


def walk_plainly(
    walk: Walk,
    running: torch.Tensor,  # [layers, texts, heads, key size, value size]
    after: torch.Tensor,  # as running
    layer: int,
    steps: Steps,
    query: torch.Tensor | None,  # [rows, key heads, key size]; None: only store the states of all layers
    skip: torch.Tensor | None,  # [heads]: how much of its value a row adds; None: nothing
    out: torch.Tensor | None,  # [rows, heads, value size]
    *,
    pool: int,
    delta: bool,
) -> None:
    """Compute in plain torch what triton_states.walk computes."""
    for here in range(len(running)) if query is None else (layer,):
        behind: dict[tuple[int, int], torch.Tensor] = {}
        for row, owner in enumerate(walk.owners.tolist()):
            now, places = running[here, owner], _taken(walk, row, here, running.shape[1], pool)
            reads = bool(walk.reads[row])
            for number, place in enumerate(places):
                if (owner, place) not in behind:
                    behind[owner, place] = _stepped(now, steps, place, delta)
                now = behind[owner, place]
                if query is not None and out is not None and (reads or number == len(places) - 1):
                    asker = row + number * reads
                    scale = query.shape[-1] ** -0.5 if delta else 1.0
                    read = (now * _by_head(query[asker], len(now), delta) * scale).sum(1)
                    out[asker] = read if skip is None else read + skip[:, None] * steps.values[place].float()
            if places and (reads or query is None):
                after[here, owner] = now


def _stepped(state: torch.Tensor, steps: Steps, place: int, delta: bool) -> torch.Tensor:
    key, change = _by_head(steps.keys[place], len(state), delta), steps.values[place].float()
    state = state * steps.fades[place].exp()[:, None, None]
    if delta:
        change = change - (state * key).sum(1)
    return state + key * (steps.rates[place][:, None] * change)[:, None]


def _by_head(some: torch.Tensor, heads: int, delta: bool) -> torch.Tensor:
    """Return a row's keys or queries for each head of values, [heads, key size, 1]."""
    some = some.float()
    if delta:
        some = some * torch.rsqrt(some.square().sum(-1, keepdim=True) + UNIT)
    return some.repeat_interleave(heads // len(some), 0)[..., None]
