"""A tiny model, and one product of each kind of weights: what the kernels are tried and compiled with."""

from __future__ import annotations

import ctypes

import numpy as np
from numpy.typing import NDArray

from hierchat.engine.cpu.dot import GROUP, HEIGHTS, ROWS, multiplier
from hierchat.engine.cpu.rows import quantise
from hierchat.engine.cpu.runner import CpuRunner
from hierchat.models.formats.block_model import MATRICES, BlockModel
from hierchat.models.formats.block_types import pack
from hierchat.models.formats.quantised_blocks import (
    BLOCK,
    BYTES_PER_BLOCK,
    NARROW,
    QUANTISED,
    SCALES_PER_BLOCK,
    BlockKind,
    Blocks,
)

_SHAPE = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "intermediate_size": 32,
    "rms_norm_eps": 1e-5,
    "vocab_size": 64,
    "max_position_embeddings": 256,
    "rope_theta": 10000.0,
}
_CALL = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 10)


def trial_runner(threads: int | None = None) -> CpuRunner:
    """A runner over random weights; it has passed or failed its self-test when this returns."""
    random = np.random.default_rng(0)

    def matrix(rows: int) -> Blocks:
        return pack(random.standard_normal((rows, 32)).astype(np.float32), 4)

    layer = {name: matrix(16 if name in ("k", "v") else 32) for name in MATRICES}
    ones = np.ones((1, 32), np.float32)
    vectors = {"attention_norms": ones, "inner_norms": ones, "last_norm": ones[0]}
    embedding = matrix(64)
    return CpuRunner(
        BlockModel(dict(_SHAPE), embedding, embedding, (layer,), vectors), context_length=256, threads=threads
    )


def trial_product(kind: BlockKind) -> tuple[float, bool]:
    """A random product of this kind: how far it is from float64 (of the sum of all products' sizes), and whether a row
    has the same bits whatever other rows are computed with it."""
    matrix = _random_matrix(kind)
    x = np.random.default_rng(1).standard_normal((ROWS, matrix.shape[1])).astype(np.float32)
    weights = matrix.floats().astype(np.float64)
    found = _product(matrix, x)
    size = (np.abs(x).astype(np.float64) @ np.abs(weights).T).max()
    error = float(np.abs(found - x.astype(np.float64) @ weights.T).max() / size)
    same = all(np.array_equal(_product(matrix, x[:height]), found[:height]) for height in HEIGHTS)
    return error, same


def _random_matrix(kind: BlockKind, rows: int = 24, columns: int = 512) -> Blocks:
    random = np.random.default_rng(int(kind))
    blocks = columns // BLOCK
    if kind not in QUANTISED:
        floats = random.standard_normal((rows, columns)).astype(np.float32)
        if kind is BlockKind.HALF:
            return Blocks(kind, floats.astype(np.float16).view(np.uint8))
        raw = floats.view(np.uint8)
        if kind is BlockKind.BFLOAT:
            raw = np.ascontiguousarray(raw.reshape(rows, columns, 4)[..., 2:]).reshape(rows, -1)
        return Blocks(kind, raw)
    numbers = random.integers(0, 256, (rows, blocks * BYTES_PER_BLOCK[kind]), dtype=np.uint8)
    scales = random.uniform(0.001, 0.1, (rows, blocks * SCALES_PER_BLOCK[kind]))
    return Blocks(kind, numbers, scales.astype(np.float16 if kind in NARROW else np.float32))


def _product(matrix: Blocks, x: NDArray[np.float32]) -> NDArray[np.float32]:
    rows, columns = matrix.shape
    blocks, groups = columns // BLOCK, -(-columns // GROUP)
    integers = np.zeros(ROWS * columns, np.int16)
    levels, sums = np.zeros(ROWS * groups, np.float32), np.zeros(ROWS * blocks, np.float32)
    for row in range(len(x)):
        quantise(x[row], row, integers, levels, sums)
    given = integers if matrix.kind in QUANTISED else np.ascontiguousarray(x)
    out = np.zeros((len(x), rows), np.float32)
    parts = (matrix.weights, matrix.scales, given, levels, sums)
    addresses = [part.ctypes.data for part in parts]
    _CALL(multiplier(matrix.kind))(len(x), *addresses, blocks, out.ctypes.data, rows * 4, rows)
    return out
