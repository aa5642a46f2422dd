"""A GGUF file as the weights of transformers' module, in the file's own blocks wherever our kernels multiply them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hierchat.models.formats.block_module import Matrix, ModuleWeights
from hierchat.models.formats.gguf_families.family import Config, Family
from hierchat.models.formats.gguf_module import Contents, Made, Shape, misfit, plan
from hierchat.models.formats.layouts import BLOCK
from hierchat.models.formats.quantised_blocks import from_file
from hierchat.models.progress import Progress, Report


def read_module(
    gguf: Path,
    family: Family,
    config: Config,
    wanted: Mapping[str, Shape],
    matrices: Collection[str],
    looked_up: Collection[str],
    report: Report,
) -> ModuleWeights:
    """`matrices`: those of `wanted` that are multiplied with rows, or `looked_up` alone. What cannot be in blocks is in
    floats. Raises as gguf_module.write_module does."""
    made = plan(gguf, family, config, wanted)
    contents, message = Contents(gguf), f"{gguf.name}, once"
    found, vectors = dict[str, Matrix](), dict[str, NDArray[Any]]()
    for number, one in enumerate(made):
        report(Progress("converting", number, len(made), message))
        if one.name in matrices and _in_blocks(one):
            found[one.name] = _matrix(gguf, one, contents)
        else:
            floats = one.put(gguf, [contents.floats(tensor) for tensor in one.of], one.shape)
            vectors[one.name] = np.ascontiguousarray(floats).reshape(one.shape)
    report(Progress("converting", len(made), len(made), message))
    return ModuleWeights(found, vectors, tuple(name for name in found if name in looked_up))


def _in_blocks(one: Made) -> bool:
    """Whether our kernels multiply rows of this length, and find where the rows of an expert begin."""
    from hierchat.jit import LANES

    return one.shape[-1] % BLOCK == 0 and (len(one.shape) == 2 or one.shape[-2] % LANES == 0)


def _matrix(gguf: Path, one: Made, contents: Contents) -> Matrix:
    """What moves rows is asked with their numbers, what moves columns with theirs."""
    outputs, inputs = one.shape[-2:]
    rows = [contents.raw(tensor) for tensor in one.of]
    types = [tensor.type for tensor in one.of]
    for tensor in one.of:
        if tensor.shape[0] != inputs:
            raise misfit(
                gguf, f"rows of {tensor.name} have {tensor.shape[0]} numbers for {inputs} of {one.name}"
            )
    if one.part.columns:
        columns = one.put(gguf, [np.arange(inputs)[None]], (1, inputs)).reshape(-1)
        return Matrix((from_file(types[0], rows[0]),), columns=np.argsort(columns))
    ends = np.cumsum([len(some) for some in rows])
    numbers = [
        np.arange(end - len(some), end).reshape(*tensor.shape[:0:-1], 1)
        for tensor, some, end in zip(one.of, rows, ends, strict=True)
    ]
    order = one.put(gguf, numbers, (*one.shape[:-1], 1)).reshape(-1, outputs)
    if len(set(types)) == 1:
        whole = rows[0] if len(rows) == 1 else np.concatenate(rows)
        return Matrix((from_file(types[0], whole, order.reshape(-1)),), len(order))
    source = np.searchsorted(ends, order, side="right")  # [experts, outputs]
    pieces = [
        from_file(kind, some, order[source == number] - (end - len(some)))
        for number, (kind, some, end) in enumerate(zip(types, rows, ends, strict=True))
    ]
    return Matrix(tuple(pieces), len(order), np.argsort(np.argsort(source[0], kind="stable")))
