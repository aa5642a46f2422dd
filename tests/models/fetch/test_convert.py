from pathlib import Path

import gguf
import numpy as np
import pytest

from hierchat.models.cache import sha256
from hierchat.models.fetch.bring import get
from hierchat.models.fetch.convert import convert, converted_folder
from hierchat.models.load.load_model import load_torch
from hierchat.models.progress import (
    DoesNotFitError,
    MissingError,
    Progress,
    UnsupportedError,
)
from tests.testing.architectures import finish
from tests.testing.tiny_files import of_gguf


def test_weights_are_the_blocks_exactly(tiny_gguf: Path) -> None:
    seen: list[Progress] = []
    loaded = load_torch(of_gguf(tiny_gguf), "cpu", seen.append, "float32")
    reader = gguf.GGUFReader(tiny_gguf)
    blocks = {tensor.name: gguf.dequantize(tensor.data, tensor.tensor_type) for tensor in reader.tensors}
    weights = loaded.model.state_dict()
    for name, block in (
        ("model.embed_tokens.weight", "token_embd.weight"),
        ("model.layers.1.mlp.down_proj.weight", "blk.1.ffn_down.weight"),
    ):
        assert np.array_equal(weights[name].numpy(), blocks[block])
    assert weights["lm_head.weight"].data_ptr() == weights["model.embed_tokens.weight"].data_ptr()
    assert str(loaded.model.dtype) == "torch.float32"
    assert any(now.phase == "converting" and now.total == len(reader.tensors) for now in seen)


def test_cancelled_or_refused_conversion_leaves_nothing(
    tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cancel(progress: Progress) -> None:
        raise KeyboardInterrupt

    digest = sha256(tiny_gguf)
    with pytest.raises(KeyboardInterrupt):
        convert(tiny_gguf, digest, cancel)
    monkeypatch.setattr("hierchat.models.device_memory.free_memory", lambda device: 1000)
    with pytest.raises(DoesNotFitError, match="Converting tiny"):
        get(of_gguf(tiny_gguf))
    names = {path.name for path in converted_folder(digest).parent.iterdir()}
    assert names == {f"{digest}.lock"}


def test_missing_and_foreign_files(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.gguf"
    writer = gguf.GGUFWriter(foreign, "wordpainter")
    writer.add_tensor("a", np.zeros(32, np.float32))
    finish(writer)
    with pytest.raises(MissingError, match="there is no file"):
        get(of_gguf(tmp_path / "none.gguf"))
    with pytest.raises(UnsupportedError, match=r"foreign\.gguf cannot be converted"):
        get(of_gguf(foreign))
