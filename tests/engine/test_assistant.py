"""Gemma 4's assistants: over the target's keys and values they draft what transformers' loop drafts, change no word,
and are left out in a sentence where they do not fit."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, DynamicCache, Gemma4AssistantConfig, Gemma4TextConfig

from hierchat.drafting.draft_tree import DraftCost, FreeRows
from hierchat.drafting.proposer import drafted
from hierchat.engine.draft_head import HeadDrafter
from hierchat.engine.torch.assistant_head import AssistantHead
from hierchat.engine.torch.torch_runner import TorchRunner
from hierchat.models.load.load_model import load, require_runnable
from hierchat.models.progress import ModelError
from hierchat.runtime.loading import LoadOptions, load_served_model
from tests.drafting.databases import paths_of
from tests.engine import test_eagle
from tests.engine.drafters import assert_changes_no_word
from tests.testing.families import tiny_config, tiny_family
from tests.testing.tiny import random_tokens, tiny_engine
from tests.testing.tiny_files import change_config

KINDS = ["sliding_attention", "full_attention"]
SHAPE = {"vocab_size": 272, "vocab_size_per_layer_input": 272, "global_head_dim": 32, "sliding_window": 6}
QUERIES = {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0, "num_kv_shared_layers": 4}


def target(shared: int = 2) -> Any:
    return tiny_family("gemma4_text", num_kv_shared_layers=shared, **SHAPE)


def assistant(folder: Path, *, ordered: bool = True) -> Any:
    """Written to a folder, too. All its layers look at others' keys, where transformers wants one with its own."""
    text = tiny_config("gemma4_text", **{**SHAPE, **QUERIES}, hidden_size=32)
    groups = {"use_ordered_embeddings": ordered, "num_centroids": 8, "centroid_intermediate_top_k": 3}
    config = Gemma4AssistantConfig(text_config=text, backbone_hidden_size=64, **groups)
    torch.manual_seed(0)
    with patch.object(Gemma4TextConfig, "kv_sharing_modes", ["reuse"] * 4):
        model = AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)
    if ordered:
        model.masked_embedding.token_ordering.copy_(torch.randperm(272))
    model.save_pretrained(folder)
    return model


def head_over(model: Any, folder: Path) -> AssistantHead:
    return AssistantHead("it", folder, TorchRunner(model, packed=False, quantum=1).open())


def best(model: Any, helper: Any, text: list[int], drafts: tuple[int, ...], count: int) -> set[int]:
    """Likeliest tokens behind drafts in transformers' loop: all at the last token's place, over what is before it."""
    cache, place = DynamicCache(), torch.tensor([[len(text) - 1]])
    read = model.model(torch.tensor([text[:-1]]), past_key_values=cache, return_shared_kv_states=True)
    own = {kind: (one.keys, one.values) for kind, one in zip(KINDS * 2, cache.layers, strict=False)}
    state, shared = read.last_hidden_state[:, -1:], dict(read.shared_kv_states) or own
    for token in (text[-1], *drafts):
        both = torch.cat([model.get_input_embeddings()(torch.tensor([[token]])), state], -1)
        found = helper(inputs_embeds=both, position_ids=place, shared_kv_states=shared)
        state = found.last_hidden_state
    return set(found.logits[0, 0].topk(count).indices.tolist())


@pytest.mark.parametrize(("ordered", "shared"), [(False, 2), (True, 2), (True, 0)])
def test_it_drafts_what_transformers_loop_drafts(ordered: bool, shared: int, tmp_path: Path) -> None:
    """Two replies at once, of which one is shorter than the window; and again, behind drafts that were refused."""
    helper, cost = assistant(tmp_path, ordered=ordered), DraftCost(FreeRows(128))
    model, head = target(shared), head_over(target(shared), tmp_path)
    replies = [(random_tokens(n, n, 272), HeadDrafter(head, cost), head.runner.open()) for n in (40, 5)]
    for text, drafter, sequence in replies:
        drafter.see(sequence.read(text[:-1], hidden=True), 0, sequence)
        drafter.begin(text)
    for _ in range(2):
        trees = drafted([drafter.drafting(cost) for _, drafter, _ in replies])
        for (text, drafter, sequence), tree in zip(replies, trees, strict=True):
            paths = [*paths_of(tree), ()]
            assert max(map(len, paths)) > 4
            for node in set(tree.parents):
                children = {token for token, at in zip(tree.tokens, tree.parents, strict=True) if at == node}
                assert children == best(model, helper, text, paths[node], len(children))
            drafter.see(sequence.forward([text[-1], 3, 4], [-1, 0, 1]).hidden([0]), len(text) - 1, sequence)
            sequence.commit([0])
            drafter.observe([7])
            text += [7]


@pytest.mark.parametrize(
    ("why", "said", "changed"),
    [
        ("was made for another model", {"backbone_hidden_size": 32}, {}),
        ("token_ordering.* make no sense", {"centroid_intermediate_top_k": 9}, {}),
        ("token_ordering.* make no", {}, {"masked_embedding.token_ordering": torch.arange(272) + 1}),
        ("lacks pre_projection.weight", {}, {"pre_projection.weight": None}),
        ("norm.weight holds what is no number", {}, {"model.norm.weight": torch.full((32,), torch.nan)}),
        ("computes no numbers", {}, {"pre_projection.weight": torch.full((32, 128), 3e38)}),
    ],
)
def test_what_does_not_fit_is_refused(why: str, said: Any, changed: Any, tmp_path: Path) -> None:
    assistant(tmp_path)
    change_config(tmp_path, **said)
    tensors = {**load_file(file := tmp_path / "model.safetensors"), **changed}
    save_file({name: one for name, one in tensors.items() if one is not None}, file)
    with pytest.raises(ModelError, match=why):
        head_over(target(), tmp_path)


def test_other_targets_refuse_it(tmp_path: Path) -> None:
    assistant(tmp_path)
    with pytest.raises(ModelError, match="made for another model"):
        head_over(test_eagle.target(), tmp_path)
    with pytest.raises(ModelError, match="only where transformers compute"):
        AssistantHead("it", tmp_path, tiny_engine("llama-blocks").sequence)


def test_one_that_knows_nothing_changes_no_word(tmp_path: Path) -> None:
    assistant(tmp_path / "beside")
    entry, catalogue = test_eagle.catalogue_of(target(), tmp_path / "beside", tmp_path / "tiny")
    require_runnable(catalogue.models["eagle"], "cpu")
    with pytest.raises(ModelError, match="it drafts for one other model"):
        load(catalogue.models["eagle"], "cpu")
    served = load_served_model(entry, LoadOptions(device="cpu", catalogue=catalogue))
    assert_changes_no_word(served.local.runner, served.levels.head)
