"""Models for the CPU engine: out of GGUF files, out of safetensors, and through the cache."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from hierchat.engine.backends import make_runner
from hierchat.engine.cpu.runner import CpuRunner, CpuSequence
from hierchat.models.catalogue import Folder, Gguf, ModelEntry, ModelSource
from hierchat.models.errors import BrokenFileError, UnsupportedError
from hierchat.models.fetch.bring import prepare, status
from hierchat.models.fetch.convert import blocks_folder, is_converted
from hierchat.models.formats import block_model
from hierchat.models.formats.quantised_blocks import BlockKind
from hierchat.models.load.load import load
from hierchat.models.load.load_torch import load_torch
from hierchat.models.progress import Progress

TOKENS = [1, 40, 80, 7, 7, 120, 33, 5, 200, 9]


def entry(path: Path, **fields: object) -> ModelEntry:
    return ModelEntry(name="tiny", source=ModelSource(gguf=Gguf(path=path)), **fields)


def logits(target: CpuSequence) -> np.ndarray:
    return np.asarray(target.forward(TOKENS, range(-1, len(TOKENS) - 1)))


def test_a_gguf_gives_the_logits_of_transformers(tiny_gguf: Path) -> None:
    loaded = load(entry(tiny_gguf), "cpu")
    assert (loaded.backend, loaded.device, loaded.end_ids, loaded.note) == ("blocks", "cpu", {2}, "")
    plain = load_torch(entry(tiny_gguf), "cpu", backend="float32")
    assert loaded.model_key == plain.model_key  # one history for both
    with torch.inference_mode():
        expected = plain.model(torch.tensor([TOKENS])).logits[0].numpy()
    found = logits(CpuRunner(loaded.model, context_length=loaded.context_length).open())
    assert np.abs(found - expected).max() <= 1e-3 * np.abs(expected).max()


def test_float32_weights_are_the_blocks_exactly(tiny_gguf: Path) -> None:
    blocks = load(entry(tiny_gguf), "cpu")
    floats = load(entry(tiny_gguf), "cpu", backend="float32")
    assert (floats.backend, floats.dtype, floats.model_key) == ("float32", "float32", blocks.model_key)
    for (name, one), (_, other) in zip(blocks.model.matrices(), floats.model.matrices(), strict=True):
        assert other.kind is BlockKind.SINGLE
        np.testing.assert_array_equal(one.floats(), other.floats(), err_msg=name)
    plain = load_torch(entry(tiny_gguf), "cpu", backend="float32")
    with torch.inference_mode():
        expected = plain.model(torch.tensor([TOKENS])).logits[0].numpy()
    target = make_runner(floats).open()
    assert (target.runner.backend, target.exact) == ("float32", True)
    found = logits(target)
    assert np.abs(found - expected).max() <= 1e-3 * np.abs(expected).max()


def test_packed_blocks_are_no_float32(tiny_folder: Path) -> None:
    loaded = load(
        ModelEntry(name="tiny", source=ModelSource(folder=Folder(path=tiny_folder)), blocks=8),
        "cpu",
        backend="float32",
    )
    assert (loaded.backend, loaded.dtype) == ("float32", "float32")
    assert not isinstance(loaded.model, block_model.BlockModel)


def test_made_once_and_as_large_as_the_file(tiny_gguf: Path) -> None:
    seen: list[Progress] = []
    loaded = load(entry(tiny_gguf), "cpu", seen.append)
    assert any(now.phase == "converting" and now.total == 2 for now in seen)
    blocks = sum(tensor.n_bytes for tensor in gguf.GGUFReader(tiny_gguf).tensors)
    assert loaded.model.nbytes <= 1.2 * blocks
    seen.clear()
    again = load(entry(tiny_gguf), "cpu", seen.append)
    assert not any(now.phase == "converting" for now in seen)
    for (name, one), (_, other) in zip(loaded.model.matrices(), again.model.matrices(), strict=True):
        np.testing.assert_array_equal(one.weights, other.weights, err_msg=name)
    assert all(matrix.weights.ctypes.data % 16 == 0 for _, matrix in again.model.matrices())


def test_status_and_prepare_know_the_blocks(tiny_gguf: Path) -> None:
    one = entry(tiny_gguf)
    assert not status(one, "cpu").present
    folder = prepare(one, device="cpu")
    assert status(one, "cpu").path == folder
    assert folder.parent.name == "blocks"


def test_a_damaged_cache_is_named(tiny_gguf: Path) -> None:
    folder = prepare(entry(tiny_gguf), device="cpu")
    file = folder / block_model.FILE
    data = bytearray(file.read_bytes())
    file.write_bytes(data[:-100])
    load(entry(tiny_gguf), "cpu")  # its size is wrong: made anew
    assert file.stat().st_size == len(data)
    data[8:40] = b"x" * 32
    file.write_bytes(data)
    with pytest.raises(BrokenFileError, match=r"blocks\.safetensors is broken.*Delete it"):
        load(entry(tiny_gguf), "cpu")


def test_an_unknown_block_type_runs_through_transformers(
    tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hierchat.models.formats import block_types

    known = dict(block_types.TYPES)
    del known["Q8_0"]
    monkeypatch.setattr(block_types, "TYPES", known)
    loaded = load(entry(tiny_gguf), "cpu")
    assert loaded.backend == "float16"
    assert "block type Q8_0" in loaded.note
    assert "runs through transformers instead" in loaded.note
    assert not is_converted(blocks_folder("x"))
    with pytest.raises(UnsupportedError, match=r"tiny.Q8_0.gguf: \S+ has block type Q8_0"):
        load(entry(tiny_gguf), "cpu", backend="blocks")


def test_a_sliding_window_runs_through_transformers(tiny_folder: Path, entry_of) -> None:
    config = json.loads((tiny_folder / "config.json").read_text())
    (tiny_folder / "config.json").write_text(json.dumps({**config, "mlp_bias": True}))
    with pytest.raises(UnsupportedError, match="biases"):
        load(entry_of(tiny_folder, blocks=8), "cpu", backend="blocks")


@pytest.mark.parametrize(("bits", "kind", "error"), [(8, BlockKind.BYTES, 0.03), (4, BlockKind.NIBBLES, 0.3)])
def test_safetensors_are_packed_where_the_catalogue_asks(
    tiny_folder: Path, entry_of, bits: int, kind: BlockKind, error: float
) -> None:
    plain = load(entry_of(tiny_folder), "cpu")
    assert plain.backend == "float16"
    with pytest.raises(UnsupportedError, match="`blocks: 8`"):
        load(entry_of(tiny_folder), "cpu", backend="blocks")
    packed = load(entry_of(tiny_folder, blocks=bits), "cpu")
    assert (packed.backend, packed.model_key) == ("blocks", plain.model_key)
    assert packed.model.layers[0]["q"].kind is kind
    assert packed.model.embedding.kind is BlockKind.BYTES
    with torch.inference_mode():
        expected = plain.model(torch.tensor([TOKENS])).logits[0].numpy()
    found = logits(CpuRunner(packed.model, context_length=packed.context_length).open())
    assert np.abs(found - expected).max() <= error * np.abs(expected).max()


def test_a_folder_of_another_kind_has_no_blocks(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="CPU only"):
        load(
            ModelEntry(name="tiny", source=ModelSource(folder=Folder(path=tmp_path))),
            "cuda:0",
            backend="blocks",
        )
