"""A model of blocks out of the tensors of its architecture, whatever file they come from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hierchat.models.architectures.architecture import Architecture
from hierchat.models.architectures.layers import (
    has_experts_beside,
    layer_input_size,
    matrices_of,
    norms_of,
)
from hierchat.models.architectures.names import (
    EMBEDDING,
    EXPERT_SCALES,
    HEAD,
    LAST_NORM,
    LAYER_EMBEDDING,
    LAYER_PROJECTION,
    LAYER_PROJECTION_NORM,
    ROUTER_NORMS,
    Name,
)
from hierchat.models.architectures.sizes import heads_of
from hierchat.models.formats.block_model import BlockModel
from hierchat.models.formats.quantised_blocks import Blocks
from hierchat.models.formats.row_order import Rows, row_orders

_NONE = np.zeros(0, np.float32)
Tensor = Callable[[Name], NDArray[np.float32]]
"""A tensor by its name, as float32."""


class Matrix(Protocol):
    """A tensor by its name, in blocks; `order`: which of its rows, where not all as they are."""

    def __call__(self, name: Name, order: Rows | None = None) -> Blocks: ...


def assemble(
    architecture: Architecture,
    config: dict[str, Any],
    tensor: Tensor,
    matrix: Matrix,
    *,
    tied: bool,
    norm_offset: float = 0.0,
    pairs_neighbours: bool = False,
    step: Callable[[int, int], None] = lambda n, of: None,
) -> BlockModel:
    """A model of the architecture's tensors; `config` is its config.json. `matrix` gives those that become blocks.

    `tied`: the embedding is the head. `norm_offset` is added to all norms. `pairs_neighbours`: rotary positions pair
    neighbours in these tensors. `step` hears how many layers of all are read.
    """
    orders = row_orders(architecture, config, pairs_neighbours=pairs_neighbours)
    layers = range(config["num_hidden_layers"])
    read = []
    for layer in layers:
        step(layer, len(layers))
        read.append(
            {
                place: matrix(name.of(layer), orders.get(place))
                for place, name in matrices_of(architecture, config, layer).items()
            }
        )

    def stacked(name: Name, kind: str = "weight") -> NDArray[np.float32]:
        return np.stack([tensor(name.of(layer, kind)) for layer in layers])

    def norms(place: str, name: Name) -> NDArray[np.float32]:
        """Of all layers; zeros fill up those that are shorter than others, or missing."""
        has = [place in norms_of(architecture, config, layer) for layer in layers]
        found = [tensor(name.of(layer)) if there else _NONE for layer, there in zip(layers, has, strict=True)]
        most = max(len(one) for one in found)
        return np.stack([np.pad(one, (0, most - len(one))) for one in found])

    offset = np.float32(norm_offset)
    found = {place: norms(place, name) for place, name in architecture.norms.items()}
    vectors = {place: norm + offset for place, norm in found.items() if norm.size}
    vectors["last_norm"] = tensor(LAST_NORM) + offset
    biases = {
        place: stacked(architecture.matrices[place], "bias") for place in architecture.biases_of(config)
    }
    biases |= {place: biases[place][:, order] for place, order in orders.items() if place in biases}
    if heads := [biases.pop(place) for place in "qkv" if place in biases]:
        vectors["biases"] = np.concatenate(heads, axis=1).reshape(len(layers), -1, heads_of(config)[2])
    vectors |= {f"{place}_biases": found for place, found in biases.items()}
    if architecture.sinks:
        vectors["sinks"] = stacked(architecture.sinks)
    if architecture.scales:
        vectors["scales"] = stacked(architecture.scales)
    if has_experts_beside(config, architecture):
        root = np.float32(config["hidden_size"] ** -0.5)
        vectors["router_norms"] = stacked(ROUTER_NORMS, "scale") * root
        vectors["expert_scales"] = stacked(EXPERT_SCALES, "scale")
    embedding = matrix(EMBEDDING)
    model = BlockModel(config, embedding, embedding if tied else matrix(HEAD), tuple(read), vectors)
    if not layer_input_size(config, architecture):
        return model
    vectors["layer_norm"] = tensor(LAYER_PROJECTION_NORM) + offset
    return replace(model, layer_embedding=matrix(LAYER_EMBEDDING), layer_projection=matrix(LAYER_PROJECTION))
