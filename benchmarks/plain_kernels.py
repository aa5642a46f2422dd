"""Compute in plain torch what the CUDA kernels compute, slowly, so that their callers run without a GPU. Importing this
module makes the processor compute so (hierchat/engine/cuda/kernels.py)."""

from __future__ import annotations

from typing import Any

import torch

from hierchat.engine.cuda.kernels import PLAIN
from hierchat.engine.cuda.packed import Packed
from hierchat.engine.cuda.row_states import NODES, UNIT, Steps, Walk

Routing = tuple[torch.Tensor, int]
"""Experts that rows chose, int64 [rows, active], and how many there are."""


def grouped(chosen: torch.Tensor, experts: int) -> Routing:
    return chosen, experts


def multiply(
    x: torch.Tensor,
    matrix: Packed,
    bias: torch.Tensor | None = None,
    routing: Routing | None = None,
    weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute what triton_blocks.multiply computes, one row at a time so that rows never mix."""
    rows = x.float().reshape(-1, matrix.inputs)
    if routing is None:
        whole = matrix.floats()
        out = torch.stack([torch.mv(whole, row) for row in rows])
        return (out if bias is None else out + bias).to(x.dtype)
    chosen, experts = routing
    matrices = matrix.floats().view(experts, -1, matrix.inputs)
    pairs = zip(chosen.flatten().tolist(), rows.repeat_interleave(chosen.numel() // len(x), 0), strict=True)
    out = torch.stack([torch.mv(matrices[expert], row) for expert, row in pairs])
    if bias is not None:
        out += bias[chosen.flatten()].float()
    if weights is not None:
        first, *others = (out.view(*weights.shape, -1) * weights.float()[..., None]).unbind(1)
        out = sum(others, first)
    return out.to(x.dtype)


def attend(
    query: torch.Tensor,  # [heads, rows, d]
    keys: torch.Tensor,  # [kv, slots, d]
    values: torch.Tensor,  # [kv, slots, d]
    positions: torch.Tensor,  # [rows]
    starts: torch.Tensor,  # [rows]
    paths: torch.Tensor,  # [rows, depth]
    texts: torch.Tensor,  # [rows]
    tables: torch.Tensor,  # [texts, pages]
    page: int,
    view: int,
    *rule: Any,
) -> torch.Tensor:
    """Compute what triton_attention.attend computes: [rows, heads, d]."""
    scale, window, cap, sinks = rule
    out = []
    for row, last in enumerate(positions.tolist()):
        committed = min(last + 1, int(starts[row]))
        places = torch.cat((torch.arange(committed), paths[row, : last + 1 - committed]))[-window:]
        own = tables[texts[row], places // page] * page + places % page
        asked = query[:, row].unflatten(0, (len(keys), -1))  # [kv, group, d]
        scores = (torch.bmm(asked, keys[:, own].transpose(1, 2)) * scale).float()
        if cap:
            scores = cap * torch.tanh(scores / cap)
        if sinks is not None:
            more = sinks.float().view(*asked.shape[:2], 1)
            scores = torch.cat((scores, more), -1)
        weights = torch.softmax(scores, dim=-1)[..., : len(own)].to(values.dtype)
        out.append(torch.bmm(weights, values[:, own]).flatten(0, 1))
    return torch.stack(out)


def _taken(walk: Walk, row: int, layer: int, texts: int, pool: int) -> list[int]:
    """Return the places of what a walk takes, oldest first."""
    count = int(walk.steps[row])
    if walk.reads[row]:
        return list(range(pool + row, pool + row + count))
    first = (layer * texts + int(walk.owners[row])) * NODES
    places: list[int] = (walk.paths[row, :count] - walk.starts[row] + first).tolist()
    return places


def convolve(
    given: torch.Tensor,  # [places, channels]
    inputs: torch.Tensor,  # [layers, texts, size - 1, channels]
    after: torch.Tensor,  # as inputs
    layer: int,
    walk: Walk,
    weight: torch.Tensor,  # [channels, size]
    bias: torch.Tensor | None,
    pool: int,
) -> torch.Tensor:
    """Compute what triton_states.convolve computes: [rows, channels]."""
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


def walk(
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
    """Compute what triton_states.walk computes."""
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


PLAIN.update(attend=attend, convolve=convolve, grouped=grouped, multiply=multiply, walk=walk)
