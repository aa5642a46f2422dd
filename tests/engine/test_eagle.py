"""EAGLE-3 heads: computed as they are defined over the states of three layers, changing no word, read as SpecForge and
speculators write them, and left out in a sentence where they do not fit."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from threading import Event
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch.nn import functional
from transformers import LlamaForCausalLM

from hierchat.config import GenerationSettings
from hierchat.drafting.drafter import Drafter
from hierchat.drafting.proposer import JointDrafter
from hierchat.engine.cuda.cuda_runner import REGIMES, CudaRunner
from hierchat.engine.engine import GenerationRequest
from hierchat.engine.runner import Runner, Segment
from hierchat.engine.torch.eagle_head import EagleHead
from hierchat.engine.torch.torch_runner import TorchRunner
from hierchat.models.catalogue import Catalogue, Gguf, Hub, ModelEntry, ModelSource
from hierchat.models.fetch.bring import folder_of, gguf_file
from hierchat.models.formats.eagle_files import says_head
from hierchat.models.progress import ModelError, silent
from hierchat.runtime.downloads import bring_whole
from hierchat.runtime.drafters import Drafting, Memory, chosen_drafter, reply_drafter
from hierchat.runtime.loading import LoadOptions, load_served_model
from tests.engine.drafters import assert_changes_no_word
from tests.gguf_files.writer import add_value
from tests.testing.architectures import finish
from tests.testing.fake_hub import REPO
from tests.testing.tiny import random_tokens, tiny_engine, tokens_of
from tests.testing.tiny_files import of_folder, of_gguf, serving_hub, tiny_config, tiny_tokenizer

Tensor = torch.Tensor
Floats = NDArray[np.float32]
LAYERS, HIDDEN, VOCABULARY, OUTPUTS, CONTEXT = 7, 64, 272, 90, 256
TAPS = (2, 3, 4)
"""The states that are read by default: behind 2, n // 2 and n - 3 of the layers."""
KNOWN = np.sort(np.random.default_rng(3).permutation(VOCABULARY)[:OUTPUTS])


def target() -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = tiny_config(num_hidden_layers=LAYERS, initializer_range=0.3, max_position_embeddings=CONTEXT)
        return LlamaForCausalLM(config).eval().requires_grad_(False)


class Reference:
    """A head's tensors by speculators' names, and its definition over a whole text, written out: no cache, and all of a
    token's past in one matrix of attention."""

    def __init__(self, model: Any, *, speculators: bool) -> None:
        """speculators': the residual is normed, norms stand before `fc`, what is chained is normed, and an embedding
        of its own is smaller than the target's states."""
        self.model, self.speculators = model, speculators
        self.size = size = 48 if speculators else HIDDEN
        layer, states = "layers.0", len(TAPS) * HIDDEN
        shapes = {
            f"{layer}.self_attn.q_proj": (64, 2 * size),
            f"{layer}.self_attn.k_proj": (32, 2 * size),
            f"{layer}.self_attn.v_proj": (32, 2 * size),
            f"{layer}.self_attn.o_proj": (size, 64),
            f"{layer}.mlp.gate_proj": (80, size),
            f"{layer}.mlp.up_proj": (80, size),
            f"{layer}.mlp.down_proj": (size, 80),
            "fc": (size, states),
            "lm_head": (OUTPUTS, size),
        }
        norms = {f"{layer}.{name}": (size,) for name in ("hidden_norm", "input_layernorm")}
        norms |= {f"{layer}.post_attention_layernorm": (size,), "norm": (size,)}
        if speculators:
            shapes["embed_tokens"] = (VOCABULARY, size)
            norms["input_norm"] = (states,)
        of = torch.Generator().manual_seed(5)
        drawn = {name: torch.randn(shape, generator=of) * 0.2 for name, shape in shapes.items()}
        drawn |= {name: torch.randn(shape, generator=of) * 0.2 + 1.0 for name, shape in norms.items()}
        self.tensors = {f"{name}.weight": tensor for name, tensor in drawn.items()}

    def normed(self, name: str, x: Tensor) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * self.tensors[f"{name}.weight"]

    def times(self, name: str, x: Tensor) -> Tensor:
        return functional.linear(x, self.tensors[f"{name}.weight"])

    def before(self, states: Floats) -> Tensor:
        """What stands beside tokens, from states of the target."""
        x = torch.from_numpy(states)
        return self.times("fc", self.normed("input_norm", x) if self.speculators else x)

    def __call__(self, tokens: list[int], states: Tensor) -> tuple[Floats, Tensor]:
        """Logits, and what stands beside the tokens that follow."""
        own = self.tensors.get("embed_tokens.weight", self.model.model.embed_tokens.weight)
        normed, n = self.normed("layers.0.hidden_norm", states), len(tokens)
        embedded = self.normed("layers.0.input_layernorm", own[torch.tensor(tokens)])
        both = torch.cat([embedded, normed], -1)
        q, k, v = (
            self.times(f"layers.0.self_attn.{name}_proj", both).view(n, -1, 16).transpose(0, 1)
            for name in "qkv"
        )
        angle = torch.arange(n)[:, None] * 10_000.0 ** (-torch.arange(8) / 8)
        turns = torch.polar(torch.ones_like(angle), angle)
        q, k = (self.turned(one, turns) for one in (q, k.repeat_interleave(2, 0)))
        unseen = torch.full((n, n), -torch.inf).triu(1)
        weights = (q @ k.transpose(1, 2) / 4.0 + unseen).softmax(-1)
        attended = (weights @ v.repeat_interleave(2, 0)).transpose(0, 1).reshape(n, -1)
        x = (normed if self.speculators else states) + self.times("layers.0.self_attn.o_proj", attended)
        y = self.normed("layers.0.post_attention_layernorm", x)
        gate = functional.silu(self.times("layers.0.mlp.gate_proj", y))
        x = x + self.times("layers.0.mlp.down_proj", gate * self.times("layers.0.mlp.up_proj", y))
        out = self.normed("norm", x)
        return self.times("lm_head", out).numpy(), out if self.speculators else x

    @staticmethod
    def turned(x: Tensor, turns: Tensor) -> Tensor:
        pairs = torch.complex(x[..., :8], x[..., 8:]) * turns
        return torch.cat([pairs.real, pairs.imag], -1)


def write(layer: Reference, folder: Path, said: Mapping[str, Any] = {}, **changed: Any) -> Path:
    """As its makers write it; `changed`: tensors by the ends of their names, None for those to leave out."""
    shape = {
        "model_type": "llama",
        "hidden_size": layer.size,
        "intermediate_size": 80,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "num_hidden_layers": 1,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "max_position_embeddings": 128,
        "vocab_size": VOCABULARY,
    }
    if layer.speculators:
        config = {
            "architectures": ["Eagle3Speculator"],
            "speculators_model_type": "eagle3",
            "transformer_layer_config": shape,
            "target_hidden_size": HIDDEN,
            "eagle_aux_hidden_state_layer_ids": list(TAPS),
            **dict.fromkeys(("norm_before_fc", "norm_output"), True),
        }
    else:
        config = {**shape, "architectures": ["LlamaForCausalLMEagle3"]}
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "config.json").write_text(json.dumps({**config, "draft_vocab_size": OUTPUTS, **said}))
    marks = torch.zeros(VOCABULARY, dtype=torch.bool)
    marks[KNOWN] = True
    maps = {"d2t": torch.from_numpy(KNOWN - np.arange(OUTPUTS)), "t2d": marks}
    tensors = {**layer.tensors, **maps, **changed}
    if not layer.speculators:
        tensors = {name.replace("layers.0.", "midlayer."): tensor for name, tensor in tensors.items()}
    save_file({name: one for name, one in tensors.items() if one is not None}, folder / "model.safetensors")
    return folder


Q8 = gguf.GGMLQuantizationType.Q8_0
IN_GGUF = {
    "fc": "fc", "input_norm": "enc.output_norm", "norm": "output_norm", "lm_head": "output",
    "embed_tokens": "token_embd", "layers.0.hidden_norm": "blk.0.attn_norm_2",
}  # fmt: skip
"""As llama.cpp's converter calls them (conversion/llama.py, gguf-py/gguf/constants.py); others as Llama's."""
SAID: dict[str, Any] = {
    "block_count": 1, "context_length": 128, "feed_forward_length": 80, "attention.head_count": 4,
    "attention.head_count_kv": 2, "attention.key_length": 16, "attention.value_length": 16,
    "attention.layer_norm_rms_epsilon": 1e-5, "rope.dimension_count": 16, "rope.freq_base": 10_000.0,
    "vocab_size": VOCABULARY, "target_hidden_size": HIDDEN, "target_layers": list(TAPS),
}  # fmt: skip


def fits_blocks(floats: Floats) -> bool:
    return floats.ndim == 2 and floats.shape[1] % 32 == 0


def write_file(layer: Reference, path: Path, *, packed: bool = False, **changed: Any) -> Path:
    """As llama.cpp's converter writes it; `changed`: values and tensors, None for those to leave out."""
    options = dict.fromkeys(("norm_before_fc", "norm_before_residual"), layer.speculators)
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 1)
    found = {**SAID, "embedding_length": layer.size, **options, "d2t": KNOWN}
    for name, tensor in layer.tensors.items():
        stem, floats = name.removesuffix(".weight"), tensor.numpy()
        if stem.endswith(("q_proj", "k_proj")):  # rotary positions pair neighbours
            floats = floats.reshape(-1, 2, 8, floats.shape[-1]).swapaxes(1, 2).reshape(floats.shape)
        found[f"{IN_GGUF.get(stem) or table.get_name(f'model.{stem}')}.weight"] = floats
    writer = gguf.GGUFWriter(path, "eagle3")
    for name, value in {**found, **changed}.items():
        if not isinstance(value, np.ndarray):
            add_value(writer, f"eagle3.{name}", value)
        elif packed and fits_blocks(value):
            writer.add_tensor(name, gguf.quants.quantize(value, Q8), raw_dtype=Q8)
        else:
            writer.add_tensor(name, np.ascontiguousarray(value))
    finish(writer)
    return path


def head_of(path: Path, runner: Runner) -> EagleHead:
    said = says_head(path)
    assert said
    return EagleHead("eagle", path, said, runner)


def run(
    head: EagleHead, sequence: Any, tokens: list[int], states: Floats, parents: Any
) -> tuple[Floats, Floats]:
    """Logits and own states."""
    inputs = head.joined(tokens, states)
    rows = head.runner.forward([Segment(sequence, tokens, parents, embeddings=inputs)])[0]
    own = rows.hidden(range(len(rows)))
    assert own is not None
    return np.array(rows), own


def states_of(tokens: int) -> Floats:
    return np.random.default_rng(1).normal(size=(tokens, len(TAPS) * HIDDEN)).astype(np.float32)


def assert_near(found: Floats, expected: Floats, most: float = 1e-3) -> None:
    assert np.abs(found - expected).max() < most * expected.std()


@pytest.mark.parametrize("speculators", [False, True])
def test_it_computes_what_is_defined(speculators: bool, tmp_path: Path) -> None:
    """Over a text, then two places ahead by its own states; and again behind what was taken back."""
    model = target()
    layer = Reference(model, speculators=speculators)
    head = head_of(write(layer, tmp_path), TorchRunner(model, packed=False, quantum=1))
    assert head.known is not None
    assert head.known.tolist() == KNOWN.tolist()
    text = random_tokens(12, vocabulary=VOCABULARY)
    seen = states_of(12)
    sequence = head.open()
    for kept in (0, 7):
        sequence.rollback(kept)
        logits, own = run(head, sequence, text[kept:], seen[kept:], range(-1, len(text) - kept - 1))
        tokens, states = list(text), layer.before(seen)
        expected, after = layer(tokens, states)
        assert_near(logits, expected[kept:])
        sequence.commit(range(len(text) - kept))
        for token in (3, 90):
            tokens, states = [*tokens, token], torch.cat([states, after[-1:]])
            logits, own = run(head, sequence, [token], own[-1:], [-1])
            expected, after = layer(tokens, states)
            assert_near(logits[-1], expected[-1])
            sequence.commit([0])
        logits, _ = run(head, sequence, [7, 8], np.concatenate([own[-1:], own[-1:]]), [-1, -1])
        for token, row in zip((7, 8), logits, strict=True):  # as if the other were not there
            expected, _ = layer([*tokens, token], torch.cat([states, after[-1:]]))
            assert_near(row, expected[-1])


@pytest.mark.parametrize(("speculators", "packed"), [*product([False, True], repeat=2)])
def test_a_gguf_file_is_the_same_head(speculators: bool, packed: bool, tmp_path: Path) -> None:
    """Bit for bit: in blocks of eight bits, that of the numbers which they hold."""
    model = target()
    layer = Reference(model, speculators=speculators)
    for name, tensor in layer.tensors.items() if packed else ():
        if fits_blocks(tensor.numpy()):
            blocks = gguf.quants.quantize(tensor.numpy(), Q8)
            layer.tensors[name] = torch.from_numpy(gguf.quants.dequantize(blocks, Q8))
    folder = write(layer, tmp_path / "eagle", {"norm_output": False})
    text, rows = random_tokens(12, vocabulary=VOCABULARY), []
    for place in (folder, write_file(layer, tmp_path / "eagle.gguf", packed=packed)):
        head = head_of(place, TorchRunner(model, packed=False, quantum=1))
        assert head._config.layers == TAPS
        assert np.array_equal(head.known, KNOWN)
        rows.append(np.concatenate(run(head, head.open(), text, states_of(12), range(-1, 11)), axis=1))
    assert np.array_equal(*rows)


def test_rotary_factors_of_a_gguf_file_are_llamas(tmp_path: Path) -> None:
    """llama.cpp writes what frequencies are divided by, and not how that came about."""
    layer = Reference(target(), speculators=False)
    runner = TorchRunner(layer.model, packed=False, quantum=1)
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling["original_max_position_embeddings"] = 64
    folder = head_of(write(layer, tmp_path / "eagle", {"rope_scaling": scaling}), runner)
    turned = folder._layer.model.rotary_emb.inv_freq.numpy()
    factors = (10_000.0 ** (-np.arange(8) / 8) / turned).astype(np.float32)
    assert factors.max() > 7
    file = head_of(write_file(layer, tmp_path / "a.gguf", **{"rope_freqs.weight": factors}), runner)
    text = random_tokens(90, vocabulary=VOCABULARY)
    expected, found = (run(one, one.open(), text, states_of(90), range(-1, 89))[0] for one in (folder, file))
    assert_near(found, expected)


RUNNERS: dict[str, Callable[[Any], Runner]] = {
    "torch": partial(TorchRunner, packed=False, quantum=1),
    "cuda": partial(CudaRunner, regime=REGIMES[0]),
}


@pytest.mark.parametrize("kind", RUNNERS)
def test_it_reads_the_states_of_three_layers(kind: str, tmp_path: Path) -> None:
    """Those that transformers has behind 2, n // 2 and n - 3 layers, of a prompt and of a segment."""
    model = target()
    text = random_tokens(9, vocabulary=VOCABULARY)
    known = model(torch.tensor([text]), output_hidden_states=True).hidden_states
    expected = torch.cat([known[at][0] for at in TAPS], dim=-1).numpy()
    runner = RUNNERS[kind](model)
    sequence = runner.open()
    head_of(write(Reference(model, speculators=False), tmp_path), runner)
    read = sequence.read(text[:5], hidden=True)
    assert read is not None
    assert_near(read, expected[:5])
    behind = sequence.forward(text[5:], range(-1, 3)).hidden(range(4))
    assert behind is not None
    assert_near(behind, expected[5:])


@pytest.mark.parametrize("said", [{"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 5, 6]}}, {}])
def test_layers_are_counted_as_its_makers_do(said: dict[str, Any], tmp_path: Path) -> None:
    model = target()
    layer = Reference(model, speculators=False)
    above = {} if said else {"eagle_aux_hidden_state_layer_ids": [1, 6, 7]}
    assert head_of(write(layer, tmp_path, said | above), TorchRunner(model, quantum=1))._config.layers == (
        1,
        6,
        7,
    )


@pytest.mark.parametrize(("kind", "speculators"), [("torch", True), ("cuda", False)])
def test_a_head_that_knows_nothing_changes_no_word(kind: str, speculators: bool, tmp_path: Path) -> None:
    runner = RUNNERS[kind](model := target())
    head = head_of(write(Reference(model, speculators=speculators), tmp_path), runner)
    assert_changes_no_word(runner, head)


BEYOND = KNOWN - np.arange(OUTPUTS)
WRONG: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "for 272 tokens and states of 32, not for 272 and 64": ({"target_hidden_size": 32}, {}),
    "for 300 tokens and states of 64, not for 272 and 64": ({"vocab_size": 300}, {}),
    "behind layers 2, 5, 9, the model has 7": ({"eagle_aux_hidden_state_layer_ids": [2, 5, 9]}, {}),
    "layers.1.norm.weight, which is not computed": ({}, {"layers.1.norm.weight": torch.ones(HIDDEN)}),
    "its configuration makes no sense": ({"vocab_size": "many"}, {}),
    "configuration makes no sense": ({"num_attention_heads": "many"}, {}),
    "lacks fc.weight": ({}, {"fc.weight": None}),
    "lacks layers.0.self_attn.q_proj.weight": ({}, {"layers.0.self_attn.q_proj.weight": None}),
    "lacks lm_head.weight": ({}, {"lm_head.weight": None}),
    "lacks d2t": ({}, {"d2t": None}),
    "d2t, t2d": ({}, {"d2t": torch.from_numpy(BEYOND + VOCABULARY)}),
    "does not list tokens": ({}, {"d2t": torch.from_numpy(BEYOND[::-1].copy())}),
    "does not list tokens in order": ({}, {"t2d": torch.zeros(VOCABULARY, dtype=torch.bool)}),
    "lm_head.weight has the shape": (
        {"draft_vocab_size": OUTPUTS},
        {"lm_head.weight": torch.ones(5, HIDDEN)},
    ),
    "fc.weight holds what is no number": ({}, {"fc.weight": torch.full((HIDDEN, 3 * HIDDEN), torch.nan)}),
    "computes no numbers": ({}, {"lm_head.weight": torch.full((OUTPUTS, HIDDEN), 3e38)}),
    "q_norm.weight, which is not computed": ({}, {"layers.0.self_attn.q_norm.weight": torch.ones(16)}),
}


@pytest.mark.parametrize("why", WRONG)
def test_what_does_not_fit_is_refused_in_a_sentence(why: str, tmp_path: Path) -> None:
    model = target()
    said, changed = WRONG[why]
    folder = write(Reference(model, speculators=False), tmp_path, said, **changed)
    with pytest.raises(ModelError, match=why):
        head_of(folder, TorchRunner(model, packed=False, quantum=1))


ONES = np.ones((HIDDEN, 3 * HIDDEN), np.float32)
WRONG_FILES: dict[str, dict[str, Any]] = {
    "for 272 tokens and states of 32, not for 272 and 64": {"target_hidden_size": 32},
    "behind layers 2, 5, 9, the model has 7": {"target_layers": [2, 5, 9]},
    "its configuration makes no sense": {"attention.head_count": None},
    "configuration makes no sense": {"attention.head_count": 0},
    "fc.weight has the shape": {"fc.weight": ONES[:0]},
    "lacks fc.weight": {"fc.weight": None},
    "lacks d2t": {"d2t": None},
    "d2t, t2d": {"d2t": KNOWN + VOCABULARY},
    "does not list tokens": {"d2t": -KNOWN},
    "does not list tokens in order": {"d2t": KNOWN - np.arange(OUTPUTS)},
    "layers.0.self_attn.q_proj.weight has the shape": {"blk.0.attn_q.weight": ONES[:30]},
    "its tensors are in I32": {"fc.weight": ONES.astype(np.int32)},
    "fc.weight holds what is no number": {"fc.weight": ONES * np.float32(np.nan)},
    "blk.0.hidden_norm.weight, which is not computed": {"blk.0.hidden_norm.weight": ONES},
}


@pytest.mark.parametrize("why", WRONG_FILES)
def test_a_file_that_does_not_fit_is_refused_in_a_sentence(why: str, tmp_path: Path) -> None:
    layer = Reference(target(), speculators=False)
    file = write_file(layer, tmp_path / "eagle.gguf", **WRONG_FILES[why])
    with pytest.raises(ModelError, match=why):
        head_of(file, TorchRunner(layer.model, packed=False, quantum=1))


def test_our_kernels_refuse_it(tmp_path: Path) -> None:
    folder = write(Reference(target(), speculators=False), tmp_path)
    with pytest.raises(ModelError, match="only where transformers compute"):
        head_of(folder, tiny_engine("llama-blocks").runner)


def catalogue_of(model: Any, head: Path, folder: Path) -> tuple[ModelEntry, Catalogue]:
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    entry = of_folder(folder, drafts=("eagle",), default=True)
    beside = (of_gguf if head.is_file() else of_folder)(head, name="eagle", draft_only=True)
    return entry, Catalogue(models={"tiny": entry, "eagle": beside}, default="tiny")


@pytest.mark.parametrize("form", ["folder", "file"])
def test_it_is_fetched_from_the_hub_for_drafting_alone(form: str, tmp_path: Path, places: Path) -> None:
    layer = Reference(target(), speculators=True)
    head = (write if form == "folder" else write_file)(layer, tmp_path / "eagle.gguf")
    files = [head] if head.is_file() else [*head.iterdir()]
    source = ModelSource(hub=Hub(repo=REPO))
    if form == "file":
        source = ModelSource(gguf=Gguf(repo=REPO, file=head.name))
    with (
        serving_hub({file.name: file.read_bytes() for file in files}) as hub,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("HF_ENDPOINT", hub.url)
        with pytest.raises(ModelError):
            bring_whole(ModelEntry(name="eagle", source=source), silent, None)
        assert not hub.asked or not any("model.safetensors" in path for _, path, _ in hub.asked)
        bring_whole(ModelEntry(name="eagle", source=source, draft_only=True), silent, None)
    place = folder_of(source) or gguf_file(source)
    assert place
    head_of(place, TorchRunner(layer.model, packed=False, quantum=1))


@pytest.mark.parametrize("form", ["folder", "file"])
def test_the_catalogue_names_it_and_it_drafts_or_says_why_not(form: str, tmp_path: Path) -> None:
    model = target()
    make, why = {"folder": (write, "header"), "file": (write_file, "no whole GGUF file")}[form]
    head = make(Reference(model, speculators=True), tmp_path / "eagle")
    entry, catalogue = catalogue_of(model, head, tmp_path / "tiny")
    served = load_served_model(entry, LoadOptions(device="cpu", catalogue=catalogue))
    assert served.levels
    assert served.levels.head
    assert not served.levels.left_out
    weights = head if head.is_file() else head / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    lacking = load_served_model(entry, LoadOptions(device="cpu", catalogue=catalogue))
    assert lacking.levels
    assert not lacking.levels.head
    ((name, reason),) = [(one.name, one.reason) for one in lacking.levels.left_out]
    assert name == "eagle"
    assert why in reason
    settings, stop, replies = GenerationSettings(max_new_tokens=8), Event(), []
    assert isinstance(chosen_drafter(served, Memory(), settings, stop, Drafting(draft_models=False)), Drafter)
    prompt = random_tokens(30, vocabulary=VOCABULARY)
    for one in (served, lacking):
        drafter = reply_drafter(one, Memory(), settings, stop)
        assert isinstance(drafter, JointDrafter if one is served else Drafter)
        replies.append(tokens_of(one.local.generate(GenerationRequest(prompt, settings, drafter))))
    assert replies[0] == replies[1]
