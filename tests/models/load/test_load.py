"""A folder of safetensors, loaded through transformers."""

from __future__ import annotations

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
from hierchat.models.catalogue import Folder, Gguf, ModelEntry, ModelSource
from hierchat.models.fetch import bring
from hierchat.models.formats.gguf_config import end_tokens, whole_config
from hierchat.models.formats.gguf_head import read_head
from hierchat.models.load.load_model import LoadedModel, load, makers_sampling, ready_to_chat
from hierchat.models.progress import BrokenFileError, MissingError, ModelError, Progress, UnsupportedError
from hierchat.runtime.prompt import PromptBuilder, PromptMessage
from tests.testing.architectures import CONFIGS, finish, model_of, write_gguf
from tests.testing.tiny_files import tiny_tokenizer


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


# What a file does not say of chats: a template, and the tokens that end a turn.


@pytest.fixture
def base(tmp_path: Path) -> ModelEntry:
    """A file without a template, whose end is that of texts."""
    tokenizer = tiny_tokenizer(extra=("ab", "<end_of_turn>"))
    tokenizer.add_special_tokens({"additional_special_tokens": ["<end_of_turn>"]})
    tokenizer.eos_token = "<|endoftext|>"
    path = write_gguf(model_of(CONFIGS["llama"], vocab_size=272), tmp_path / "base.gguf", tokenizer)
    return ModelEntry(name="base", source=ModelSource(gguf=Gguf(path=path)))


def test_a_file_without_a_template_gets_the_conversation_as_text(base: ModelEntry) -> None:
    loaded = load(base, "cpu")
    assert "base brings no chat template" in loaded.note
    names = set(loaded.tokenizer.convert_ids_to_tokens(sorted(loaded.end_ids)))
    assert names == {"<|endoftext|>", "<|im_end|>", "<end_of_turn>"}
    said = [
        PromptMessage("user", "Hi <end_of_turn>"),
        PromptMessage("assistant", "Yes"),
        PromptMessage("user", "So?"),
    ]
    prompt = PromptBuilder(loaded.tokenizer, 256).build(said, 16).ids
    text = loaded.tokenizer.decode(prompt)
    assert text.endswith("user: Hi <end_of_turn>\n\nassistant: Yes\n\nuser: So?\n\nassistant:")
    assert not loaded.end_ids & set(prompt)  # what looks like a control token is text


@pytest.mark.parametrize("key", ["eot", "eom"])
def test_the_end_of_a_turn_that_a_file_names_ends_a_reply(tmp_path: Path, key: str) -> None:
    path = write_gguf(
        model_of(CONFIGS["llama"], vocab_size=272), tmp_path / "base.gguf", tiny_tokenizer(extra=("ab",))
    )
    head = read_head(path)
    named = replace(head, values=head.values | {f"tokenizer.ggml.{key}_token_id": 7})
    eos = head.values["tokenizer.ggml.eos_token_id"]
    assert end_tokens(head) == eos
    assert end_tokens(named) == [eos, 7]
    config = whole_config(named)
    assert config["eos_token_id"] == [eos, 7]


@pytest.mark.parametrize(("marks", "ends"), [(("<|end|>",), True), (("<|end|>", "<|channel|>"), False)])
def test_the_end_of_a_message_ends_no_turn_of_several(marks: tuple[str, ...], ends: bool) -> None:
    tokenizer = tiny_tokenizer(extra=marks)
    tokenizer.add_special_tokens({"additional_special_tokens": list(marks)})
    loaded = LoadedModel(
        "tiny", None, tokenizer, "cpu", "float32", "none", "blocks", 256, "key", end_ids=frozenset()
    )
    assert (tokenizer.convert_tokens_to_ids("<|end|>") in ready_to_chat(loaded).end_ids) == ends


def test_the_makers_sampling_is_read_where_the_catalogue_sets_none(tmp_path: Path) -> None:
    said = {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.1}
    file = tmp_path / "generation_config.json"
    file.write_text(json.dumps(said | {"eos_token_id": 1}))
    source = ModelSource(folder=Folder(path=tmp_path))
    found = makers_sampling(ModelEntry(name="own", source=source))
    assert found == GenerationSettings(temperature=0.7, top_k=20, top_p=0.8, repetition_penalty=1.1)
    own = GenerationSettings(temperature=0.2)
    assert makers_sampling(ModelEntry(name="own", source=source, sampling=own)) == own
    for broken in ("{", json.dumps({"do_sample": True, "top_p": 7})):
        file.write_text(broken)
        os.utime(file, ns=(1, len(broken)))
        assert makers_sampling(ModelEntry(name="own", source=source)) == GenerationSettings()
    file.unlink()
    assert makers_sampling(ModelEntry(name="own", source=source)) == GenerationSettings()


def _on_hub(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let the hub's cache be this folder, for every repository."""
    monkeypatch.setattr(bring, "hub_folder", lambda *asked: folder)


@pytest.mark.parametrize("place", ["here", "hub"])
def test_the_makers_sampling_stands_in_gguf_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    path = tmp_path / "own.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for name, value in (("temp", 0.7), ("top_p", 0.8), ("penalty_repeat", 1.1)):
        writer.add_float32(f"general.sampling.{name}", value)
    writer.add_int32("general.sampling.top_k", 20)
    finish(writer)
    _on_hub(monkeypatch, tmp_path)
    stored = Gguf(path=path) if place == "here" else Gguf(repo="org/own", file=path.name)
    found = makers_sampling(ModelEntry(name="own", source=ModelSource(gguf=stored)))
    assert found == GenerationSettings(temperature=0.7, top_k=20, top_p=0.8, repetition_penalty=1.1)
