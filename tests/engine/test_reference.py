"""The target against transformers' own forward, across chunks and beyond the first slots."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hierchat.engine import torch_target
from hierchat.engine.layout import CHUNK
from hierchat.engine.torch_target import TorchTarget
from tests.tiny import CONTEXT, VOCABULARY, Kind, tiny_model


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_logits_agree_with_transformers(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_target, "FIRST_SLOTS", CHUNK)  # so that the slots grow on the way
    ids = np.random.default_rng(3).integers(0, VOCABULARY, CONTEXT - 12).tolist()
    with torch.inference_mode():
        expected = tiny_model(kind)(torch.tensor([ids])).logits[0].numpy()
    target = TorchTarget(tiny_model(kind), packed=False)
    rows = []
    for begin in range(0, len(ids), 30):
        block = ids[begin : begin + 30]
        rows.append(target.forward(block, range(-1, len(block) - 1)))
        target.commit(range(len(block)))
    np.testing.assert_allclose(np.concatenate(rows), expected, atol=2e-4)
    assert target.tokens == ids
