"""The target against transformers' own forward, across chunks and beyond the first slots."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hierchat.engine.torch import torch_runner
from hierchat.engine.torch.segment_attention import CHUNK
from hierchat.engine.torch.torch_runner import TorchRunner
from tests.testing.tiny import CONTEXT, VOCABULARY, Kind, tiny_model


@pytest.mark.parametrize("bucket", [CHUNK, torch_runner.BUCKET])
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_logits_agree_with_transformers(kind: Kind, bucket: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_runner, "FIRST_SLOTS", CHUNK)  # so that the slots grow on the way
    monkeypatch.setattr(torch_runner, "CHUNK", bucket)
    ids = np.random.default_rng(3).integers(0, VOCABULARY, CONTEXT - 12).tolist()
    with torch.inference_mode():
        expected = tiny_model(kind)(torch.tensor([ids])).logits[0].numpy()
    target = TorchRunner(tiny_model(kind), packed=False).open()
    rows = []
    for begin in range(0, len(ids), 30):
        block = ids[begin : begin + 30]
        rows.append(target.forward(block, range(-1, len(block) - 1)))
        target.commit(range(len(block)))
    np.testing.assert_allclose(np.concatenate(rows), expected, atol=2e-4)
    assert target.tokens == ids


def test_sums_of_half_precision_are_not_rounded_on_the_way() -> None:
    """Four chunks, each of whose products alone would be rounded."""
    ids = np.random.default_rng(4).integers(0, VOCABULARY, CONTEXT).tolist()
    model = tiny_model().to(torch.bfloat16)
    with torch.inference_mode():
        expected = model.float()(torch.tensor([ids])).logits[0, -1].numpy()
    target = TorchRunner(model.to(torch.bfloat16)).open()
    assert target.runner.backend == "bfloat16"
    target.read(ids[:-1])
    row = target.forward(ids[-1:], [-1])[0]
    assert np.corrcoef(row, expected)[0, 1] > 0.999
