"""The weights of a module of transformers, its matrices in blocks, and how they lie in the cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hierchat.models.formats import block_file
from hierchat.models.formats.quantised_blocks import Blocks

FILE = "module.bin"
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight [outputs, inputs], or [experts, outputs, inputs] with experts one behind the other. Rows of each block
    type are a piece. Of several pieces `places` [outputs] says where each output is when those of all pieces stand side
    by side. `columns` [inputs]: which input each column is for, None where they are in order."""

    pieces: tuple[Blocks, ...]
    experts: int = 1
    places: Integers | None = None
    columns: Integers | None = None


@dataclass(frozen=True, slots=True)
class ModuleWeights:
    """By transformers' names. `far`: matrices of which a forward reads a row per token."""

    matrices: Mapping[str, Matrix]
    vectors: Mapping[str, NDArray[Any]]
    far: tuple[str, ...] = ()


def write(weights: ModuleWeights, path: Path) -> None:
    """Matrices that are `far` come last: see block_file.read."""
    vectors, pieces, several = dict(weights.vectors), dict[str, Blocks](), dict[str, list[int]]()
    for name, matrix in sorted(weights.matrices.items(), key=lambda item: item[0] in weights.far):
        several[name] = [len(matrix.pieces), matrix.experts]
        pieces |= {_piece(name, number): piece for number, piece in enumerate(matrix.pieces)}
        orders = {"places": matrix.places, "columns": matrix.columns}
        vectors |= {f"{name}/{kind}": order for kind, order in orders.items() if order is not None}
    block_file.write(path, {"module": several, "far": weights.far}, vectors, pieces)


def read(path: Path) -> ModuleWeights:
    """What `write` wrote: what a forward reads in large pages where the system has them, the rest mapped. Raises
    BrokenFileError, or MemoryError."""
    with block_file.broken(path):
        head = block_file.head_of(path)
        vectors, pieces = block_file.read(path, head, _far(head))
        matrices = {
            name: Matrix(
                tuple(pieces[_piece(name, number)] for number in range(count)),
                experts,
                vectors.pop(f"{name}/places", None),
                vectors.pop(f"{name}/columns", None),
            )
            for name, (count, experts) in head["module"].items()
        }
        return ModuleWeights(matrices, vectors, tuple(head["far"]))


def mapped_bytes(path: Path) -> int:
    """How much of a file stays on disk. Raises BrokenFileError."""
    with block_file.broken(path):
        head = block_file.head_of(path)
        return sum(int(head["matrices"][piece][1]) for piece in _far(head))


def _far(head: Mapping[str, Any]) -> list[str]:
    return [_piece(name, number) for name in head["far"] for number in range(head["module"][name][0])]


def _piece(name: str, number: int) -> str:
    return f"{name}/{number}"
