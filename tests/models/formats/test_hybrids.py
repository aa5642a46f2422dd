"""Hybrids as models of blocks: from GGUF files, and from safetensors."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from benchmarks.peers.arm import LLAMA_CPP
from benchmarks.peers.environment import python_with
from hierchat.engine.cpu.runner import CpuRunner
from hierchat.models.architectures.families import ARCHITECTURES
from hierchat.models.architectures.model_config import of_text
from hierchat.models.formats import blocks
from hierchat.models.formats.assemble import pack_safetensors, read_gguf
from hierchat.models.formats.block_model import BlockModel
from hierchat.models.formats.gguf_config import gguf_config
from hierchat.models.formats.gguf_head import read_head
from hierchat.models.load.check import expected_step
from hierchat.models.load.load_model import load
from hierchat.models.progress import BrokenFileError, silent
from tests.gguf_files.llama_logits import HYBRIDS, POSITIONS, STORED, TOKENS, write_file
from tests.gguf_files.llama_logits import logits_of as llama_cpp
from tests.gguf_files.models import VOCABULARY, tiny_module
from tests.gguf_files.writer import write_family
from tests.testing.families import tiny_family
from tests.testing.tiny import random_tokens
from tests.testing.tiny_files import of_gguf, tiny_tokenizer

Floats = NDArray[np.float32]
TOKENIZER = tiny_tokenizer(("ab",))
TEXT = random_tokens(40, seed=3, vocabulary=VOCABULARY)
EXPERTS = ("granitemoe", "granitemoe, shared", "olmoe")
LFM3 = {"vocab_size": VOCABULARY, "layer_types": ["conv", "sliding_attention", "full_attention", "conv"]}


def ours(model: BlockModel, tokens: list[int]) -> Floats:
    rows = CpuRunner(model, context_length=240, threads=1).open().forward(tokens, range(-1, len(tokens) - 1))
    return np.stack([rows[node] for node in range(len(tokens))])


@pytest.mark.parametrize("name", [*HYBRIDS, *EXPERTS, "lfm3"])
def test_both_kinds_of_files_mean_what_the_module_computes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On our kernels; safetensors here without rounding, a file of eight bits has the same weights."""
    monkeypatch.setattr(blocks, "pack", lambda weights, bits: blocks.from_floats(weights))
    module = tiny_family("lfm3", **LFM3) if name == "lfm3" else tiny_module(name)
    module.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    models = [pack_safetensors(tmp_path, dict(of_text(config)), 8, silent)]
    if name != "lfm3":
        for packed in (False, True):
            path = write_family(name, module, tmp_path / "tiny.gguf", TOKENIZER, packed=packed)
            assert expected_step(of_gguf(path), "cpu") == "kernels"
            models.append(read_gguf(path, gguf_config(read_head(path)), silent))
    with torch.inference_mode():
        right = np.asarray(module(torch.tensor([TEXT])).logits[0])
    for model in models:
        np.testing.assert_allclose(ours(model, TEXT), right, atol=2e-2 * right.std())


@pytest.mark.parametrize("name", HYBRIDS)
def test_logits_are_llama_cpps(name: str, tmp_path: Path) -> None:
    model = load(of_gguf(write_file(name, tmp_path)), "cpu").model
    assert isinstance(model, BlockModel)
    found = ours(model, TOKENS)[POSITIONS]
    with np.load(STORED) as stored:
        theirs = stored[name]
    for mine, right in zip(found, theirs, strict=True):
        assert np.corrcoef(mine, right)[0, 1] > 0.9999
    assert np.array_equal(found.argmax(axis=1), theirs.argmax(axis=1))


@pytest.mark.large
@pytest.mark.parametrize("name", HYBRIDS)
def test_stored_logits_are_what_llama_cpp_computes(name: str, tmp_path: Path) -> None:
    python = python_with(LLAMA_CPP, print)
    with np.load(STORED) as stored:
        np.testing.assert_allclose(
            llama_cpp(str(python), write_file(name, tmp_path)), stored[name], atol=1e-3
        )


@pytest.mark.parametrize(
    "changed", [{"ssm.inner_size": 97}, {"ssm.group_count": 5}, {"ssm.time_step_rank": 0}]
)
def test_states_that_do_not_fit_are_refused(changed: dict[str, int], tmp_path: Path) -> None:
    path = write_family("qwen35", tiny_module("qwen35"), tmp_path / "tiny.gguf", TOKENIZER, **changed)
    with pytest.raises(BrokenFileError, match=r"its state of \d+ numbers has \d heads in \d groups"):
        gguf_config(read_head(path))


def test_all_hybrids_are_tried() -> None:
    tried = {tiny_module(name).config.model_type for name in (*HYBRIDS, *EXPERTS)} - {"olmoe"}
    assert tried | {"lfm3"} == {name for name, one in ARCHITECTURES.items() if one.mixers}
