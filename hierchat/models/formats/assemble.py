"""A model of blocks out of the tensors of its architecture, whatever file they come from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hierchat.models.architectures.architecture import Architecture
from hierchat.models.architectures.names import EMBEDDING, HEAD, LAST_NORM, Name
from hierchat.models.architectures.sizes import heads_of
from hierchat.models.formats.block_model import BlockModel
from hierchat.models.formats.quantised_blocks import Blocks
from hierchat.models.formats.row_order import Rows, row_orders

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
                for place, name in architecture.matrices.items()
            }
        )

    def stacked(name: Name, kind: str = "weight") -> NDArray[np.float32]:
        return np.stack([tensor(name.of(layer, kind)) for layer in layers])

    offset = np.float32(norm_offset)
    vectors = {place: stacked(name) + offset for place, name in architecture.norms.items()}
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
    embedding = matrix(EMBEDDING)
    return BlockModel(config, embedding, embedding if tied else matrix(HEAD), tuple(read), vectors)
