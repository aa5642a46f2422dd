"""A decoder as matrices of blocks: what the CPU engine computes, and how it lies in the cache."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hierchat.models.architectures.layers import matrices_of
from hierchat.models.architectures.names import EXPERTS
from hierchat.models.architectures.registry import ARCHITECTURES
from hierchat.models.architectures.sizes import experts_of
from hierchat.models.formats import block_file
from hierchat.models.formats.quantised_blocks import Blocks

FILE = "blocks.bin"
_LAST = ("embedding", "layer_embedding")
"""What lies behind the others in a file."""

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class BlockModel:
    """`config` is the model's config.json. `layers` hold the architecture's matrices, those of experts one behind the
    other; `vectors` the norms and biases by name:
    "attention_norms" and "inner_norms" [layers, hidden], "last_norm" [hidden], and where the model has them
    "after_attention_norms", "after_inner_norms" [layers, hidden], "query_norms", "key_norms" [layers, head_dim],
    "biases" [layers, heads + 2 kv heads, head_dim], "rope_factors" [head_dim / 2]. `head` is the embedding itself where
    the two are tied. Where layers have inputs of their own: `layer_embedding` and `layer_projection` of all layers,
    [vocabulary, layers * input] and [layers * input, hidden], and of vectors "layer_norm" [input] and
    "after_layer_norms". "scales" [layers, 1]: see Architecture."""

    config: dict[str, Any]
    embedding: Blocks
    head: Blocks
    layers: tuple[Mapping[str, Blocks], ...]
    vectors: Mapping[str, Floats]
    layer_embedding: Blocks | None = None
    layer_projection: Blocks | None = None

    def matrices(self) -> Iterable[tuple[str, Blocks]]:
        """All matrices by name; the head only where it is not the embedding."""
        yield "embedding", self.embedding
        if self.head is not self.embedding:
            yield "head", self.head
        for number, layer in enumerate(self.layers):
            for name, matrix in layer.items():
                yield f"{number}.{name}", matrix
        if self.layer_embedding and self.layer_projection:
            yield "layer_embedding", self.layer_embedding
            yield "layer_projection", self.layer_projection

    def as_floats(self) -> BlockModel:
        """The same weights, each as a float32 but for those of `layer_embedding`, which no product reads."""
        embedding = self.embedding.as_floats()
        return replace(
            self,
            embedding=embedding,
            head=embedding if self.head is self.embedding else self.head.as_floats(),
            layers=tuple(
                {name: matrix.as_floats() for name, matrix in layer.items()} for layer in self.layers
            ),
            layer_projection=self.layer_projection and self.layer_projection.as_floats(),
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all that forwards read: of an embedding that is not the head, they read a row per token."""
        return sum(matrix.nbytes for matrix in self._read())

    @property
    def row_bytes(self) -> int:
        """Bytes that a forward of one row reads: of several experts, those that a token wakes."""
        experts, active = experts_of(self.config)
        if "router" not in self.layers[0]:
            return self.nbytes
        several = sum(
            matrix.nbytes
            for layer in self.layers
            for name, matrix in layer.items()
            if name in EXPERTS and name != "router"
        )
        return self.nbytes - several * (experts - active) // experts

    @property
    def file_bytes(self) -> int:
        """The same weights' bytes in the file that the model came from."""
        return sum(matrix.file_bytes for matrix in self._read())

    def block_types(self) -> list[str]:
        """The block types of all matrices that a forward reads."""
        return sorted({matrix.name for matrix in self._read()})

    def _read(self) -> Iterable[Blocks]:
        each = [matrix for layer in self.layers for matrix in layer.values()]
        return [self.head, *each, *([self.layer_projection] if self.layer_projection else [])]


def write(model: BlockModel, path: Path) -> None:
    """Embeddings come last: see read."""
    matrices = sorted(model.matrices(), key=lambda item: item[0] in _LAST and _LAST.index(item[0]) + 1)
    block_file.write(path, {"config": model.config}, model.vectors, dict(matrices))


def mapped_bytes(path: Path) -> int:
    """How much of a file stays on disk: of inputs of layers a forward reads a row per token. Raises BrokenFileError."""
    with block_file.broken(path):
        return int(block_file.head_of(path)["matrices"].get("layer_embedding", (0, 0))[1])


def read(path: Path) -> BlockModel:
    """What `write` wrote: what a forward reads in large pages where the system has them, the rest mapped. Raises
    BrokenFileError, or MemoryError."""
    with block_file.broken(path):
        head = block_file.head_of(path)
        # Of an embedding that is not the head a forward reads a row per token, and it stays mapped.
        far = _LAST if "head" in head["matrices"] else _LAST[1:]
        vectors, matrices = block_file.read(path, head, far)
        layers = [dict[str, Blocks]() for _ in range(head["config"]["num_hidden_layers"])]
        for name, matrix in matrices.items():
            if "." in name:
                number, place = name.split(".")
                layers[int(number)][place] = matrix
        architecture = ARCHITECTURES[head["config"]["model_type"]]
        for at, layer in enumerate(layers):
            if layer.keys() != matrices_of(architecture, head["config"], at).keys():
                raise ValueError("a matrix is missing")
        return BlockModel(
            config=head["config"],
            embedding=matrices["embedding"],
            head=matrices.get("head", matrices["embedding"]),
            layers=tuple(layers),
            vectors=vectors,
            layer_embedding=matrices.get("layer_embedding"),
            layer_projection=matrices.get("layer_projection"),
        )
