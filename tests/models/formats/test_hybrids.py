"""Hybrids as models of blocks: from GGUF files, and from safetensors."""

import json
from pathlib import Path
from typing import Any

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
from tests.testing.hybrid_reference import logits_of
from tests.testing.tiny_files import of_gguf, tiny_tokenizer

Floats = NDArray[np.float32]
TOKENIZER = tiny_tokenizer(("ab",))
EXPERTS = ("granitemoe", "granitemoe, shared", "olmoe")
LFM3 = {"vocab_size": VOCABULARY, "layer_types": ["conv", "sliding_attention", "full_attention", "conv"]}


def wanted(module: Any) -> Floats:
    with torch.inference_mode():
        return np.asarray(module(torch.tensor([TOKENS])).logits[0])


@pytest.mark.parametrize(("name", "packed"), [(name, at % 2 == 0) for at, name in enumerate(HYBRIDS)])
def test_a_file_becomes_blocks(name: str, packed: bool, tmp_path: Path) -> None:
    """They mean what transformers' module computes; in eight bits the file has the same weights."""
    module = tiny_module(name)
    path = write_family(name, module, tmp_path / "tiny.gguf", TOKENIZER, packed=packed)
    model = read_gguf(path, gguf_config(read_head(path)), silent)
    right = wanted(module)
    np.testing.assert_allclose(logits_of(model, TOKENS), right, atol=2e-3 * right.std())


@pytest.mark.parametrize("name", HYBRIDS)
def test_logits_are_llama_cpps(name: str, tmp_path: Path) -> None:
    sequence = CpuRunner(load(of_gguf(write_file(name, tmp_path)), "cpu").model, context_length=240).open()
    rows = sequence.forward(TOKENS, range(-1, len(TOKENS) - 1))
    ours = np.stack([rows[node] for node in range(len(TOKENS))])[POSITIONS]
    with np.load(STORED) as stored:
        theirs = stored[name]
    for mine, right in zip(ours, theirs, strict=True):
        assert np.corrcoef(mine, right)[0, 1] > 0.9999
    assert np.array_equal(ours.argmax(axis=1), theirs.argmax(axis=1))


@pytest.mark.large
@pytest.mark.parametrize("name", HYBRIDS)
def test_stored_logits_are_what_llama_cpp_computes(name: str, tmp_path: Path) -> None:
    python = python_with(LLAMA_CPP, print)
    with np.load(STORED) as stored:
        np.testing.assert_allclose(
            llama_cpp(str(python), write_file(name, tmp_path)), stored[name], atol=1e-3
        )


@pytest.mark.parametrize("name", [*HYBRIDS, "lfm3"])
def test_safetensors_become_blocks(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From what transformers writes; here without rounding."""
    monkeypatch.setattr(blocks, "pack", lambda weights, bits: blocks.from_floats(weights))
    module = tiny_family("lfm3", **LFM3) if name == "lfm3" else tiny_module(name)
    module.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    model = pack_safetensors(tmp_path, dict(of_text(config)), 8, silent)
    right = wanted(module)
    np.testing.assert_allclose(logits_of(model, TOKENS), right, atol=2e-3 * right.std())


@pytest.mark.parametrize("name", EXPERTS)
def test_experts_of_a_module_become_blocks(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Families that are like hybrids but for states, from both kinds of files, on our kernels."""
    monkeypatch.setattr(blocks, "pack", lambda weights, bits: blocks.from_floats(weights))
    module = tiny_module(name)
    path = write_family(name, module, tmp_path / "tiny.gguf", TOKENIZER, packed=True)
    assert expected_step(of_gguf(path), "cpu") == "kernels"
    module.save_pretrained(tmp_path / "saved")
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    right = wanted(module)
    for model in (
        read_gguf(path, gguf_config(read_head(path)), silent),
        pack_safetensors(tmp_path / "saved", dict(of_text(config)), 8, silent),
    ):
        sequence = CpuRunner(model, context_length=240, threads=1).open()
        rows = sequence.forward(TOKENS, range(-1, len(TOKENS) - 1))
        ours = np.stack([rows[node] for node in range(len(TOKENS))])
        np.testing.assert_allclose(ours, right, atol=1e-2 * right.std())


def test_our_kernels_get_blocks(tmp_path: Path) -> None:
    path = write_family("qwen35", tiny_module("qwen35"), tmp_path / "tiny.gguf", TOKENIZER)
    assert expected_step(of_gguf(path), "cpu") == "kernels"
    model = load(of_gguf(path), "cpu").model
    assert isinstance(model, BlockModel)
    read = read_gguf(path, gguf_config(read_head(path)), silent)
    assert np.array_equal(logits_of(model, TOKENS), logits_of(read, TOKENS))


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
