"""Models for the CPU engine: out of GGUF files, out of safetensors, and through the cache."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from hierchat.engine.backends import select_implementation
from hierchat.engine.cpu.runner import CpuRunner
from hierchat.engine.cpu.sequence import CpuSequence
from hierchat.jit import LANES
from hierchat.models import runnable
from hierchat.models.cache import sha256
from hierchat.models.catalogue import Backend
from hierchat.models.fetch.bring import bring
from hierchat.models.fetch.convert import MARKER, blocks_folder, is_converted
from hierchat.models.formats import block_model
from hierchat.models.formats.layouts import VERSION
from hierchat.models.load.load_model import load, load_torch
from hierchat.models.progress import BrokenFileError, Progress, UnsupportedError
from tests.testing.tiny_files import change_config, of_folder, of_gguf

TOKENS = [1, 40, 80, 7, 7, 120, 33, 5, 200, 9]


def logits(target: CpuSequence) -> np.ndarray:
    return np.asarray(target.forward(TOKENS, range(-1, len(TOKENS) - 1)))


@pytest.mark.parametrize("backend", ["blocks", "float32"])
def test_a_gguf_gives_the_logits_of_transformers(backend: Backend, tiny_gguf: Path) -> None:
    blocks, loaded = load(of_gguf(tiny_gguf), "cpu"), load(of_gguf(tiny_gguf), "cpu", backend=backend)
    assert (loaded.backend, loaded.device, loaded.end_ids, loaded.note) == (backend, "cpu", {2}, "")
    for (name, one), (_, other) in zip(blocks.model.matrices(), loaded.model.matrices(), strict=True):
        assert other.name == ("F32" if backend == "float32" else one.name)
        np.testing.assert_array_equal(one.floats(), other.floats(), err_msg=name)
    plain = load_torch(of_gguf(tiny_gguf), "cpu", backend="float32")
    assert blocks.model_key == loaded.model_key == plain.model_key  # one history for all
    with torch.inference_mode():
        expected = plain.model(torch.tensor([TOKENS])).logits[0].numpy()
    fine = CpuRunner(
        loaded.model, context_length=loaded.context_length
    )  # which does not round activations to int8
    target = (fine if backend == "blocks" else select_implementation(loaded).runner).open()
    assert (target.runner.backend, target.runner.exact) == (backend, True)
    found = logits(target)
    assert np.abs(found - expected).max() <= 1e-3 * np.abs(expected).max()


def test_made_once_and_as_large_as_the_file(tiny_gguf: Path) -> None:
    seen: list[Progress] = []
    loaded = load(of_gguf(tiny_gguf), "cpu", seen.append)
    assert any(now.phase == "converting" and now.total == 2 for now in seen)
    matrices = dict(loaded.model.matrices())
    blocks = sum(tensor.n_bytes for tensor in gguf.GGUFReader(tiny_gguf).tensors if tensor.shape.size == 2)
    assert blocks == sum(matrix.rows * matrix.row_bytes for matrix in matrices.values())
    assert sum(matrix.nbytes for matrix in matrices.values()) <= 1.02 * blocks
    seen.clear()
    for name, again in load(of_gguf(tiny_gguf), "cpu", seen.append).model.matrices():
        np.testing.assert_array_equal(matrices[name].data, again.data, err_msg=name)
        assert again.data.ctypes.data % 64 == 0
    assert not any(now.phase == "converting" for now in seen)


def test_a_cache_of_another_layout_is_made_anew(tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later version's, or one that a processor with wider registers made."""
    one = of_gguf(tiny_gguf)
    folder = bring(one, device="cpu")
    assert folder.parent.name == "blocks"
    written = (folder / block_model.MODEL_FILE).stat().st_mtime_ns
    assert bring(one, device="cpu") == folder
    assert (folder / block_model.MODEL_FILE).stat().st_mtime_ns == written
    marker = folder / MARKER
    for layout in ([VERSION, 2 * LANES], [VERSION - 1, LANES], None):
        marker.write_text(json.dumps({**json.loads(marker.read_text()), "layout": layout}))
        assert not is_converted(folder)
        assert bring(one, device="cpu") == folder
        assert json.loads(marker.read_text())["layout"] == [VERSION, LANES]


def test_a_killed_conversion_leaves_nothing_that_is_believed(tiny_gguf: Path) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path\n"
        "from hierchat.models.fetch import convert\n"
        "from hierchat.models.formats import block_model\n"
        "write = block_model.write_model\n"
        "def killed(model, path):\n"
        "    write(model, path); os.truncate(path, 5000); os.kill(os.getpid(), signal.SIGKILL)\n"
        "block_model.write_model = killed\n"
        "convert.convert_blocks(Path(sys.argv[1]), sys.argv[2], lambda progress: None)\n"
    )
    digest, there = sha256(tiny_gguf), {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run([sys.executable, "-c", script, tiny_gguf, digest], env=there, capture_output=True)
    assert done.returncode == -signal.SIGKILL
    assert not is_converted(blocks_folder(digest))
    assert load(of_gguf(tiny_gguf), "cpu", backend="blocks").backend == "blocks"


def test_a_damaged_cache_is_made_anew(tiny_gguf: Path) -> None:
    folder = bring(of_gguf(tiny_gguf), device="cpu")
    file = folder / block_model.MODEL_FILE
    data = bytearray(file.read_bytes())
    file.write_bytes(data[:-100])
    load(of_gguf(tiny_gguf), "cpu")  # its size is wrong: made anew
    assert file.stat().st_size == len(data)
    data[16:40] = b"x" * 24
    file.write_bytes(data)
    with pytest.raises(
        BrokenFileError, match=r"^blocks\.bin is broken.*get it again\.$"
    ):  # without its folder
        block_model.read_model(file)
    load(of_gguf(tiny_gguf), "cpu")
    assert file.read_bytes() != data


def test_an_unknown_block_type_runs_through_transformers(
    tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runnable, "TYPES", runnable.TYPES - {"Q8_0"})
    loaded = load(of_gguf(tiny_gguf), "cpu")
    assert loaded.backend == "float16"
    assert "block type Q8_0" in loaded.note
    assert "runs through transformers instead" in loaded.note
    assert not is_converted(blocks_folder("x"))
    with pytest.raises(UnsupportedError, match="does not compute tiny: block type Q8_0"):
        load(of_gguf(tiny_gguf), "cpu", backend="blocks")


@pytest.mark.parametrize(("bits", "kind", "error"), [(8, "Q8_0", 0.03), (4, "Q4_1", 0.3)])
def test_safetensors_are_packed_where_the_catalogue_asks(
    tiny_folder: Path, bits: int, kind: str, error: float
) -> None:
    plain = load(of_folder(tiny_folder), "cpu")
    assert plain.backend == "float16"
    packed = load(of_folder(tiny_folder, blocks=bits), "cpu")
    assert (packed.backend, packed.model_key) == ("blocks", plain.model_key)
    assert packed.model.layers[0]["q"].name == kind
    assert packed.model.embedding.name == "Q8_0"
    with torch.inference_mode():
        expected = plain.model(torch.tensor([TOKENS])).logits[0].numpy()
    found = logits(CpuRunner(packed.model, context_length=packed.context_length).open())
    assert np.abs(found - expected).max() <= error * np.abs(expected).max()


def test_what_has_no_blocks_runs_without_them_or_says_so(tiny_folder: Path) -> None:
    floats = load(of_folder(tiny_folder, blocks=8), "cpu", backend="float32")  # packed blocks are none
    assert (floats.backend, str(floats.model.dtype)) == ("float32", "torch.float32")
    assert not isinstance(floats.model, block_model.BlockModel)
    with pytest.raises(UnsupportedError, match="`blocks: 8`"):
        load(of_folder(tiny_folder), "cpu", backend="blocks")
    with pytest.raises(UnsupportedError, match="CPU only"):
        load(of_folder(tiny_folder), "cuda:0", backend="blocks")
    change_config(tiny_folder, mlp_bias=True)
    with pytest.raises(UnsupportedError, match="biases"):
        load(of_folder(tiny_folder, blocks=8), "cpu", backend="blocks")
