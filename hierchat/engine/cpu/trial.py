"""Make a tiny model, by which the kernels are compiled and tried."""

from __future__ import annotations

import numpy as np

from hierchat.engine.cpu.runner import CpuRunner
from hierchat.models.architectures.families import MATRICES
from hierchat.models.formats.block_model import BlockModel
from hierchat.models.formats.blocks import Blocks, pack

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
