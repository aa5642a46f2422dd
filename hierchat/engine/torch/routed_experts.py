"""Compute the routed experts of transformers' modules on a processor, so that a row's bits depend on it alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from hierchat.models.formats.gguf_module import has_experts

# transformers' modules multiply all rows of an expert at once, and the number of rows changes the last bits. Here rows
# are gathered by expert and multiplied in tiles, so that every product has the same shape. All tiles multiply one part
# of an expert's weights before the next part, so that each part is read from memory once and stays in the processor's
# cache. The router runs for one row at a time, because torch computes the last numbers of a tensor in another way than
# the numbers before them.

TILE = 8
"""Rows of a product, filled up with others: the smallest number for which two cores compute as long as they read."""
PART = 8 << 20
"""Bytes of an expert's weights that one product reads."""
FLOATS = (torch.float32, torch.bfloat16, torch.float16)


class ExpertRows(NamedTuple):
    """Rows of activations of one expert: so many from `begin` on, and others that fill them up to `height`."""

    expert: int
    begin: int
    rows: int
    height: int


class Experts:
    """Compute the experts of one transformers model within `segment`; outside of it, its modules are unchanged."""

    def __init__(self, model: Any) -> None:
        self._nodes: int | None = None
        if model.device.type == "cpu":
            for block in model.modules():
                if experts := next((one for one in block.children() if _in_one_form(one)), None):
                    children = dict(block.named_children())
                    experts.forward = partial(self._bring, experts, experts.forward)
                    router = children.get("gate") or children["router"]
                    router.forward = partial(self._choose, router.forward)
                    if gate := children.get("shared_expert_gate"):
                        gate.register_forward_hook(_apart)

    @contextmanager
    def segment(self, nodes: int) -> Iterator[None]:
        """Say that the forward inside is over a segment: the first `nodes` rows count, the rest is padding."""
        self._nodes = nodes
        try:
            yield
        finally:
            self._nodes = None

    def _choose(self, usual: Callable[..., Any], hidden: torch.Tensor, *others: Any, **named: Any) -> Any:
        """Compute a router's result for [..., n, hidden], row after row. Padding rows get that of the last one."""
        if self._nodes is None:
            return usual(hidden, *others, **named)
        single = (*[1] * (hidden.dim() - 1), hidden.shape[-1])
        rows = hidden.reshape(-1, hidden.shape[-1])
        found = [usual(row.view(single), *others, **named) for row in rows[: self._nodes]]
        found += [found[-1]] * (len(rows) - self._nodes)
        return tuple(torch.cat(parts, dim=parts[0].dim() - 2) for parts in zip(*found, strict=True))

    def _bring(self, module: Any, usual: Callable[..., torch.Tensor], *given: torch.Tensor) -> torch.Tensor:
        if self._nodes is None:
            return usual(*given)
        rows, chosen, shares = given
        return by_expert(module, rows, chosen[: self._nodes], shares[: self._nodes])


def by_expert(module: Any, rows: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """Compute a module's experts for `rows` [n, hidden]; the first m have `chosen` [m, active] by rank, the rest get
    zeros."""
    experts = chosen.flatten()
    order = experts.argsort(stable=True)
    active = chosen.shape[1]
    place = torch.empty_like(order)  # row of each pair's result
    groups: list[ExpertRows] = []
    pieces: list[torch.Tensor] = []
    begin = at = 0
    first, last = "gate_up_proj" if module.has_gate else "up_proj", "down_proj"
    for expert, count in enumerate(torch.bincount(experts).tolist()):
        if count:
            pairs = order[begin : begin + count]
            height = -(-count // TILE) * TILE
            pieces.append(functional.pad(pairs // active, (0, height - count)))
            place[pairs] = torch.arange(at, at + count)
            groups.append(ExpertRows(expert, at, count, height))
            begin, at = begin + count, at + height
    inner = _product(module, first, groups, rows[torch.cat(pieces)])
    activated = module._apply_gate if module.has_gate else module.act_fn
    together = _product(module, last, groups, torch.cat([activated(tile) for tile in inner.split(TILE)]))
    if module.has_post_expert_norm:
        together = module.post_expert_norm(together)
    out = torch.zeros_like(rows)
    total = out[: len(chosen)]
    for rank, places in enumerate(place.view(chosen.shape).unbind(1)):
        total += together[places] * shares[:, rank, None].to(rows.dtype)
    return out


def _product(module: Any, name: str, groups: list[ExpertRows], rows: torch.Tensor) -> torch.Tensor:
    weights = getattr(module, name)
    tiles = [rows[one.begin : one.begin + one.height] for one in groups]
    experts = zip(groups, tiles, strict=True)
    out = torch.cat([_in_tiles(weights[one.expert], module.is_transposed, tile) for one, tile in experts])
    if module.has_bias:
        heights = torch.tensor([one.height for one in groups])
        biases = getattr(module, f"{name}_bias")[[one.expert for one in groups]]
        out = out + biases.repeat_interleave(heights, dim=0)
    return out


def _in_tiles(weight: torch.Tensor, is_transposed: bool, rows: torch.Tensor) -> torch.Tensor:
    if not is_transposed:
        weight = weight.T  # [in, out]
    out = rows.new_empty(len(rows), weight.shape[1])
    width = max(PART // (weight.shape[0] * weight.itemsize) // TILE * TILE, TILE)
    for part in range(0, weight.shape[1], width):
        columns = slice(part, part + width)
        for tile in range(0, len(rows), TILE):
            out[tile : tile + TILE, columns] = rows[tile : tile + TILE] @ weight[:, columns]
    return out


def _apart(gate: torch.nn.Module, inputs: tuple[torch.Tensor, ...], out: torch.Tensor) -> torch.Tensor:
    """Keep a one-column gate contiguous: torch computes groups of neighbours and the remainder in different ways."""
    return torch.cat((out, out), dim=-1)[..., :1]


def _in_one_form(module: torch.nn.Module) -> bool:
    """Tell whether a module holds experts in floats, laid out as transformers' experts interface expects."""
    return has_experts(module) and module.down_proj.dtype in FLOATS
