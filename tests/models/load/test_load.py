"""A folder of safetensors, loaded through transformers."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file

from hierchat.config import GenerationSettings
from hierchat.models.catalogue import Gguf, ModelEntry, ModelSource
from hierchat.models.fetch import bring
from hierchat.models.formats.gguf_config import end_tokens, whole_config
from hierchat.models.formats.gguf_head import read_head
from hierchat.models.load.load_model import LoadedModel, load, makers_sampling, ready_to_chat
from hierchat.models.progress import BrokenFileError, MissingError, ModelError, Progress, UnsupportedError
from hierchat.runtime.prompt import PromptBuilder, PromptMessage
from tests.testing.architectures import CONFIGS, finish, model_of, write_gguf
from tests.testing.tiny_files import change_config, of_folder, of_gguf, tiny_tokenizer


def logits(loaded) -> torch.Tensor:
    with torch.inference_mode():
        return loaded.model(torch.tensor([[1, 5, 9, 30]])).logits[0].float()


def test_local_folder(tiny_folder: Path) -> None:
    seen: list[Progress] = []
    loaded = load(of_folder(tiny_folder), "cpu", seen.append)
    assert (loaded.name, loaded.context_length, loaded.quantisation) == ("tiny", 256, "none")
    assert (loaded.device, loaded.model.dtype, loaded.end_ids) == ("cpu", torch.float32, {2})
    assert not loaded.model.training
    assert {progress.phase for progress in seen} == {"loading"}
    assert seen[-1].done == seen[-1].total
    loaded = load(of_folder(tiny_folder, context_length=64, dtype="bfloat16"), "cpu")
    assert (loaded.context_length, loaded.model.dtype) == (64, torch.bfloat16)
    assert load(of_folder(tiny_folder, context_length=9999), "cpu").context_length == 256


def test_key_names_tokens_and_weights_not_place_or_precision(tiny_folder: Path, tmp_path: Path) -> None:
    key = load(of_folder(tiny_folder), "cpu").model_key
    assert load(of_folder(tiny_folder, dtype="bfloat16"), "cpu").model_key == key
    moved = tiny_folder.rename(tmp_path / "moved")
    assert load(of_folder(moved), "cpu").model_key == key
    weights = {name: tensor * 1.01 for name, tensor in load_file(moved / "model.safetensors").items()}
    save_file(weights, moved / "model.safetensors", {"format": "pt"})
    assert load(of_folder(moved), "cpu").model_key != key


def test_quantised_on_cpu(tiny_folder: Path) -> None:
    plain, quantised = (load(of_folder(tiny_folder, quantisation=how), "cpu") for how in ("none", "nf4"))
    assert quantised.quantisation == "nf4"
    layer = quantised.model.model.layers[0].mlp.down_proj
    assert layer.weight.dtype == torch.uint8
    error = (logits(plain) - logits(quantised)).abs().mean() / logits(plain).abs().mean()
    assert 0 < error < 0.3


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", ["none", "nf4"])
def test_on_cuda(kind: str, tiny_folder: Path) -> None:
    loaded = load(of_folder(tiny_folder, quantisation=kind))
    assert loaded.device.startswith("cuda")
    assert loaded.model.dtype == torch.bfloat16
    with torch.inference_mode():
        assert loaded.model(torch.tensor([[1, 5]], device=loaded.device)).logits.isfinite().all()


def without(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.down_proj.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def indexed(folder: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def cut(folder: Path, keep: int) -> None:
    os.truncate(folder / "model.safetensors", keep)


BROKEN: list[tuple[Callable[[Path], object], type[ModelError], str]] = [
    (shutil.rmtree, MissingError, "no folder"),
    (lambda folder: (folder / "config.json").unlink(), MissingError, r"no config\.json"),
    (partial(cut, keep=0), BrokenFileError, r"model\.safetensors is broken"),
    (partial(cut, keep=100_000), BrokenFileError, r"model\.safetensors is broken"),
    (without, BrokenFileError, r"lacks 1 of the model's weights, such as model\.layers\.1\.mlp"),
    (partial(change_config, intermediate_size=160), BrokenFileError, "do not match"),
    (
        lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"),
        MissingError,
        "pickle",
    ),
    (indexed, MissingError, r"no model-2\.safetensors"),
    (lambda folder: [file.unlink() for file in folder.glob("tokenizer*")], ModelError, "tiny"),
    (
        partial(change_config, architectures=["LlamaForSequenceClassification"]),
        UnsupportedError,
        "no causal language model",
    ),
    (
        partial(change_config, model_type="wordpainter", auto_map={"AutoConfig": "evil.Config"}),
        UnsupportedError,
        "not know the architecture 'wordpainter'",
    ),
]


@pytest.mark.parametrize(("damage", "error", "said"), BROKEN)
def test_what_is_broken_is_said(
    damage: Callable[[Path], object], error: type[ModelError], said: str, tiny_folder: Path
) -> None:
    (tiny_folder / "evil.py").write_text("raise SystemExit('code of a model was run')")
    damage(tiny_folder)
    with pytest.raises(error, match=said):
        load(of_folder(tiny_folder), "cpu")


# What a file does not say of chats: a template, and the tokens that end a turn.


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A file without a template, whose end is that of texts."""
    tokenizer = tiny_tokenizer(extra=("ab", "<end_of_turn>"))
    tokenizer.add_special_tokens({"additional_special_tokens": ["<end_of_turn>"]})
    tokenizer.eos_token = "<|endoftext|>"
    return write_gguf(model_of(CONFIGS["llama"], vocab_size=272), tmp_path / "base.gguf", tokenizer)


def test_a_file_without_a_template_gets_the_conversation_as_text(base: Path) -> None:
    loaded = load(of_gguf(base, name="base"), "cpu")
    assert "base brings no chat template" in loaded.note
    names = set(loaded.tokenizer.convert_ids_to_tokens(sorted(loaded.end_ids)))
    assert names == {"<|endoftext|>", "<|im_end|>", "<end_of_turn>"}
    turns = (("user", "Hi <end_of_turn>"), ("assistant", "Yes"), ("user", "So?"))
    said = [PromptMessage(role, text) for role, text in turns]  # type: ignore[arg-type]
    prompt = PromptBuilder(loaded.tokenizer, 256).build(said, 16).ids
    text = loaded.tokenizer.decode(prompt)
    assert text.endswith("user: Hi <end_of_turn>\n\nassistant: Yes\n\nuser: So?\n\nassistant:")
    assert not loaded.end_ids & set(prompt)  # what looks like a control token is text


@pytest.mark.parametrize("key", ["eot", "eom"])
def test_the_end_of_a_turn_that_a_file_names_ends_a_reply(base: Path, key: str) -> None:
    head = read_head(base)
    named = replace(head, values=head.values | {f"tokenizer.ggml.{key}_token_id": 7})
    eos = head.values["tokenizer.ggml.eos_token_id"]
    assert end_tokens(head) == eos
    assert end_tokens(named) == whole_config(named)["eos_token_id"] == [eos, 7]


@pytest.mark.parametrize(("marks", "ends"), [(("<|end|>",), True), (("<|end|>", "<|channel|>"), False)])
def test_the_end_of_a_message_ends_no_turn_of_several(marks: tuple[str, ...], ends: bool) -> None:
    tokenizer = tiny_tokenizer(extra=marks)
    tokenizer.add_special_tokens({"additional_special_tokens": list(marks)})
    loaded = LoadedModel("tiny", None, tokenizer, "cpu", "none", "blocks", 256, "key", end_ids=frozenset())
    assert (tokenizer.convert_tokens_to_ids("<|end|>") in ready_to_chat(loaded).end_ids) == ends


def test_the_makers_sampling_is_read_where_the_catalogue_sets_none(tmp_path: Path) -> None:
    said = {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.1}
    file, own = tmp_path / "generation_config.json", GenerationSettings(temperature=0.2)
    file.write_text(json.dumps(said | {"eos_token_id": 1}))
    assert makers_sampling(of_folder(tmp_path)) == MAKERS
    assert makers_sampling(of_folder(tmp_path, sampling=own)) == own
    for broken in ("{", json.dumps({"do_sample": True, "top_p": 7})):
        file.write_text(broken)
        os.utime(file, ns=(1, len(broken)))
        assert makers_sampling(of_folder(tmp_path)) == GenerationSettings()
    file.unlink()
    assert makers_sampling(of_folder(tmp_path)) == GenerationSettings()


MAKERS = GenerationSettings(temperature=0.7, top_k=20, top_p=0.8, repetition_penalty=1.1)


def test_the_makers_sampling_stands_in_gguf_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it lies in the hub's cache."""
    path = tmp_path / "own.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for name, value in (("temp", 0.7), ("top_p", 0.8), ("penalty_repeat", 1.1)):
        writer.add_float32(f"general.sampling.{name}", value)
    writer.add_int32("general.sampling.top_k", 20)
    finish(writer)
    monkeypatch.setattr(bring, "hub_folder", lambda *asked: tmp_path)
    for stored in (Gguf(path=path), Gguf(repo="org/own", file=path.name)):
        assert makers_sampling(ModelEntry(name="own", source=ModelSource(gguf=stored))) == MAKERS
