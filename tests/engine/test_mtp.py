"""Layers for multi-token prediction that models bring: computed as they are defined, changing no word, read from
safetensors and GGUF files, and left out in a sentence where they are broken."""

from __future__ import annotations

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
from hierchat.drafting.draft_tree import DraftCost, FreeRows
from hierchat.drafting.drafter import Drafter
from hierchat.drafting.proposer import JointDrafter
from hierchat.engine.backends import make_runner
from hierchat.engine.draft_head import DraftHead, HeadDrafter, MtpLayerHead
from hierchat.engine.engine import GenerationRequest
from hierchat.engine.local import LocalEngine
from hierchat.engine.runner import Segment
from hierchat.engine.torch.mtp_head import MtpHead
from hierchat.models.catalogue import Backend, ModelEntry
from hierchat.models.formats.block_model import BlockModel
from hierchat.models.load.load_model import BlockModule, load
from hierchat.models.progress import BrokenFileError
from hierchat.runtime.drafters import Memory, reply_drafter
from hierchat.runtime.loading import LoadOptions, load_served_model
from tests.engine.drafters import assert_changes_no_word
from tests.gguf_files.models import FAMILIES, VOCABULARY, make_whole, tiny_module
from tests.gguf_files.writer import write_family
from tests.testing.families import tiny_family
from tests.testing.tiny import random_tokens, text_of, tokens_of
from tests.testing.tiny_files import of_folder, of_gguf, tiny_tokenizer

Floats = NDArray[np.float32]
QWEN = ("qwen35", "qwen35moe", "qwen3next")
KINDS = ("qwen35", "qwen3next", "glm4moe")
"""By the names of tests/gguf_files/models.py: dense, with experts, and DeepSeek's names; the first two are hybrids."""
TOKENIZER = tiny_tokenizer(("ab",))
AROUND = {"eh_proj": "fc", "enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden", "norm": "norm"}
MIMO = "qwen2"
"""Whose layer is MiMo's (modeling_mimo.py; vLLM's mimo.py and mimo_mtp.py have from where its states are)."""
AROUND_MIMO = dict(
    zip(AROUND, ("input_proj", "token_layernorm", "hidden_layernorm", "final_layernorm"), strict=True)
)


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
        mimo = target.config.model_type == MIMO
        joined = torch.cat(parts[::-1] if mimo else parts, dim=-1)
        places = torch.arange(len(tokens))[None]
        unseen = torch.full((len(tokens), len(tokens)), -torch.inf).triu(1)[None, None]
        x = self.eh_proj(joined)
        turns = target.model.rotary_emb(x, places)
        x = self.layer(x, attention_mask=unseen, position_embeddings=turns, position_ids=places)
        own = self.norm(x)
        return target.lm_head(own)[0].numpy(), (x if mimo else own)[0].numpy()

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


def as_published(name: str, tensors: Mapping[str, torch.Tensor], layers: int) -> dict[str, torch.Tensor]:
    found = {}
    around, outside, inside = AROUND, "mtp.", "mtp.layers.0."
    if name == MIMO:
        around, outside, inside = AROUND_MIMO, *["model.mtp_layers.0."] * 2
    for said, tensor in tensors.items():
        rest = said.removeprefix(f"model.layers.{layers}.").replace("shared_head.norm", "norm")
        part = rest.removesuffix(".weight")
        found[f"{outside}{around[part]}.weight" if part in around else f"{inside}{rest}"] = tensor
    return found


def write_folder(name: str, target: Any, layer: Reference, folder: Path, **changed: Any) -> ModelEntry:
    """As their makers publish it; `changed`: tensors by the ends of their names, None for those to leave out."""
    target.save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    layers = target.config.num_hidden_layers
    tensors = layer.tensors()
    for end, tensor in changed.items():
        (which,) = [one for one in tensors if one.endswith(f"{end}.weight")]
        tensors[which] = tensor
    tensors = {which: tensor for which, tensor in tensors.items() if tensor is not None}
    if name in (*QWEN, MIMO):
        tensors = as_published(name, tensors, layers)
    file = folder / "model.safetensors"
    whole = {**load_file(file), **{which: one.contiguous().clone() for which, one in tensors.items()}}
    save_file(whole, file, {"format": "pt"})
    said = json.loads((folder / "config.json").read_text())
    said["mtp_num_hidden_layers" if name in QWEN else "num_nextn_predict_layers"] = 1
    if name == MIMO:
        code = dict.fromkeys(("AutoConfig", "AutoModelForCausalLM"), "modeling_mimo.MiMoForCausalLM")
        said |= {"model_type": "mimo", "architectures": ["MiMoForCausalLM"], "auto_map": code}
    (folder / "config.json").write_text(json.dumps(said))
    return of_folder(folder)


def write_file(name: str, target: Any, layer: Reference, path: Path, *, packed: bool) -> ModelEntry:
    tensors = {which: tensor.numpy() for which, tensor in layer.tensors().items()}
    return of_gguf(write_family(name, target, path, TOKENIZER, packed=packed, mtp=tensors))


def head_of(entry: ModelEntry, backend: Backend | None, device: str = "cpu") -> tuple[LocalEngine, DraftHead]:
    loaded = load(entry, device, backend=backend)
    runner: Any = make_runner(loaded, sequences=4)
    layer = loaded.read_mtp()
    if isinstance(layer, BlockModel):
        head = MtpLayerHead(layer, runner.context_length, 4, None)
        return LocalEngine(runner.open(), (), text_of), head
    assert isinstance(layer, BlockModule) == (backend is None and entry.source.gguf is not None)
    return LocalEngine(runner.open(), (), text_of), MtpHead(layer, runner)


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
    "safetensors": (write_folder, "float32", 1e-3),
    "safetensors, packed": (write_folder, None, 0.02),
    "blocks": (lambda *model: write_file(*model, packed=True), None, 0.1),
    "float32 of GGUF": (lambda *model: write_file(*model, packed=False), "float32", 1e-3),
}


@pytest.mark.parametrize(
    ("name", "form"),
    [*product(KINDS, FROM), *((name, "safetensors") for name in ("qwen35moe", "deepseek_v3", MIMO))],
)
def test_it_computes_what_the_model_defines(name: str, form: str, tmp_path: Path) -> None:
    write, backend, most = FROM[form]
    target, layer = target_and_layer(name)
    _, head = head_of(write(name, target, layer, tmp_path / "tiny.gguf"), backend)
    assert_as_defined(head, layer, most)


def test_trees_stand_on_what_the_layer_says(tmp_path: Path) -> None:
    """Behind a text, and behind each draft that was looked behind, whatever was taken back before."""
    target, layer = target_and_layer("qwen35")
    _, head = head_of(write_folder("qwen35", target, layer, tmp_path), "float32")
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


def write_either(name: str, *model: Any) -> ModelEntry:
    """MiMo as a folder, others as a GGUF file."""
    return write_folder(name, *model) if name == MIMO else write_file(name, *model, packed=True)


@pytest.mark.parametrize("name", ["qwen3next", MIMO, pytest.param("glm4moe", marks=pytest.mark.large)])
def test_a_layer_that_knows_nothing_changes_no_word(name: str, tmp_path: Path) -> None:
    engine, head = head_of(write_either(name, *target_and_layer(name), tmp_path / "a.gguf"), None)
    assert_changes_no_word(engine.runner, head)


def test_mimos_layer_reads_states_before_the_last_norm(tmp_path: Path) -> None:
    target, layer = target_and_layer(MIMO)
    text = random_tokens(9)
    expected = target(torch.tensor([text]), output_hidden_states=True).hidden_states[-1][0].numpy()
    engine, _ = head_of(write_folder(MIMO, target, layer, tmp_path), "float32")
    states = engine.sequence.read(text, hidden=True)
    assert states is not None
    assert_near(target.model.norm(torch.from_numpy(states)).numpy(), expected, 1e-3)
    assert np.abs(states - expected).max() > 0.1 * expected.std()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["qwen35", "glm4moe", MIMO])
def test_on_a_gpu(name: str, tmp_path: Path) -> None:
    target, layer = target_and_layer(name)
    entry = write_folder(name, target, layer, tmp_path)
    assert_as_defined(head_of(entry, "float32", "cuda")[1], layer, 0.02)
    assert_as_defined(head_of(entry, "bfloat16", "cuda")[1], layer, 0.3)


def test_our_kernels_compute_mimo_as_qwen2(tmp_path: Path) -> None:
    folder = write_folder(MIMO, *target_and_layer(MIMO), tmp_path)
    loaded = load(folder.model_copy(update={"blocks": 8}), "cpu")
    assert (loaded.backend, loaded.model.config["model_type"]) == ("blocks", MIMO)


BROKEN = {
    "lacks enorm.weight": {"enorm": None},
    "lacks model.layers.0.self_attn.q_proj.weight": {"self_attn.q_proj": None},
    "has the shape": {"eh_proj": torch.zeros(64, 64)},
    "in float8_e4m3fn, which is not read": {"mlp.up_proj": torch.zeros(96, 64, dtype=torch.float8_e4m3fn)},
    "no number": {"hnorm": torch.full((64,), torch.nan)},
}


@pytest.mark.parametrize("why", BROKEN)
def test_a_broken_one_is_refused_in_a_sentence(why: str, tmp_path: Path) -> None:
    entry = write_folder("qwen35", *target_and_layer("qwen35"), tmp_path, **BROKEN[why])
    with pytest.raises(BrokenFileError, match=why):
        load(entry, "cpu", backend="float32").read_mtp()


def test_one_that_overflows_is_refused(tmp_path: Path) -> None:
    entry = write_folder(
        "glm4moe", *target_and_layer("glm4moe"), tmp_path, eh_proj=torch.full((64, 128), 3e38)
    )
    with pytest.raises(BrokenFileError, match="computes no numbers"):
        head_of(entry, "float32")


@pytest.mark.parametrize("name", ["qwen35", MIMO])
def test_a_model_drafts_for_itself_or_says_why_not(name: str, tmp_path: Path) -> None:
    """Also where a GGUF file or config.json says that it has a layer, and it was cut off."""
    target, layer = target_and_layer(name)
    options = LoadOptions(device="cpu")
    served = load_served_model(write_either(name, target, layer, tmp_path / "a.gguf"), options)
    assert served.mtp
    assert "MTP" not in served.note
    if name == MIMO:
        cut = write_folder(name, target, layer, tmp_path / "b", **{"mlp.up_proj": None})
    else:
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
