"""Make a tiny model, random rows and products, by which the kernels are compiled and tried."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hierchat.engine.cpu.memory import FORM, Shape, make_work
from hierchat.engine.cpu.rows import product, quantise, record
from hierchat.engine.cpu.runner import CpuRunner
from hierchat.engine.cpu.unpacking import POWERS
from hierchat.models.architectures.families import MATRICES
from hierchat.models.catalogue import Activations
from hierchat.models.formats.block_model import BlockModel
from hierchat.models.formats.blocks import Blocks, pack
from hierchat.models.formats.layouts import LAYOUTS, PLAIN

_SHAPE = {
    "model_type": "llama",
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


def trial_runner(threads: int | None = None) -> CpuRunner:
    """Make a runner over random weights; it has passed or failed its self-test when this returns."""
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


def random_rows(name: str, rows: int, columns: int, seed: int = 0, largest: float = 0.1) -> NDArray[np.uint8]:
    """Make random rows of a file in a block type, uint8 [rows, bytes of a row], with scales up to `largest`."""
    random = np.random.default_rng(seed)
    layout = LAYOUTS[name]
    if layout.source == PLAIN:
        floats = random.standard_normal((rows, columns)).astype(np.float32)
        if name == "F16":
            return floats.astype(np.float16).view(np.uint8)
        raw = floats.view(np.uint8)
        if name == "BF16":
            raw = np.ascontiguousarray(raw.reshape(rows, columns, 4)[..., 2:]).reshape(rows, -1)
        return raw
    raw = random.integers(0, 256, (rows, columns // layout.weights, layout.size), dtype=np.uint8)
    if name == POWERS:
        raw[..., 0] = random.integers(-6, 1, raw.shape[:2]) + int(np.log2(largest)) + 128
    scales = [field.offset for field in layout.head if field.size == 2]
    for offset in scales:
        halves = random.uniform(0.01 * largest, largest, (*raw.shape[:2], 1)).astype(np.float16)
        raw[..., offset : offset + 2] = halves.view(np.uint8)
    return raw.reshape(rows, -1)


def multiplied(
    matrix: Blocks, x: NDArray[np.float32], activations: Activations = "int16"
) -> NDArray[np.float32]:
    """Multiply the matrix with rows of activations, as a forward does it; float32 [rows of x, rows of the matrix]."""
    size = matrix.columns
    work = make_work((Shape(1, size, 1, 1, 16, size, 1, 1e-5, 0),), len(x), 1)
    work.input.plain[: x.size] = x.reshape(-1)
    entry = np.array(record(matrix, activations))
    for number, row in enumerate(x):
        quantise(row, entry[FORM], 0, number, len(x), work.input)
    out = np.full((len(work.x), matrix.rows), np.nan, np.float32)
    product(entry, 0, 0, matrix.rows, 0, len(x), work.input, out.ctypes.data, out.strides[0])
    return out[: len(x)]
