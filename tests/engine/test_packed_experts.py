"""Experts in the blocks of their file, with torch's processor in a card's place, against transformers' modules."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import quants
from torch import nn
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

from hierchat.engine.cuda.cuda_runner import CudaRunner
from hierchat.engine.cuda.graphs import Graphs
from hierchat.engine.cuda.kernels import PLAIN
from hierchat.engine.cuda.packed import Packed, pack
from hierchat.engine.cuda.packed_experts import PackedExperts
from hierchat.engine.cuda.packed_modules import PackedWeight, activation_of, in_packed_blocks
from hierchat.engine.runner import Segment
from hierchat.models import runnable
from hierchat.models.catalogue import ModelEntry
from hierchat.models.fetch.bring import bring
from hierchat.models.formats.gguf_families import SCORE_BIASES
from hierchat.models.formats.gguf_head import read_head
from hierchat.models.load.check import expected_step, on_card
from hierchat.models.progress import DeviceError
from tests.engine.test_cuda_runner import pretended
from tests.engine.test_packed import dequantized, random_blocks
from tests.engine.test_packed_models import VOCABULARY, on_this_card, written
from tests.gguf_files.models import tiny_module
from tests.gguf_files.writer import write_family
from tests.testing.architectures import CONFIGS, Q8_0, model_of, round_experts, write_gguf
from tests.testing.tiny import bits, random_tokens
from tests.testing.tiny_files import of_gguf, tiny_tokenizer


def test_the_module_computes_what_transformers_computes() -> None:
    config = CONFIGS["qwen3 moe"]
    torch.manual_seed(0)
    block = Qwen3MoeSparseMoeBlock(config).eval().requires_grad_(False)
    experts, hidden = config.num_experts, config.hidden_size
    raw = [
        random_blocks("Q8_0", inputs, experts * outputs)
        for outputs, inputs in ((64, hidden), (64, hidden), (hidden, 64))
    ]
    gate, up, down = (
        torch.from_numpy(dequantized("Q8_0", one)).reshape(experts, -1, one.shape[1] // 34 * 32)
        for one in raw
    )
    block.experts.gate_up_proj = nn.Parameter(torch.cat([gate, up], 1), requires_grad=False)
    block.experts.down_proj = nn.Parameter(down, requires_grad=False)
    router = torch.randn(experts, hidden)
    block.gate.weight = nn.Parameter(router, requires_grad=False)
    x = torch.randn(1, 20, hidden)
    expected = block(x)
    packed = [pack("Q8_0", one, "cpu", torch.float32) for one in raw]
    block.experts = PackedExperts(packed, experts, activation_of(block.experts))
    block.gate.weight = PackedWeight(pack("F32", router.numpy().view(np.uint8), "cpu", torch.float32))
    found = block.to("cpu")(x)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))
    for rows in (slice(0, 1), slice(7, 9), slice(3, 20)):
        assert torch.equal(block(x[:, rows]), found[:, rows])


def test_a_file_in_blocks_has_the_logits_of_the_file_unpacked(tmp_path: Path) -> None:
    module = in_packed_blocks(on_this_card(written("qwen3 moe", tmp_path)).model)
    unpacked = model_of(CONFIGS["qwen3 moe"], vocab_size=VOCABULARY)
    for tensor in unpacked.state_dict().values():
        if tensor.ndim > 1:
            rounded = quants.dequantize(quants.quantize(tensor.numpy(), Q8_0), Q8_0)
            tensor.copy_(torch.from_numpy(rounded))
    text = torch.tensor([random_tokens(50, vocabulary=VOCABULARY)])
    with torch.inference_mode():
        expected, found = (model(text).logits[0] for model in (unpacked, module))
    assert (found - expected).abs().max() < 1e-4 * expected.abs().max()
    assert {part.matrices[0].name for part in module.modules() if isinstance(part, PackedExperts)} == {"Q8_0"}


MIXED = [
    "granitemoe",
    "granitemoe, shared",
    "olmoe",
    "qwen35moe",
    "qwen3next",
    "granitehybrid, experts",
    "lfm2moe",
    "nemotron_h_moe",
    "nemotron_h_moe, latent",
    "qwen2moe",
    "glm4moe",
]


@pytest.mark.parametrize("name", MIXED)
def test_files_of_other_families_have_the_logits_of_transformers_module(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runnable, "find_spec", lambda name: name)
    model = tiny_module(name)
    path = write_family(name, model, tmp_path / "tiny.gguf", tiny_tokenizer(("ab",)), packed=False)
    assert runnable.stays_in_blocks(read_head(path), "cuda")
    module = in_packed_blocks(on_this_card(of_gguf(path, dtype="float32")).model)
    text = torch.tensor([random_tokens(50, vocabulary=VOCABULARY)])
    with torch.inference_mode():
        expected, found = (one(text).logits[0] for one in (model, module))
    assert (found - expected).abs().max() < 1e-3 * expected.abs().max()
    assert CudaRunner(module, context_length=600, graphs=Graphs(capture=pretended)).exact


@pytest.mark.parametrize("name", ["glm4moe", "lfm2moe", "nemotron_h_moe"])
def test_biases_of_routers_are_not_rounded_in_16_bits(name: str, tmp_path: Path) -> None:
    model = tiny_module(name)
    biases = {said: one for said, one in model.state_dict().items() if said.endswith(tuple(SCORE_BIASES))}
    for one in biases.values():
        one += 1e-4
    path = write_family(name, model, tmp_path / "tiny.gguf", tiny_tokenizer(("ab",)), packed=True)
    module = in_packed_blocks(on_this_card(of_gguf(path, dtype="bfloat16")).model)
    found, text = module.state_dict(), torch.tensor([random_tokens(20, vocabulary=VOCABULARY)])
    assert biases
    assert all(torch.equal(found[said], one) for said, one in biases.items())
    with torch.inference_mode():
        assert module(text).logits.isfinite().all()


def clamped(folder: Path) -> tuple[ModelEntry, Any]:
    """gpt-oss with experts in MXFP4, and biases so large that their sums are clamped on both sides."""
    model = round_experts(model_of(CONFIGS["gpt-oss"], vocab_size=VOCABULARY, intermediate_size=128))
    for layer in model.model.layers:
        layer.mlp.experts.gate_up_proj_bias.mul_(20)
    path = write_gguf(model, folder / "tiny.gguf", tiny_tokenizer(("ab",)))
    return of_gguf(path, dtype="float32"), model


def test_gpt_oss_has_the_logits_of_transformers_module(tmp_path: Path) -> None:
    entry, model = clamped(tmp_path)
    module = in_packed_blocks(on_this_card(entry).model)
    experts = [part for part in module.modules() if isinstance(part, PackedExperts)]
    assert [one.name for part in experts for one in part.matrices] == ["MXFP4"] * 6
    text = torch.tensor([random_tokens(50, vocabulary=VOCABULARY)])
    with torch.inference_mode():
        expected, found = (one(text).logits[0] for one in (model, module))
    assert (found - expected).abs().max() < 1e-4 * expected.abs().max()


@pytest.mark.parametrize("kind", ["MXFP4", "Q8_0"])
def test_a_device_that_multiplies_wrongly_is_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By any of the file's types, also one that only experts have."""
    right = PLAIN["multiply"]

    def wrong(x: torch.Tensor, matrix: Packed, *more: Any, **named: Any) -> torch.Tensor:
        return right(x, matrix, *more, **named) * (1.1 if matrix.name == kind else 1)

    monkeypatch.setitem(PLAIN, "multiply", wrong)
    name = "gpt-oss" if kind == "MXFP4" else "glm4moe"
    with pytest.raises(DeviceError, match=f"wrong products of {kind} blocks"):
        on_card_of(name, tmp_path)


def on_card_of(name: str, folder: Path) -> Any:
    """The module in blocks of a kind with experts."""
    if name == "gpt-oss":
        return in_packed_blocks(on_this_card(clamped(folder)[0]).model)
    path = write_family(name, tiny_module(name), folder / "tiny.gguf", tiny_tokenizer(("ab",)), packed=True)
    return in_packed_blocks(on_this_card(of_gguf(path, dtype="float32")).model)


@pytest.mark.parametrize("name", ["gpt-oss", "nemotron_h_moe, latent", "qwen2moe", "glm4moe"])
def test_trees_of_two_texts_in_one_forward_have_the_bits_of_one_token_after_another(
    name: str, tmp_path: Path
) -> None:
    module = on_card_of(name, tmp_path)
    runner = CudaRunner(module, context_length=200, sequences=2, graphs=Graphs(capture=pretended))
    assert runner.exact
    prompts = [random_tokens(length, seed=length, vocabulary=VOCABULARY) for length in (70, 23)]
    trees = [[-1, 0, 1, 0, 3, 1, 5], [-1, -1, 0, 2, 1]]
    nodes = [random_tokens(len(tree), seed=7, vocabulary=VOCABULARY) for tree in trees]
    texts = [runner.open() for _ in prompts]
    for text, prompt in zip(texts, prompts, strict=True):
        text.read(prompt)
    found = runner.forward([Segment(*one) for one in zip(texts, nodes, trees, strict=True)])
    together = [
        np.array([rows[node] for node in range(len(tree))]) for rows, tree in zip(found, trees, strict=True)
    ]
    for text in texts:
        text.close()
    for prompt, tokens, tree, logits in zip(prompts, nodes, trees, together, strict=True):
        for node in range(len(tree)):
            path = [node]
            while tree[path[0]] >= 0:
                path.insert(0, tree[path[0]])
            text = runner.open()
            text.read(prompt)
            for at in path[:-1]:
                text.forward([tokens[at]], [-1])
                text.commit([0])
            assert np.array_equal(bits(text, [tokens[node]], [-1])[0], logits[node]), node
            text.close()


def test_a_card_keeps_the_blocks_also_of_a_model_that_is_not_fetched_yet(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    entry = written("qwen3 moe", tmp_path)
    assert on_card(entry, "cuda", None)
    assert not list(bring(entry, device="cuda").glob("*.safetensors"))
    source = {"gguf": {"repo": "someone/Qwen3-30B-A3B-GGUF", "file": "qwen3-30b-a3b-q4_k_m.gguf"}}
    assert on_card(ModelEntry(name="x", source=source, kind="qwen3_moe"), "cuda", None)
    hybrid = ModelEntry(name="x", source=source, kind="qwen3_next")
    assert [expected_step(hybrid, "cuda", backend) for backend in (None, "bfloat16")] == ["slots", "plain"]
