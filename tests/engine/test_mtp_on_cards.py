"""Layers for multi-token prediction beside modules of transformers, with torch's processor in a card's place: computed
as they are defined, drafting what the processor's engine drafts, and left out with a sentence if they are broken."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from hierchat.config import GenerationSettings
from hierchat.drafting.draft_cost import DraftCost, FreeRows
from hierchat.drafting.draft_tree import DraftTree
from hierchat.drafting.proposer import drafted
from hierchat.engine import backends
from hierchat.engine.cuda.cuda_runner import REGIMES, CudaRunner
from hierchat.engine.cuda.graphs import Graphs
from hierchat.engine.cuda.packed_modules import PackedExperts, PackedMatrix, in_packed_blocks
from hierchat.engine.draft_head import SOURCE, DraftHead, HeadDrafter
from hierchat.engine.engine import GenerationRequest
from hierchat.engine.fallback import Selected
from hierchat.engine.local import LocalEngine
from hierchat.models.catalogue import ModelEntry
from hierchat.models.fetch.convert import causal_config, slot_of
from hierchat.models.load import load_model
from hierchat.models.load.load_model import FileModule, LoadedModel, load_on_card, load_torch, ready_to_chat
from hierchat.runtime.loading import LoadOptions, load_served_model
from hierchat.runtime.served_model import ServedModel
from tests.engine.drafters import assert_changes_no_word
from tests.engine.test_cuda_runner import pretended
from tests.engine.test_mtp import (
    BROKEN,
    KINDS,
    TOKENIZER,
    assert_as_defined,
    head_of,
    target_and_layer,
    write_file,
    write_folder,
)
from tests.gguf_files.writer import write_family
from tests.testing.tiny import random_tokens, text_of, tokens_of
from tests.testing.tiny_files import of_folder, of_gguf

CONTEXT = 256
LINES = [
    *((name, "blocks", "float32") for name in KINDS),
    ("qwen35", "safetensors", "float32"),
    ("qwen35, heads alike", "safetensors", "bfloat16"),
]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Callable[[ModelEntry], ServedModel]:
    """What load_served_model makes of an entry on a card."""

    def loaded_for_it(entry: ModelEntry, *options: Any) -> LoadedModel:
        if entry.source.gguf:
            return ready_to_chat(load_on_card(entry, "cpu"))
        return ready_to_chat(load_torch(entry, "cpu"))

    def graphs(loaded: LoadedModel, *options: Any) -> Selected:
        model = loaded.model
        module = in_packed_blocks(model) if isinstance(model, FileModule) else model
        return Selected(CudaRunner(module, context_length=CONTEXT, regime=REGIMES[0], sequences=4), "graphs")

    monkeypatch.setattr(load_model, "load", loaded_for_it)
    monkeypatch.setattr(backends, "select_implementation", graphs)
    return lambda entry: load_served_model(entry, LoadOptions(device="cpu", places=4))


def written(
    form: str, name: str, target: Any, layer: Any, folder: Path, dtype: Any = "float32"
) -> ModelEntry:
    if form == "safetensors":
        return write_folder(target, layer, folder / "model").model_copy(update={"dtype": dtype})
    entry = write_file(name, target, layer, folder / "tiny.gguf", packed=form == "blocks")
    return entry.model_copy(update={"dtype": dtype})


def head_in(served: ServedModel) -> DraftHead:
    assert served.mtp, served.note
    return served.mtp


@pytest.mark.parametrize(("name", "form", "dtype"), LINES)
def test_it_computes_what_the_model_defines_and_changes_no_word(
    name: str, form: str, dtype: str, tmp_path: Path, serve: Callable[[ModelEntry], ServedModel]
) -> None:
    """Also replayed, from texts between those of others, and from states of which some were forgotten."""
    target, layer = target_and_layer(name)
    served = serve(written(form, name, target, layer, tmp_path, dtype))
    head, most = head_in(served), 1e-3 if dtype == "float32" else 0.1
    runner: Any = head.runner
    assert (runner.exact, runner.most_sequences, runner.context_length) == (True, 4, CONTEXT)
    held = {type(part) for part in runner.model.modules()}
    assert (PackedMatrix in held) == (form == "blocks")
    assert (torch.nn.Linear in held) == (form == "safetensors")
    assert (PackedExperts in held) == (name in KINDS[1:])
    runner._graphs = Graphs(capture=pretended)
    assert_as_defined(head, layer, most)
    assert "MTP" not in served.note
    assert_changes_no_word(served.local.runner, head)


@pytest.mark.parametrize("name", KINDS)
def test_it_drafts_what_the_processors_engine_drafts(
    name: str, tmp_path: Path, serve: Callable[[ModelEntry], ServedModel]
) -> None:
    target, layer = target_and_layer(name)
    entry = written("floats", name, target, layer, tmp_path)
    heads = (head_of(entry, "float32")[1], head_in(serve(entry)))
    text, states = random_tokens(40), np.random.default_rng(3).normal(size=(40, 64)).astype(np.float32)
    drafters = [HeadDrafter(head, DraftCost(FreeRows(24))) for head in heads]
    for drafter in drafters:
        drafter.see(states[:20], 0)
        drafter.begin(text[:21])
    for end in (21, 24, 38):
        own, found = (drafter.propose() for drafter in drafters)
        assert len(own) > 8
        assert (found.tokens, found.parents) == (own.tokens, own.parents)
        np.testing.assert_allclose(found.probabilities, own.probabilities, rtol=0.01)
        for drafter in drafters:
            drafter.see(states[end - 1 : end + 1], end - 1)
            drafter.observe(text[end : end + 2])
            drafter.see(states[end + 1 : 38], end + 1)
            drafter.observe(text[end + 2 : 39])


def test_replies_draft_together_what_each_drafts_alone(
    tmp_path: Path, serve: Callable[[ModelEntry], ServedModel]
) -> None:
    head = head_in(serve(written("blocks", "qwen35", *target_and_layer("qwen35"), tmp_path)))
    seen, cost, trees = (9, 40, 17), DraftCost(FreeRows(24)), list[list[DraftTree]]()
    for together in (False, True):
        rng = np.random.default_rng(4)
        replies = [HeadDrafter(head, cost) for _ in seen]
        for number, (reply, count) in enumerate(zip(replies, seen, strict=True)):
            reply.see(rng.normal(size=(count, 64)).astype(np.float32), 0)
            reply.begin(random_tokens(count + 1, number))
        asked = [reply.drafting(cost) for reply in replies]
        trees.append(drafted(asked) if together else [drafted([one])[0] for one in asked])
    assert all(len(tree) > 8 for tree in trees[0])
    assert trees[0] == trees[1]


def test_a_layer_that_knows_the_next_token_is_believed(
    tmp_path: Path, serve: Callable[[ModelEntry], ServedModel]
) -> None:
    """Where every layer adds nothing, the next token depends on the last alone."""
    target, layer = target_and_layer("qwen35")
    for one in (*target.model.layers, layer.layer):
        mixer = one.self_attn.o_proj if hasattr(one, "self_attn") else one.linear_attn.out_proj
        for matrix in (mixer, one.mlp.down_proj):
            matrix.weight.zero_()
    layer.eh_proj.weight.copy_(torch.cat([torch.eye(64), torch.zeros(64, 64)], dim=1) / 4)
    layer.enorm.weight.zero_()
    layer.norm.weight.copy_(target.model.norm.weight)
    served = serve(written("blocks", "qwen35", target, layer, tmp_path))
    engine, prompt = LocalEngine(served.local.runner.open(), (), text_of), random_tokens(60)
    settings = GenerationSettings(max_new_tokens=40)
    plain = tokens_of(engine.generate(GenerationRequest(prompt, settings)))
    engine.clear()
    drafter: Any = HeadDrafter(head_in(served), DraftCost(FreeRows(8)), settings)
    steps = list(engine.generate(GenerationRequest(prompt, settings, drafter)))
    assert tokens_of(steps) == plain
    drafted = [step.sources for step in steps if step.proposed]
    assert {sources[0] for sources in drafted} == {SOURCE}
    assert sum(sources.count(SOURCE) for sources in drafted) > 20


@pytest.mark.parametrize("why", BROKEN)
def test_a_broken_one_is_left_out_with_a_sentence(
    why: str, tmp_path: Path, serve: Callable[[ModelEntry], ServedModel]
) -> None:
    served = serve(write_folder(*target_and_layer("qwen35"), tmp_path / "model", **BROKEN[why]))
    assert not served.mtp
    assert "tiny brings a layer that drafts (MTP), which cannot be used: " in served.note
    assert why.replace("lacks", "enorm.weight is missing") in served.note


def test_one_that_was_cut_off_is_missed_and_one_that_never_was_is_not(
    tmp_path: Path, serve: Callable[[ModelEntry], ServedModel]
) -> None:
    target, _ = target_and_layer("qwen35")
    cut = serve(of_gguf(write_family("qwen35", target, tmp_path / "a.gguf", TOKENIZER)))
    assert not cut.mtp
    assert "which cannot be used: a.gguf lacks the tensor " in cut.note
    target.save_pretrained(tmp_path / "folder")
    TOKENIZER.save_pretrained(tmp_path / "folder")
    without = serve(of_folder(tmp_path / "folder"))
    assert (without.mtp, without.note) == (None, "")


def test_it_is_read_from_a_folder_as_published_beside_pictures(
    tmp_path: Path, serve: Callable[[ModelEntry], ServedModel]
) -> None:
    target, layer = target_and_layer("qwen35")
    entry = write_folder(target, layer, tmp_path)
    said, weights = tmp_path / "config.json", tmp_path / "model.safetensors"
    text = json.loads(said.read_text())
    text.pop("architectures")
    whole = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "text_config": text,
    }
    said.write_text(json.dumps(whole))
    tensors = {
        re.sub(r"^model\.", "model.language_model.", name): one for name, one in load_file(weights).items()
    }
    save_file({**tensors, "model.visual.patch.weight": torch.zeros(2, 2)}, weights, {"format": "pt"})
    served = serve(entry)
    assert served.prompts.context_length == CONTEXT
    assert_as_defined(head_in(served), layer, 1e-3)


def test_its_slots_are_counted(tmp_path: Path) -> None:
    target, layer = target_and_layer("qwen35")
    write_folder(target, layer, tmp_path)
    with_layer = slot_of(causal_config(tmp_path, "tiny"))
    assert with_layer - slot_of(target.config) == 2 * 2 * 16
