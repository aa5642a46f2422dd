"""Hybrids as models of blocks: from GGUF files, and from safetensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from hierchat.models.architectures.families import ARCHITECTURES
from hierchat.models.architectures.model_config import of_text
from hierchat.models.formats import blocks
from hierchat.models.formats.assemble import pack_safetensors, read_gguf
from hierchat.models.formats.gguf_config import gguf_config
from hierchat.models.formats.gguf_head import read_head
from hierchat.models.progress import silent
from tests.gguf_files.models import VOCABULARY, tiny_module
from tests.gguf_files.writer import write_family
from tests.testing.hybrid_reference import logits_of
from tests.testing.tiny import random_tokens
from tests.testing.tiny_files import tiny_tokenizer

TOKENS = random_tokens(24, seed=1, vocabulary=VOCABULARY)
TOKENIZER = tiny_tokenizer(("ab",))
HYBRIDS = ["qwen35", "qwen35, heads alike"]


@pytest.mark.parametrize("name", HYBRIDS)
@pytest.mark.parametrize("packed", [False, True])
def test_a_file_becomes_blocks(name: str, packed: bool, tmp_path: Path) -> None:
    """They mean what transformers' module computes; in eight bits the file has the same weights."""
    module = tiny_module(name)
    path = write_family(name, module, tmp_path / "tiny.gguf", TOKENIZER, packed=packed)
    model = read_gguf(path, gguf_config(read_head(path)), silent)
    with torch.inference_mode():
        wanted = module(torch.tensor([TOKENS])).logits[0].numpy()
    np.testing.assert_allclose(logits_of(model, TOKENS), wanted, atol=2e-3 * wanted.std())


@pytest.mark.parametrize("name", HYBRIDS)
def test_safetensors_become_blocks(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From what transformers writes; here without rounding."""
    monkeypatch.setattr(blocks, "pack", lambda weights, bits: blocks.from_floats(weights))
    module = tiny_module(name)
    module.save_pretrained(tmp_path)
    config = of_text(module.config.to_dict())
    model = pack_safetensors(tmp_path, dict(config), 8, silent)
    with torch.inference_mode():
        wanted = module(torch.tensor([TOKENS])).logits[0].numpy()
    np.testing.assert_allclose(logits_of(model, TOKENS), wanted, atol=2e-3 * wanted.std())


def test_all_hybrids_are_tried() -> None:
    tried = {tiny_module(name).config.model_type for name in HYBRIDS}
    assert tried == {name for name, one in ARCHITECTURES.items() if one.mixers}
