"""A folder of safetensors, loaded through transformers."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from hierchat.models.load.load_model import load
from hierchat.models.progress import BrokenFileError, MissingError, ModelError, Progress, UnsupportedError


def logits(loaded) -> torch.Tensor:
    with torch.inference_mode():
        return loaded.model(torch.tensor([[1, 5, 9, 30]])).logits[0].float()


def change_config(folder: Path, **changed) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changed}))


def test_local_folder(tiny_folder: Path, entry_of) -> None:
    seen: list[Progress] = []
    loaded = load(entry_of(tiny_folder), "cpu", seen.append)
    assert (loaded.name, loaded.context_length, loaded.quantisation) == ("tiny", 256, "none")
    assert (loaded.device, loaded.dtype) == ("cpu", "float32")
    assert loaded.end_ids == {2}
    assert not loaded.model.training
    assert logits(loaded).shape == (4, 272)
    assert {progress.phase for progress in seen} == {"loading"}
    assert seen[-1].done == seen[-1].total
    loaded = load(entry_of(tiny_folder, context_length=64, dtype="bfloat16"), "cpu")
    assert (loaded.context_length, loaded.dtype) == (64, "bfloat16")
    assert load(entry_of(tiny_folder, context_length=9999), "cpu").context_length == 256


def test_key_names_tokens_and_weights_not_place_or_precision(
    tiny_folder: Path, tmp_path: Path, entry_of
) -> None:
    key = load(entry_of(tiny_folder), "cpu").model_key
    assert load(entry_of(tiny_folder, dtype="bfloat16"), "cpu").model_key == key
    moved = tiny_folder.rename(tmp_path / "moved")
    assert load(entry_of(moved), "cpu").model_key == key
    weights = {name: tensor * 1.01 for name, tensor in load_file(moved / "model.safetensors").items()}
    save_file(weights, moved / "model.safetensors", {"format": "pt"})
    assert load(entry_of(moved), "cpu").model_key != key


@pytest.mark.parametrize("kind", ["nf4", "int8"])
def test_quantised_on_cpu(kind: str, tiny_folder: Path, entry_of) -> None:
    plain, quantised = (
        load(entry_of(tiny_folder), "cpu"),
        load(entry_of(tiny_folder, quantisation=kind), "cpu"),
    )
    assert quantised.quantisation == kind
    layer = quantised.model.model.layers[0].mlp.down_proj
    assert layer.weight.dtype == (torch.uint8 if kind == "nf4" else torch.int8)
    error = (logits(plain) - logits(quantised)).abs().mean() / logits(plain).abs().mean()
    assert 0 < error < 0.3


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", ["none", "nf4", "int8"])
def test_on_cuda(kind: str, tiny_folder: Path, entry_of) -> None:
    loaded = load(entry_of(tiny_folder, quantisation=kind))
    assert loaded.device.startswith("cuda")
    assert loaded.dtype == "bfloat16"
    with torch.inference_mode():
        assert loaded.model(torch.tensor([[1, 5]], device=loaded.device)).logits.isfinite().all()


def without(folder: Path, name: str) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights[name]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def indexed(folder: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def cut(folder: Path, keep: int) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])


def scrambled(folder: Path) -> None:
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[8:40] = b"x" * 32
    (folder / "model.safetensors").write_bytes(data)


BROKEN: list[tuple[Callable[[Path], object], type[ModelError], str]] = [
    (lambda folder: shutil.rmtree(folder), MissingError, "no folder"),
    (lambda folder: (folder / "config.json").unlink(), MissingError, r"no config\.json"),
    (
        lambda folder: (folder / "config.json").write_text("{"),
        BrokenFileError,
        r"config\.json cannot be read",
    ),
    *(
        (partial(cut, keep=keep), BrokenFileError, r"model\.safetensors is broken")
        for keep in (0, 4, 500, -1)
    ),
    (scrambled, BrokenFileError, r"model\.safetensors is broken"),
    (
        partial(without, name="model.layers.1.mlp.down_proj.weight"),
        BrokenFileError,
        r"lacks 1 of the model's weights, such as model\.layers\.1\.mlp",
    ),
    (partial(change_config, intermediate_size=160), BrokenFileError, "do not match"),
    (
        lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"),
        MissingError,
        "pickle files",
    ),
    (indexed, MissingError, r"no model-2\.safetensors"),
    (lambda folder: [file.unlink() for file in folder.glob("tokenizer*")], ModelError, "tiny"),
    (
        partial(change_config, model_type="wordpainter"),
        UnsupportedError,
        "not know the architecture 'wordpainter'",
    ),
    (
        partial(change_config, architectures=["LlamaForSequenceClassification"]),
        UnsupportedError,
        "no causal language model",
    ),
    (
        partial(change_config, model_type="t5", architectures=["T5ForConditionalGeneration"]),
        UnsupportedError,
        "no causal language model",
    ),
    (
        partial(change_config, model_type="wordpainter", auto_map={"AutoConfig": "evil.Config"}),
        UnsupportedError,
        "does not know",
    ),
]


@pytest.mark.parametrize(("damage", "error", "said"), BROKEN)
def test_what_is_broken_is_said(
    damage: Callable[[Path], object], error: type[ModelError], said: str, tiny_folder: Path, entry_of
) -> None:
    (tiny_folder / "evil.py").write_text("raise SystemExit('code of a model was run')")
    damage(tiny_folder)
    with pytest.raises(error, match=said):
        load(entry_of(tiny_folder), "cpu")
