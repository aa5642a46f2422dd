"""Matrices of blocks and plain arrays in one file of the cache, as they lie in memory."""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hierchat.models.errors import BrokenFileError
from hierchat.models.formats.large_pages import in_large_pages
from hierchat.models.formats.layouts import VERSION
from hierchat.models.formats.quantised_blocks import Blocks

_MAGIC = b"hierblok"
_ALIGNMENT = 64
_PAGE = 4096
_FLOAT = "float32"


def write(
    path: Path, said: Mapping[str, Any], vectors: Mapping[str, NDArray[Any]], matrices: Mapping[str, Blocks]
) -> None:
    """A head in JSON, which holds `said`, then all arrays in order, each where a register's loads are aligned."""
    head: dict[str, Any] = {**said, "version": VERSION, "vectors": {}, "matrices": {}}
    arrays: list[NDArray[Any]] = []
    end = 0

    def place(array: NDArray[Any]) -> int:
        nonlocal end
        begin = -(-end // _ALIGNMENT) * _ALIGNMENT
        end = begin + array.nbytes
        arrays.append(np.ascontiguousarray(array))
        return begin

    for name, vector in vectors.items():
        kind = [str(vector.dtype)] if vector.dtype != _FLOAT else []
        head["vectors"][name] = [place(vector), vector.shape, *kind]
    for name, matrix in matrices.items():
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


def head_of(path: Path) -> dict[str, Any]:
    """What `write` was told, and where arrays lie. Raises what `broken` catches."""
    with path.open("rb") as file:
        if file.read(8) != _MAGIC:
            raise ValueError("it begins with something else")
        head: dict[str, Any] = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        head["begin"] = -(-file.tell() // _PAGE) * _PAGE
    return head


def read(
    path: Path, head: Mapping[str, Any], far: Sequence[str]
) -> tuple[dict[str, NDArray[Any]], dict[str, Blocks]]:
    """Vectors and matrices: what a forward reads in large pages where the system has them, mapped are the matrices
    `far`, which stand last. Raises MemoryError, and what `broken` catches."""
    if head["version"] != VERSION:
        raise ValueError("it is of another version")
    begin = head["begin"]
    with path.open("rb") as file:
        data = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)[begin:]
    ends = [at + size for name, (at, size, *_) in head["matrices"].items() if name not in far]
    near = in_large_pages(path, begin, min(max(ends, default=0), data.nbytes))
    matrices = {}
    for name, (at, size, kind, rows, columns, lanes) in head["matrices"].items():
        whole = near if near is not None and at + size <= near.nbytes else data
        matrices[name] = Blocks(kind, whole[at : at + size], rows, columns, lanes)
        if matrices[name].nbytes != -(-rows // lanes) * lanes * matrices[name].row_bytes:
            raise ValueError("it is cut off")
    vectors = {}
    for name, (at, shape, *other) in head["vectors"].items():
        of = np.dtype(other[0] if other else _FLOAT)
        vectors[name] = data[at : at + of.itemsize * int(np.prod(shape))].view(of).reshape(shape)
    return vectors, matrices


@contextmanager
def broken(path: Path) -> Iterator[None]:
    """What a damaged file raises, as a BrokenFileError."""
    try:
        yield
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise BrokenFileError(f"{path} is broken: {error}. Delete it; it is made anew.") from error
