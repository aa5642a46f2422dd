"""Layers for multi-token prediction that models bring: computed as they are defined, changing no word, read from
safetensors and GGUF files, and left out with a sentence if they are broken."""

import json
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import nn
from transformers.core_model_loading import revert_weight_conversion

from hierchat.config import GenerationSettings
from hierchat.drafting.draft_cost import DraftCost, FreeRows
from hierchat.drafting.drafter import Drafter
from hierchat.drafting.proposer import JointDrafter
from hierchat.engine.backends import select_implementation
from hierchat.engine.draft_head import DraftHead, HeadDrafter, MtpLayerHead
from hierchat.engine.engine import GenerationRequest
from hierchat.engine.local import LocalEngine
from hierchat.engine.runner import Segment
from hierchat.models.catalogue import Backend, ModelEntry
from hierchat.models.load.load_model import load
from hierchat.runtime.drafters import Memory, reply_drafter
from hierchat.runtime.loading import LoadOptions, load_served_model
from tests.gguf_files.models import FAMILIES, VOCABULARY, make_whole, tiny_module
from tests.gguf_files.writer import write_family
from tests.testing.families import tiny_family
from tests.testing.tiny import random_tokens, text_of, tokens_of
from tests.testing.tiny_files import of_folder, of_gguf, tiny_tokenizer

Floats = NDArray[np.float32]
KINDS = ("qwen35", "qwen35moe", "qwen3next")
"""By the names of tests/gguf_files/models.py."""
TOKENIZER = tiny_tokenizer(("ab",))
AROUND = {"eh_proj": "fc", "enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden", "norm": "norm"}


class Reference(nn.Module):
    """The definition, written out over a whole text: no cache, and all of a token's past in one matrix of attention."""

    def __init__(self, target: Any) -> None:
        super().__init__()
        self.target = [target]
        config, norm = target.config, type(target.model.norm)
        self.last = config.num_hidden_layers - 1
        self.layer = type(target.model.layers[-1])(config, self.last)
        self.norm, self.enorm, self.hnorm = (norm(config.hidden_size) for _ in range(3))
        self.eh_proj = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.eval().requires_grad_(False)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            for tensor in self.state_dict().values():
                tensor.normal_(0.0, 0.2)
            make_whole(self.state_dict())

    def forward(self, tokens: list[int], before: Floats) -> tuple[Floats, Floats]:
        """Logits and the layer's own states of tokens [n] that stand behind states [n, hidden]."""
        (target,) = self.target
        embedded = target.model.embed_tokens(torch.tensor([tokens]))
        parts = [self.enorm(embedded), self.hnorm(torch.from_numpy(before)[None])]
        joined = torch.cat(parts, dim=-1)
        places = torch.arange(len(tokens))[None]
        unseen = torch.full((len(tokens), len(tokens)), -torch.inf).triu(1)[None, None]
        x = self.eh_proj(joined)
        turns = target.model.rotary_emb(x, places)
        x = self.layer(x, attention_mask=unseen, position_embeddings=turns, position_ids=places)
        own = self.norm(x)
        return target.lm_head(own)[0].numpy(), own[0].numpy()

    def tensors(self) -> dict[str, torch.Tensor]:
        """By DeepSeek's names, experts one by one."""
        (target,) = self.target
        begin = f"model.layers.{self.last}"
        layer = {f"{begin}.{name}": tensor for name, tensor in self.layer.state_dict().items()}
        behind = f"model.layers.{self.last + 1}"
        found = {
            name.replace(begin, behind): tensor
            for name, tensor in revert_weight_conversion(target, layer).items()
        }
        for part in AROUND:
            name = "shared_head.norm" if part == "norm" else part
            found[f"{behind}.{name}.weight"] = getattr(self, part).weight
        return found


def target_and_layer(name: str) -> tuple[Any, Reference]:
    target = tiny_module(name) if name in FAMILIES else tiny_family(name, vocab_size=VOCABULARY)
    target.set_attn_implementation("eager")
    return target, Reference(target)


def as_published(tensors: Mapping[str, torch.Tensor], layers: int) -> dict[str, torch.Tensor]:
    found = {}
    for said, tensor in tensors.items():
        rest = said.removeprefix(f"model.layers.{layers}.").replace("shared_head.norm", "norm")
        part = rest.removesuffix(".weight")
        found[f"mtp.{AROUND[part]}.weight" if part in AROUND else f"mtp.layers.0.{rest}"] = tensor
    return found


def write_folder(target: Any, layer: Reference, folder: Path, **changed: Any) -> ModelEntry:
    """As their makers publish it; `changed`: tensors by the ends of their names, None for those to leave out."""
    target.save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    layers = target.config.num_hidden_layers
    tensors = layer.tensors()
    for end, tensor in changed.items():
        (which,) = [one for one in tensors if one.endswith(f"{end}.weight")]
        tensors[which] = tensor
    tensors = as_published({which: one for which, one in tensors.items() if one is not None}, layers)
    file = folder / "model.safetensors"
    whole = {**load_file(file), **{which: one.contiguous().clone() for which, one in tensors.items()}}
    save_file(whole, file, {"format": "pt"})
    said = json.loads((folder / "config.json").read_text())
    said["mtp_num_hidden_layers"] = 1
    (folder / "config.json").write_text(json.dumps(said))
    return of_folder(folder).model_copy(update={"blocks": 8})


def write_file(name: str, target: Any, layer: Reference, path: Path, *, packed: bool) -> ModelEntry:
    tensors = {which: tensor.numpy() for which, tensor in layer.tensors().items()}
    return of_gguf(write_family(name, target, path, TOKENIZER, packed=packed, mtp=tensors))


def head_of(entry: ModelEntry, backend: Backend | None) -> tuple[LocalEngine, DraftHead]:
    loaded = load(entry, "cpu", backend=backend)
    runner: Any = select_implementation(loaded, sequences=4).runner
    head = MtpLayerHead(loaded.model, runner.context_length, 4, None)
    return LocalEngine(runner.open(), (), text_of), head


def assert_near(found: Floats, expected: Floats, most: float) -> None:
    assert np.abs(found - expected).max() < most * expected.std()


def assert_as_defined(head: DraftHead, layer: Reference, most: float) -> None:
    """Over a text, and then two places ahead by its own states; and again behind what was taken back."""
    text = random_tokens(12)
    before = np.random.default_rng(1).normal(size=(12, 64)).astype(np.float32)
    sequence = head.open()
    for kept in (0, 7):
        sequence.rollback(kept)
        inputs = head.joined(text[kept:], before[kept:])
        chain = range(-1, len(text) - kept - 1)
        rows = head.runner.forward([Segment(sequence, text[kept:], chain, embeddings=inputs)])[0]
        tokens, states = list(text), before
        expected, own = layer(tokens, states)
        assert_near(np.array(rows), expected[kept:], most)
        sequence.commit(range(len(text) - kept))
        for token in (3, 90):
            states = np.concatenate([states, own[-1:]])
            tokens.append(token)
            inputs = head.joined([token], states[-1:])
            rows = head.runner.forward([Segment(sequence, [token], [-1], embeddings=inputs)])[0]
            expected, own = layer(tokens, states)
            assert_near(rows[0], expected[-1], most)
            hidden = rows.hidden([0])
            assert hidden is not None
            assert_near(hidden, own[-1:], most)
            sequence.commit([0])
        beside = head.joined([7, 8, 9], np.concatenate([own[-1:], own[-1:], own[-2:-1]]))
        rows = head.runner.forward([Segment(sequence, [7, 8, 9], [-1, -1, 1], embeddings=beside)])[0]
        for token, row in ((7, rows[0]), (8, rows[1])):  # as if the other were not there
            expected, _ = layer([*tokens, token], np.concatenate([states, own[-1:]]))
            assert_near(row, expected[-1], most)
        expected, _ = layer([*tokens, 8, 9], np.concatenate([states, own[-1:], own[-2:-1]]))
        assert_near(rows[2], expected[-1], most)


FROM: dict[str, tuple[Callable[..., ModelEntry], Backend | None, float]] = {
    "safetensors": (lambda name, *model: write_folder(*model), None, 0.2),  # packed to 8 bits
    "blocks": (lambda *model: write_file(*model, packed=True), None, 0.1),
    "float32": (lambda *model: write_file(*model, packed=False), "float32", 1e-3),
}


@pytest.mark.parametrize(("name", "form"), product(KINDS, FROM))
def test_it_computes_what_the_model_defines(name: str, form: str, tmp_path: Path) -> None:
    write, backend, most = FROM[form]
    target, layer = target_and_layer(name)
    _, head = head_of(write(name, target, layer, tmp_path / "tiny.gguf"), backend)
    assert_as_defined(head, layer, most)


def test_trees_stand_on_what_the_layer_says(tmp_path: Path) -> None:
    """Behind a text, and behind each draft that was looked behind, whatever was taken back before."""
    target, layer = target_and_layer("qwen35")
    _, head = head_of(write_file("qwen35", target, layer, tmp_path / "a.gguf", packed=False), "float32")
    drafter = HeadDrafter(head, DraftCost(FreeRows(24)))
    text, states = random_tokens(30), np.random.default_rng(2).normal(size=(30, 64)).astype(np.float32)
    for end in (12, 14, 30):
        seen = 0 if end == 12 else len(drafter._text) - 1
        drafter.see(states[seen : end - 1], seen)
        if end == 12:
            drafter.begin(text[:12])
        else:
            drafter.observe(text[seen + 1 : end])
        tree, behind = drafter.propose(), dict[int, tuple[list[int], Floats]]()
        assert len(tree) > 8
        for node in range(-1, len(tree)):
            tokens, before = text[1:end], states[: end - 1]
            if node >= 0:
                tokens, before = behind[tree.parents[node]]
                tokens = [*tokens, tree.tokens[node]]
            logits, own = layer(tokens, before)
            behind[node] = tokens, np.concatenate([before, own[-1:]])
            children = [token for token, at in zip(tree.tokens, tree.parents, strict=True) if at == node]
            best = np.argsort(-logits[-1], kind="stable")[: len(children)]
            assert sorted(children) == sorted(best.tolist())


BROKEN: dict[str, dict[str, Any]] = {
    "lacks": {"enorm": None},
    "self_attn.q_proj": {"self_attn.q_proj": None},
    "eh_proj": {"eh_proj": torch.zeros(64, 64)},
    "no numbers": {"eh_proj": torch.full((64, 128), 3e38)},
}


@pytest.mark.parametrize("why", BROKEN)
def test_a_broken_one_is_left_out_with_a_sentence(why: str, tmp_path: Path) -> None:
    entry = write_folder(*target_and_layer("qwen35"), tmp_path / "model", **BROKEN[why])
    served = load_served_model(entry, LoadOptions(device="cpu"))
    assert not served.mtp
    assert "tiny brings a layer that drafts (MTP), which cannot be used: " in served.note
    assert why in served.note


def test_a_model_drafts_for_itself_or_says_why_not(tmp_path: Path) -> None:
    """Also if a GGUF file says that it has a layer, and it was cut off."""
    name = "qwen35"
    target, layer = target_and_layer(name)
    options = LoadOptions(device="cpu")
    served = load_served_model(write_file(name, target, layer, tmp_path / "a.gguf", packed=True), options)
    assert served.mtp
    assert "MTP" not in served.note
    cut = of_gguf(write_family(name, target, tmp_path / "b.gguf", TOKENIZER, packed=True))
    lacking = load_served_model(cut, options)
    assert not lacking.mtp
    said = "tiny brings a layer that drafts (MTP), which cannot be used: the file lacks "
    assert said in lacking.note
    settings = GenerationSettings(max_new_tokens=8)
    prompt = random_tokens(30, vocabulary=VOCABULARY)
    replies, stop = [], Event()
    for one in (served, lacking):
        drafter = reply_drafter(one, Memory(), settings, stop)
        assert isinstance(drafter, JointDrafter if one.mtp else Drafter)
        replies.append(tokens_of(one.local.generate(GenerationRequest(prompt, settings, drafter))))
    assert replies[0] == replies[1]
