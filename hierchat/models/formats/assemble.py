"""A model of blocks out of the tensors of its architecture, whatever file they come from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hierchat.models.architectures.architecture import Architecture
from hierchat.models.architectures.names import EMBEDDING, HEAD, LAST_NORM, Name
from hierchat.models.architectures.sizes import heads_of
from hierchat.models.formats.block_model import BlockModel
from hierchat.models.formats.quantised_blocks import Blocks

Tensor = Callable[[Name], NDArray[np.float32]]
"""A tensor by its name, as float32."""


def assemble(
    architecture: Architecture,
    config: dict[str, Any],
    tensor: Tensor,
    matrix: Callable[[Name], Blocks],
    *,
    tied: bool,
    norm_offset: float = 0.0,
    step: Callable[[int, int], None] = lambda n, of: None,
) -> BlockModel:
    """A model of the architecture's tensors; `config` is its config.json. `matrix` gives those that become blocks.

    `tied`: the embedding is the head. `norm_offset` is added to all norms. `step` hears how many layers of all are
    read.
    """
    layers = range(config["num_hidden_layers"])
    read = []
    for layer in layers:
        step(layer, len(layers))
        read.append({place: matrix(name.of(layer)) for place, name in architecture.matrices.items()})

    def stacked(name: Name, kind: str = "weight") -> NDArray[np.float32]:
        return np.stack([tensor(name.of(layer, kind)) for layer in layers])

    offset = np.float32(norm_offset)
    vectors = {place: stacked(name) + offset for place, name in architecture.norms.items()}
    vectors["last_norm"] = tensor(LAST_NORM) + offset
    biases = {place: stacked(architecture.matrices[place], "bias") for place in architecture.biases}
    if heads := [biases.pop(place) for place in "qkv" if place in biases]:
        vectors["biases"] = np.concatenate(heads, axis=1).reshape(len(layers), -1, heads_of(config)[2])
    vectors |= {f"{place}_biases": found for place, found in biases.items()}
    if architecture.sinks:
        vectors["sinks"] = stacked(architecture.sinks)
    embedding = matrix(EMBEDDING)
    return BlockModel(config, embedding, embedding if tied else matrix(HEAD), tuple(read), vectors)
