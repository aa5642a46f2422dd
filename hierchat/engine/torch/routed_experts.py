"""Multiply the matrices of transformers' modules as blocks of their file, by the CPU engine's kernels; compute routed
experts; linear layers packed to float16.

Rows never mix here: a row's bits are the same in every segment. A forward reads as many bytes as the file has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from hierchat.engine.cpu.multiply import Multiplier, room
from hierchat.models.formats.block_model import Matrix
from hierchat.models.formats.gguf_module import FORMS, has_experts, stored
from hierchat.models.load.load_model import BlockModule


class BlockLinear(nn.Module):
    """Linear layer over blocks: y = x W^T + b; x [..., in], y [..., out], float32."""

    def __init__(self, matrix: Matrix, multiplier: Multiplier, bias: torch.Tensor | None = None) -> None:
        super().__init__()
        self.matrix, self.bias = matrix, bias
        self.multiplier = multiplier
        self._columns, self._places = _index(matrix.columns), _index(matrix.places)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1])
        if self._columns is not None:
            rows = rows.index_select(1, self._columns)
        given = rows.contiguous().numpy()
        out = self._together([self.multiplier(piece, given, len(given)) for piece in self.matrix.pieces])
        return (out if self.bias is None else out + self.bias).view(*x.shape[:-1], -1)

    def by_expert(
        self, rows: torch.Tensor, experts: Sequence[int], begins: Sequence[int], counts: Sequence[int]
    ) -> torch.Tensor:
        """Multiply rows with their experts: rows [places, in], of which counts[n] from begins[n] on are for experts[n];
        each has the `room` that so many take. [places, out]"""
        given, pieces = rows.contiguous().numpy(), self.matrix.pieces
        heights = [piece.rows // self.matrix.experts for piece in pieces]
        return self._together(
            [
                self.multiplier.several(piece, height, experts, begins, counts, given)
                for piece, height in zip(pieces, heights, strict=True)
            ]
        )

    def _together(self, pieces: list[Any]) -> torch.Tensor:
        if self._places is None:
            return torch.from_numpy(pieces[0])
        return torch.from_numpy(np.concatenate(pieces, axis=1))[:, self._places]


class BlockEmbedding(nn.Module):
    """Embedding whose rows lie in blocks; only the rows of the tokens at hand are unpacked."""

    def __init__(self, embedding: nn.Embedding, matrix: Matrix) -> None:
        super().__init__()
        self.embedding, self.matrix = embedding, matrix
        embedding.padding_idx = None  # training alone needs it, and torch wants so many rows
        self._hold(torch.empty(0, embedding.embedding_dim))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        (blocks,) = self.matrix.pieces
        self._hold(torch.from_numpy(blocks.floats(tokens.reshape(-1).numpy())))
        return self.embedding(torch.arange(tokens.numel()).view(tokens.shape))

    def _hold(self, rows: torch.Tensor) -> None:
        self.embedding.weight = nn.Parameter(rows, requires_grad=False)


def multiplier_of(module: Any) -> Multiplier | None:
    """Return the multiplier of the matrices in blocks; None where there are none."""
    return next((part.multiplier for part in module.modules() if isinstance(part, BlockLinear)), None)


def _index(numbers: Any) -> torch.Tensor | None:
    return None if numbers is None else torch.from_numpy(np.array(numbers))


class PackedLinear(nn.Module):
    """Linear layer y = x W^T + b with W in float16 blocks (FBGEMM); x [..., in], y [..., out], float32, as sums are.

    Twice the speed of float32 and more where memory is the bound, and a forward over several rows costs little more
    than one over a single row. Weights are rounded to float16 once, at load."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        bias = None if linear.bias is None else linear.bias.detach().float()
        self.packed = torch.ops.quantized.linear_prepack_fp16(linear.weight.detach().float(), bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.quantized.linear_dynamic_fp16(x, self.packed)


def can_pack(model: nn.Module) -> bool:
    """Tell whether FBGEMM is there and no weight leaves float16's range."""
    if "fbgemm" not in torch.backends.quantized.supported_engines:
        return False
    limit = torch.finfo(torch.float16).max
    ranges = [one.weight.detach().aminmax() for one in model.modules() if type(one) is nn.Linear]
    return bool(ranges) and all(-limit < low and high < limit for low, high in ranges)


def pack(model: nn.Module) -> None:
    """Replace every nn.Linear of `model` in place; its float32 weight is freed unless something else holds it."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                setattr(parent, name, PackedLinear(child))
    # What is left lies in the mapped file, all of which would stay in memory.
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()


# Several experts in a layer. transformers' modules multiply all rows of an expert at once, and how many these are
# changes last bits. Here rows are gathered by expert and multiplied in tiles: every product has one shape. Of an
# expert's weights all tiles take the same part before the next one, so that it is read once and then lies in the
# processor's cache. Weights in blocks need no tiles. What chooses among the experts is asked for one row at a time: the
# last numbers of a tensor are computed in another way than those before them.

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
    """Compute the experts of one transformers model within `segment`; outside, its modules do what they did."""

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
        """Compute a router's result for [..., n, hidden], row after row. Padding rows get what the last one got."""
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
    """Compute a module's routed experts for `rows` [n, hidden]. The first m of them have `chosen` [m, active] by rank,
    each with its share, and are added in this order; the rest get zeros."""
    experts = chosen.flatten()
    order = experts.argsort(stable=True)
    active = chosen.shape[1]
    place = torch.empty_like(order)  # where a row's expert puts what it brings
    groups: list[ExpertRows] = []
    pieces: list[torch.Tensor] = []
    begin = at = 0
    first, last = "gate_up_proj" if module.has_gate else "up_proj", "down_proj"
    in_tiles = not all(isinstance(getattr(module, name), BlockLinear) for name in (first, last))
    for expert, count in enumerate(torch.bincount(experts).tolist()):
        if count:
            pairs = order[begin : begin + count]
            height = -(-count // TILE) * TILE if in_tiles else room(count)
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
    if isinstance(weights, BlockLinear):
        experts, begins, counts, _ = zip(*groups, strict=True)
        out = weights.by_expert(rows, experts, begins, counts)
    else:
        out = torch.cat(
            [
                _in_tiles(weights[one.expert], module.is_transposed, rows[one.begin : one.begin + one.height])
                for one in groups
            ]
        )
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
    """Keep a gate of one column apart in memory: of numbers side by side torch computes a sigmoid in groups, and what
    is left over in another way."""
    return torch.cat((out, out), dim=-1)[..., :1]


def _in_one_form(module: torch.nn.Module) -> bool:
    """Tell whether a module holds experts in floats, laid out as transformers' experts interface expects."""
    if not has_experts(module):
        return False
    down = module.down_proj
    return isinstance(down, BlockLinear) or (isinstance(down, torch.Tensor) and down.dtype in FLOATS)


def over_blocks(loaded: BlockModule, multiplier: Multiplier | None = None) -> Any:
    """Return transformers' module with its matrices multiplied by our kernels, on threads of its own unless another's
    multiplier is given. Made once, it stays so."""
    module, multiplier = loaded.module, multiplier or Multiplier()
    tensors = stored(module)
    names = {id(tensor): name for name, tensor in tensors.items()}

    def matrix_of(weight: Any) -> Matrix | None:
        return loaded.matrices.get(names.get(id(weight), ""))

    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            matrix = matrix_of(getattr(child, "weight", None))
            if matrix and isinstance(child, nn.Embedding):
                setattr(parent, name, BlockEmbedding(child, matrix))
            elif matrix:
                setattr(parent, name, BlockLinear(matrix, multiplier, child.bias))
        if has_experts(parent):
            for name in FORMS:
                if matrix := matrix_of(getattr(parent, name, None)):
                    delattr(parent, name)
                    setattr(parent, name, BlockLinear(matrix, multiplier))
                    parent.forward = partial(by_expert, parent)
    return module
