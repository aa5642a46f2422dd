"""What a file does not say of chats: a template, and the tokens that end a turn."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import gguf
import pytest

from hierchat.config import GenerationSettings
from hierchat.models.catalogue import Folder, Gguf, ModelEntry, ModelSource
from hierchat.models.fetch import bring
from hierchat.models.formats.gguf_config import end_tokens, whole_config
from hierchat.models.formats.gguf_head import read_head
from hierchat.models.load.load_model import LoadedModel, load, makers_sampling, ready_to_chat
from hierchat.runtime.prompt import PromptBuilder, PromptMessage
from tests.gguf_files.writer import finish
from tests.models.conftest import tiny_tokenizer
from tests.testing.architectures import CONFIGS, model_of, write_gguf


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
    assert config
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
