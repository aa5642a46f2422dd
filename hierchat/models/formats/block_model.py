"""A decoder as matrices of blocks: what the CPU engine computes, and how it lies in the cache."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from hierchat.models.architectures.names import MATRICES
from hierchat.models.errors import BrokenFileError
from hierchat.models.formats.quantised_blocks import BlockKind, Blocks

FILE = "blocks.safetensors"
_ALIGNMENT = 64
_PARTS = ("weights", "scales")

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class BlockModel:
    """`config` is the model's config.json. `layers` hold MATRICES; `vectors` the norms and biases by name:
    "attention_norms" and "inner_norms" [layers, hidden], "last_norm" [hidden], and where the model has them
    "query_norms", "key_norms" [layers, head_dim], "biases" [layers, heads + 2 kv heads, head_dim], "rope_factors"
    [head_dim / 2]. `head` is the embedding itself where the two are tied."""

    config: dict[str, Any]
    embedding: Blocks
    head: Blocks
    layers: tuple[Mapping[str, Blocks], ...]
    vectors: Mapping[str, Floats]

    def matrices(self) -> Iterable[tuple[str, Blocks]]:
        """All matrices by name; the head only where it is not the embedding."""
        yield "embedding", self.embedding
        if self.head is not self.embedding:
            yield "head", self.head
        for number, layer in enumerate(self.layers):
            for name in MATRICES:
                yield f"{number}.{name}", layer[name]

    def as_floats(self) -> BlockModel:
        """The same weights, each as a float32."""
        embedding = self.embedding.as_floats()
        return replace(
            self,
            embedding=embedding,
            head=embedding if self.head is self.embedding else self.head.as_floats(),
            layers=tuple(
                {name: matrix.as_floats() for name, matrix in layer.items()} for layer in self.layers
            ),
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all weights."""
        return sum(matrix.nbytes for _, matrix in self.matrices())


def write(model: BlockModel, path: Path) -> None:
    """Into one safetensors file; its metadata hold the configuration and the kinds."""
    arrays: dict[str, NDArray[Any]] = {f"vector.{name}": vector for name, vector in model.vectors.items()}
    kinds = {}
    for name, matrix in model.matrices():
        kinds[name] = int(matrix.kind)
        parts: tuple[NDArray[Any], ...] = (matrix.weights, matrix.scales)
        arrays |= {f"{name}.{part}": array for part, array in zip(_PARTS, parts, strict=True) if array.size}
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    save_file(arrays, path, {"config": json.dumps(model.config), "kinds": json.dumps(kinds)})


def read(path: Path) -> BlockModel:
    """Reads what `write` wrote, into one piece of memory. Raises BrokenFileError, MemoryError."""
    try:
        arrays, metadata = _read_arrays(path)
        config, kinds = json.loads(metadata["config"]), json.loads(metadata["kinds"])

        def matrix(name: str) -> Blocks:
            parts = {part: arrays[f"{name}.{part}"] for part in _PARTS if f"{name}.{part}" in arrays}
            return Blocks(BlockKind(kinds[name]), **parts)

        embedding = matrix("embedding")
        return BlockModel(
            config=config,
            embedding=embedding,
            head=matrix("head") if "head" in kinds else embedding,
            layers=tuple(
                {name: matrix(f"{layer}.{name}") for name in MATRICES}
                for layer in range(config["num_hidden_layers"])
            ),
            vectors={
                name.removeprefix("vector."): array
                for name, array in arrays.items()
                if name.startswith("vector.")
            },
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BrokenFileError(f"{path} is broken: {error}. Delete it; it is made anew.") from error


def _read_arrays(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """All tensors as views of one aligned buffer, which the system can back by large pages."""
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        metadata = header.pop("__metadata__")
        size = max(entry["data_offsets"][1] for entry in header.values())
        buffer = np.empty(size + _ALIGNMENT, np.uint8)
        data = buffer[-buffer.ctypes.data % _ALIGNMENT :][:size]
        if file.readinto(data.data) != size:
            raise ValueError("it is cut off")
    types = {"U8": np.uint8, "F16": np.float16, "F32": np.float32}
    arrays = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        arrays[name] = data[begin:end].view(types[entry["dtype"]]).reshape(entry["shape"])
    return arrays, metadata
