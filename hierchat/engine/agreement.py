"""Whether a runner computes what transformers itself does, and a GPU what the processor does: on a few tokens.

The self-test compares a runner with itself, so kernels that are wrong in the same way everywhere pass it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hierchat.engine.ladder import NotRight
from hierchat.engine.runner import Runner

TEXT, LATEST = 24, 4
"""Tokens of the text, and how many of them are a segment behind the others."""
CLOSE, ROUGHLY = 0.05, 0.3
"""By which a row's logits may differ, as the root of their mean square in standard deviations: in float32, and in
anything less precise. Wrong ones differ by one and more."""


def text_of(vocabulary: int) -> list[int]:
    """Random tokens, the same each time."""
    return np.random.default_rng(1).integers(0, vocabulary, TEXT).tolist()


def expected(model: Any, vocabulary: int) -> NDArray[np.float32] | None:
    """Logits [LATEST, vocabulary] of transformers alone, with the attention that the model has now; None where it
    computes no numbers, or cannot read a text at once."""
    ids = torch.tensor([text_of(vocabulary)], device=model.device)
    try:
        with torch.inference_mode():
            rows = model(input_ids=ids, use_cache=False).logits[0, -LATEST:].float().numpy(force=True)
    except Exception:  # the rungs say what is wrong
        return None
    return rows if np.isfinite(rows).all() else None


def require_agreement(runner: Runner, wanted: NDArray[np.float32] | None) -> None:
    """Raises NotRight where the runner computes no numbers, or others than `wanted`."""
    sequence = runner.open()
    try:
        text = text_of(runner.vocabulary)
        sequence.read(text[:-LATEST])
        rows = sequence.forward(text[-LATEST:], range(-1, LATEST - 1))
        found = np.array([rows[node] for node in range(LATEST)])
    finally:
        sequence.close()
    if not np.isfinite(found).all():
        raise NotRight("it computes no numbers")
    if wanted is not None and wanted.shape == found.shape:
        off = difference(found, wanted)
        if off > (CLOSE if runner.backend == "float32" else ROUGHLY):
            raise NotRight(f"its logits are {off:.1f} standard deviations from those of transformers")


def require_right_device(device: torch.device, dtype: torch.dtype) -> None:
    """Raises NotRight where a device computes another tiny random model than the processor. Nothing is asked of the
    processor itself."""
    if device.type == "cpu":
        return
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(LlamaConfig(**shape, **heads)).eval().requires_grad_(False)
    wanted = expected(model, 64)
    found = expected(model.to(device, dtype), 64)
    if found is None:
        raise NotRight("a small model cannot be computed there")
    if wanted is not None and (off := difference(found, wanted)) > (
        CLOSE if dtype == torch.float32 else ROUGHLY
    ):
        raise NotRight(
            f"it computes a small model {off:.1f} standard deviations from what the processor does"
        )


def difference(found: NDArray[np.float32], wanted: NDArray[np.float32]) -> float:
    """Of the row that differs most: the root of its mean square over the standard deviation of all."""
    rows = np.sqrt(np.square(found - wanted).mean(axis=-1))
    return float(rows.max() / max(float(wanted.std()), 1e-6))
