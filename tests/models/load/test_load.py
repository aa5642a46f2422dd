import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from hierchat.models.catalogue import read_catalogue
from hierchat.models.load.load_model import load
from hierchat.models.load.load_torch import load_torch
from hierchat.models.progress import BrokenFileError, MissingError, Progress, UnsupportedError

QUESTION = "Which way does the earth orbit the sun?"
PROMPT = [
    1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407, 19712, 8182,
    2, 198, 1, 4093, 198, 14413, 970, 1072, 260, 3103, 8591, 260, 2388, 47, 2, 198, 1, 520, 9531, 198,
]  # fmt: skip
REPLY = [
    504, 2591, 21837, 260, 5430, 281, 253, 3468, 7842, 1130, 260, 5430, 30, 669, 314, 253, 4959, 1909, 281,
    24840,
]  # fmt: skip


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


def test_entry_bounds_context_and_dtype(tiny_folder: Path, entry_of) -> None:
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


def test_missing_folder_and_config(tiny_folder: Path, tmp_path: Path, entry_of) -> None:
    with pytest.raises(MissingError, match="no folder"):
        load(entry_of(tmp_path / "nowhere"), "cpu")
    (tiny_folder / "config.json").unlink()
    with pytest.raises(MissingError, match=r"no config\.json"):
        load(entry_of(tiny_folder), "cpu")


def test_broken_config(tiny_folder: Path, entry_of) -> None:
    (tiny_folder / "config.json").write_text("{")
    with pytest.raises(BrokenFileError, match=r"config\.json cannot be read"):
        load(entry_of(tiny_folder), "cpu")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model_type": "wordpainter"}, "does not know the architecture 'wordpainter'"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "no causal language model"),
        ({"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]}, "no causal language model"),
        ({"model_type": "wordpainter", "auto_map": {"AutoConfig": "evil.Config"}}, "does not know"),
    ],
)
def test_unsupported(changed: dict, said: str, tiny_folder: Path, entry_of) -> None:
    change_config(tiny_folder, **changed)
    (tiny_folder / "evil.py").write_text("raise SystemExit('code of a model was run')")
    with pytest.raises(UnsupportedError, match=said):
        load(entry_of(tiny_folder), "cpu")


@pytest.mark.parametrize("keep", [0, 4, 500, -1])
def test_truncated_weights(keep: int, tiny_folder: Path, entry_of) -> None:
    file = tiny_folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(BrokenFileError, match=r"model\.safetensors is broken"):
        load(entry_of(tiny_folder), "cpu")


def test_scrambled_header(tiny_folder: Path, entry_of) -> None:
    file = tiny_folder / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[8:40] = b"x" * 32
    file.write_bytes(data)
    with pytest.raises(BrokenFileError, match=r"model\.safetensors is broken"):
        load(entry_of(tiny_folder), "cpu")


def test_missing_weights_are_not_made_up(tiny_folder: Path, entry_of) -> None:
    weights = load_file(tiny_folder / "model.safetensors")
    del weights["model.layers.1.mlp.down_proj.weight"]
    save_file(weights, tiny_folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(
        BrokenFileError, match=r"lacks 1 of the model's weights, such as model\.layers\.1\.mlp"
    ):
        load(entry_of(tiny_folder), "cpu")


def test_weights_of_another_shape(tiny_folder: Path, entry_of) -> None:
    change_config(tiny_folder, intermediate_size=160)
    with pytest.raises(BrokenFileError, match="do not match"):
        load(entry_of(tiny_folder), "cpu")


def test_only_pickles(tiny_folder: Path, entry_of) -> None:
    (tiny_folder / "model.safetensors").rename(tiny_folder / "pytorch_model.bin")
    with pytest.raises(MissingError, match="pickle files"):
        load(entry_of(tiny_folder), "cpu")


def test_missing_shard(tiny_folder: Path, entry_of) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    (tiny_folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(MissingError, match=r"no model-2\.safetensors"):
        load(entry_of(tiny_folder), "cpu")


def test_without_tokenizer(tiny_folder: Path, entry_of) -> None:
    for file in tiny_folder.glob("tokenizer*"):
        file.unlink()
    with pytest.raises((BrokenFileError, UnsupportedError), match="tiny"):
        load(entry_of(tiny_folder), "cpu")


@pytest.mark.large
def test_default_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fetched, converted, loaded: the prompt and first tokens of a reply that this model is known to give."""
    monkeypatch.undo()  # the user's own cache: one download is enough
    loaded = load_torch(read_catalogue().entry(), "cpu", backend="float32")
    chat = [{"role": "user", "content": QUESTION}]
    prompt = loaded.tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt")[
        "input_ids"
    ]
    assert prompt[0].tolist() == PROMPT
    with torch.inference_mode():
        reply = loaded.model.generate(prompt, max_new_tokens=len(REPLY), do_sample=False)
    assert reply[0, len(PROMPT) :].tolist() == REPLY
