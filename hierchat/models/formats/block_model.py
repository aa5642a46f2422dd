"""A decoder as matrices of blocks: what the CPU engine computes, and how it lies in the cache."""

from __future__ import annotations

import json
import mmap
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
from hierchat.models.errors import BrokenFileError
from hierchat.models.formats.large_pages import in_large_pages
from hierchat.models.formats.layouts import VERSION
from hierchat.models.formats.quantised_blocks import Blocks

FILE = "blocks.bin"
_MAGIC = b"hierblok"
_ALIGNMENT = 64
_PAGE = 4096

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
    """One file: a head in JSON, then all arrays, embeddings last, each where a register's loads are aligned."""
    head: dict[str, Any] = {"config": model.config, "version": VERSION, "vectors": {}, "matrices": {}}
    arrays: list[NDArray[Any]] = []
    end = 0

    def place(array: NDArray[Any]) -> int:
        nonlocal end
        begin = -(-end // _ALIGNMENT) * _ALIGNMENT
        end = begin + array.nbytes
        arrays.append(np.ascontiguousarray(array))
        return begin

    for name, vector in model.vectors.items():
        head["vectors"][name] = [place(vector), vector.shape]
    last = ("embedding", "layer_embedding")
    for name, matrix in sorted(
        model.matrices(), key=lambda item: item[0] in last and last.index(item[0]) + 1
    ):
        entry = [place(matrix.data), matrix.nbytes, matrix.name, *matrix.shape, matrix.lanes]
        head["matrices"][name] = entry
    text = json.dumps(head).encode()
    with path.open("wb") as file:
        file.write(_MAGIC + len(text).to_bytes(8, "little") + text)
        begin = -(-file.tell() // _PAGE) * _PAGE
        for array in arrays:
            file.write(bytes(begin - file.tell()))
            file.write(array.reshape(-1).view(np.uint8).data)
            begin += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT


def mapped_bytes(path: Path) -> int:
    """How much of a file stays on disk: of inputs of layers a forward reads a row per token. Raises BrokenFileError."""
    try:
        with path.open("rb") as file:
            if file.read(8) != _MAGIC:
                raise ValueError("it begins with something else")
            head = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        return int(head["matrices"].get("layer_embedding", (0, 0))[1])
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise _broken(path, error) from error


def _broken(path: Path, error: Exception) -> BrokenFileError:
    return BrokenFileError(f"{path} is broken: {error}. Delete it; it is made anew.")


def read(path: Path) -> BlockModel:
    """What `write` wrote: what a forward reads in large pages where the system has them, the rest mapped. Raises
    BrokenFileError, or MemoryError."""
    try:
        with path.open("rb") as file:
            if file.read(8) != _MAGIC:
                raise ValueError("it begins with something else")
            head = json.loads(file.read(int.from_bytes(file.read(8), "little")))
            begin = -(-file.tell() // _PAGE) * _PAGE
            if head["version"] != VERSION:
                raise ValueError("it is of another version")
            data = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)[begin:]
        # Embeddings come last: of one that is not the head a forward reads a row per token, and it stays mapped.
        last = head["matrices"]["embedding"]
        size = last[0] if "head" in head["matrices"] else last[0] + last[1]
        near = in_large_pages(path, begin, min(size, data.nbytes))
        matrices = {}
        for name, (at, size, kind, rows, columns, lanes) in head["matrices"].items():
            whole = near if near is not None and at + size <= near.nbytes else data
            matrices[name] = Blocks(kind, whole[at : at + size], rows, columns, lanes)
            if matrices[name].nbytes != -(-rows // lanes) * lanes * matrices[name].row_bytes:
                raise ValueError("it is cut off")
        vectors = {}
        for name, (at, shape) in head["vectors"].items():
            vectors[name] = data[at : at + 4 * int(np.prod(shape))].view(np.float32).reshape(shape)
        layers = [dict[str, Blocks]() for _ in range(head["config"]["num_hidden_layers"])]
        for name, matrix in matrices.items():
            if "." in name:
                number, place = name.split(".")
                layers[int(number)][place] = matrix
        architecture = ARCHITECTURES[head["config"]["model_type"]]
        for number, layer in enumerate(layers):
            if layer.keys() != matrices_of(architecture, head["config"], number).keys():
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
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise _broken(path, error) from error
