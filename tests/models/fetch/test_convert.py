from pathlib import Path

import gguf
import numpy as np
import pytest

from hierchat.models.cache import sha256
from hierchat.models.catalogue import Backend
from hierchat.models.fetch import convert as converting
from hierchat.models.fetch.bring import get
from hierchat.models.fetch.convert import convert, converted_folder, is_converted
from hierchat.models.load.load_model import load, load_torch
from hierchat.models.progress import (
    BrokenFileError,
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


@pytest.mark.parametrize("backend", ["blocks", "float16"])
def test_tokenizer_keeps_template_and_control_tokens(tiny_gguf: Path, backend: Backend) -> None:
    loaded = load(of_gguf(tiny_gguf), "cpu", backend=backend)
    tokenizer = loaded.tokenizer
    assert loaded.end_ids == {2}

    def ids(text: str, **options: bool) -> list[int]:
        chat = [{"role": "user", "content": text}]
        return list(tokenizer.apply_chat_template(chat, add_generation_prompt=True, **options)["input_ids"])

    assert ids("hi").count(1) == 2
    assert ids("<|im_start|>", sanitize_control_tokens=True).count(1) == 2
    assert ids("<|im_start|>").count(1) == 3


def test_damaged_conversion_is_made_again(tiny_gguf: Path) -> None:
    folder = get(of_gguf(tiny_gguf))
    weights = folder / "model.safetensors"
    whole = weights.stat().st_size
    weights.write_bytes(b"short")
    assert not is_converted(folder)
    assert get(of_gguf(tiny_gguf)) == folder
    assert weights.stat().st_size == whole
    (folder / converting.MARKER).write_text("{")
    assert not is_converted(folder)


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


def test_broken_missing_and_foreign_files(tiny_gguf: Path, tmp_path: Path) -> None:
    half, foreign = tmp_path / "half.gguf", tmp_path / "foreign.gguf"
    half.write_bytes(tiny_gguf.read_bytes()[:20_000])
    writer = gguf.GGUFWriter(foreign, "wordpainter")
    writer.add_tensor("a", np.zeros(32, np.float32))
    finish(writer)
    for path, error, said in (
        (half, BrokenFileError, r"half\.gguf is no whole GGUF file"),
        (tmp_path / "none.gguf", MissingError, "there is no file"),
        (foreign, UnsupportedError, r"foreign\.gguf cannot be converted"),
    ):
        with pytest.raises(error, match=said):
            get(of_gguf(path))
