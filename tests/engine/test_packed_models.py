"""Models in the blocks of their GGUF file on a device, with torch's processor in a card's place and plain products."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hierchat.config import GenerationSettings
from hierchat.engine import backends
from hierchat.engine.backends import select_implementation
from hierchat.engine.cpu.runner import CpuRunner
from hierchat.engine.cuda.cuda_runner import CudaRunner
from hierchat.engine.cuda.graphs import Graphs
from hierchat.engine.cuda.packed import FORMATS
from hierchat.engine.cuda.packed_modules import in_packed_blocks, is_packed
from hierchat.engine.local import LocalEngine
from hierchat.models import device_memory, runnable
from hierchat.models.architectures.families import ARCHITECTURES
from hierchat.models.catalogue import ModelEntry
from hierchat.models.fetch.bring import bring
from hierchat.models.formats.gguf_families import IN_BLOCKS
from hierchat.models.formats.gguf_head import read_head
from hierchat.models.load.check import fit, on_card, require_runnable_head
from hierchat.models.load.load_model import LoadedModel, load, load_on_card
from hierchat.models.progress import BrokenFileError, DoesNotFitError, UnsupportedError
from tests.engine.drafters import Buried
from tests.engine.test_cuda_runner import pretended
from tests.gguf_files.mixed_blocks import in_mixed_blocks, snap
from tests.gguf_files.models import FAMILIES as READ
from tests.gguf_files.models import tiny_module
from tests.gguf_files.writer import cut, write_family
from tests.models.load.test_architectures import SIX_LAYERS
from tests.testing.architectures import CONFIGS, FAMILIES, model_of, round_experts, write_gguf
from tests.testing.tiny import fresh_steps, random_tokens, text_of, tokens_of
from tests.testing.tiny_files import of_gguf, tiny_tokenizer

VOCABULARY = 272
NAMES = ["llama", "llama 3, tied", "qwen2, biases", "qwen3, norms", "qwen3 moe"]


def written(name: str, folder: Path, *, packed: bool = True) -> ModelEntry:
    model = model_of(CONFIGS[name], vocab_size=VOCABULARY)
    path = folder / f"tiny.{'Q8_0' if packed else 'F32'}.gguf"
    return of_gguf(write_gguf(model, path, tiny_tokenizer(("ab",)), packed=packed), dtype="float32")


def on_this_card(entry: ModelEntry) -> LoadedModel:
    return load_on_card(entry, "cpu")


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_the_processors_engine(name: str, tmp_path: Path) -> None:
    entry = written(name, tmp_path)
    own = load(entry, "cpu", backend="float32")
    loaded = on_this_card(entry)
    assert (loaded.model_key, loaded.end_ids) == (own.model_key, own.end_ids)
    text = random_tokens(50, vocabulary=VOCABULARY)
    reference = CpuRunner(own.model, context_length=256).open()
    module = in_packed_blocks(loaded.model)
    assert is_packed(module)
    with torch.inference_mode():
        found = module(torch.tensor([text])).logits[0].numpy()
    expected = np.asarray(reference.forward(text, range(-1, len(text) - 1)))
    assert np.abs(found - expected).max() < 2e-3 * np.abs(expected).max()


WIDE = {"hidden_size": 256, "intermediate_size": 256}
"""Rows of whole blocks of 256."""
DENSE = {
    **{name: CONFIGS[name] for name in (*NAMES[1:], "qwen3, yarn")},
    **FAMILIES,
    "gpt-oss": CONFIGS["gpt-oss"],
    "gemma3": SIX_LAYERS,
}
OTHERS = (
    "qwen35", "qwen35, heads alike", "granitehybrid", "lfm2", "nemotron_h", "granitemoe", "granitemoe, shared", "olmoe",
    "granitehybrid, experts", "lfm2moe", "qwen35moe", "qwen3next", "nemotron_h_moe", "qwen2moe", "glm4moe", "cohere2",
)  # fmt: skip
GRANITE = {"mamba_n_heads": 32, "shared_intermediate_size": 256}
FITTING = {
    "phi3, long": {"num_attention_heads": 16},
    "granitehybrid": GRANITE,
    "granitehybrid, experts": GRANITE,
    **{name: {"attention_multiplier": 0.02} for name in ("granitemoe", "granitemoe, shared")},
}
"""Other sizes that follow from these; and smaller scores, or a last bit of one decides."""


@pytest.fixture
def mixed(tmp_path: Path) -> Callable[[str], tuple[ModelEntry, Any]]:
    """A file of several block types, and the module that it was made of."""

    def made(name: str) -> tuple[ModelEntry, Any]:
        whole, sizes = tmp_path / "whole.gguf", WIDE | FITTING.get(name, {})
        if name in OTHERS:
            module = snap(tiny_module(name, **sizes))
            write_family(name, module, whole, tiny_tokenizer(("ab",)))
        else:
            module = snap(model_of(DENSE[name], vocab_size=VOCABULARY, **sizes))
            module = round_experts(module) if name == "gpt-oss" else module
            write_gguf(module, whole, tiny_tokenizer(("ab",)))
        return of_gguf(in_mixed_blocks(whole, tmp_path / "tiny.gguf"), dtype="float32"), module

    return made


@pytest.mark.parametrize("name", [*DENSE, *OTHERS])
def test_every_family_computes_from_mixed_blocks_what_its_module_does(
    name: str, mixed: Callable[[str], tuple[ModelEntry, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runnable, "find_spec", lambda name: name)
    entry, original = mixed(name)
    head = read_head(entry.source.gguf.path)
    assert {"Q4_K", "Q6_K", "Q8_0", "F32"} <= {tensor.type for tensor in head.tensors}
    assert runnable.stays_in_blocks(head, "cuda")
    # LongRoPE: more than the module was trained with
    text = random_tokens(80 if name == "phi3, long" else 40, vocabulary=VOCABULARY)
    module = in_packed_blocks(on_this_card(entry).model)
    plain = [part for part in module.modules() if isinstance(part, torch.nn.Linear | torch.nn.Embedding)]
    assert is_packed(module)
    assert not plain
    with torch.inference_mode():
        found, right = (one(torch.tensor([text])).logits[0].numpy() for one in (module, original))
    assert np.abs(found - right).max() < 1e-3 * np.abs(right).max()
    if runnable.gguf_unsupported(head):
        return
    own = CpuRunner(load(entry, "cpu", backend="float32").model, context_length=256).open()
    expected = np.asarray(own.forward(text, range(-1, len(text) - 1)))
    assert np.abs(found - expected).max() < 2e-3 * np.abs(expected).max()


def test_every_family_in_blocks_is_tried() -> None:
    architectures = [ARCHITECTURES[config.model_type] for config in DENSE.values()]
    tried = {one.gguf or one.model_type for one in architectures} - {"olmo3"}  # a file of it says olmo2
    assert tried | {READ[name][0] for name in OTHERS} == IN_BLOCKS.keys()


@pytest.mark.parametrize("name", ["gemma2", "gemma4, experts"])
def test_drafts_change_no_word_over_slots_without_graphs(
    name: str, mixed: Callable[[str], tuple[ModelEntry, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "slotted", lambda config, device: runnable.slotted(config, "cuda"))
    selected = select_implementation(on_this_card(mixed(name)[0]), only="slots")
    target = selected.runner.open()
    assert (selected.implementation, target.runner.exact, target.runner.backend) == ("slots", True, "blocks")
    engine, prompt = LocalEngine(target, (), text_of), random_tokens(40, vocabulary=VOCABULARY)
    wanted = GenerationSettings(temperature=0.8, max_new_tokens=16)
    vanilla = tokens_of(fresh_steps(engine, prompt, wanted))
    assert tokens_of(fresh_steps(engine, prompt, wanted, Buried(vanilla))) == vanilla


@pytest.mark.parametrize("name", ["qwen2, biases", "qwen3 moe", "gpt-oss"])
def test_drafts_change_no_word_and_the_files_blocks_are_what_is_held(name: str, tmp_path: Path) -> None:
    loaded = on_this_card(written(name, tmp_path))
    module = in_packed_blocks(loaded.model)
    sizes = {part.matrix.name for part in module.modules() if is_packed(part) and hasattr(part, "matrix")}
    assert sizes <= {"Q8_0", "PLAIN"}
    target = CudaRunner(module, context_length=600, graphs=Graphs(capture=pretended)).open()
    assert (target.runner.exact, target.runner.backend) == (True, "blocks")
    engine, prompt = LocalEngine(target, (), text_of), random_tokens(140, vocabulary=VOCABULARY)
    for temperature in (0.0, 0.8):
        wanted = GenerationSettings(temperature=temperature, max_new_tokens=24)
        vanilla = tokens_of(fresh_steps(engine, prompt, wanted))
        assert tokens_of(fresh_steps(engine, prompt, wanted, Buried(vanilla))) == vanilla


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> None:
    """A card of 8 GB, of which all is free."""
    monkeypatch.setattr(device_memory, "free_memory", lambda device: 8_000_000_000)
    monkeypatch.setattr(device_memory, "total_memory", lambda device: 8_000_000_000)


@pytest.mark.usefixtures("card")
def test_a_card_needs_the_files_size_and_one_that_is_too_small_says_what_fits(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    entry = written("llama", tmp_path)
    assert on_card(entry, "cuda", None)
    assert not on_card(entry, "cuda", "bfloat16")
    assert not on_card(entry, "cpu", None)
    size = {"parameters": 8_000_000_000, "embeddings": 500_000_000, "slot": 65536}
    entry = entry.model_copy(update={"size": ModelEntry(name="x", source=entry.source, size=size).size})
    needed = fit(entry, "cuda", free=0, weights=4_900_000_000).needed
    assert needed is not None
    assert needed < 6_500_000_000
    needs = device_memory.needs_on_card(4_900_000_000, 65536)
    with pytest.raises(
        DoesNotFitError, match=r"on cuda \(32768 positions\).*`context_length: 18176` would fit.*=cpu"
    ):
        device_memory.require_fit("it", needs, 32768, device="cuda")


def test_a_file_that_transformers_does_not_read_runs_on_a_card(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    entry = written("granite", tmp_path)
    head = read_head(entry.source.gguf.path)
    require_runnable_head(entry, head, "cuda")
    for device, backend in (("cpu", "bfloat16"), ("cuda", "bfloat16")):
        with pytest.raises(UnsupportedError, match="only the CPU engine reads such a file"):
            require_runnable_head(entry, head, device, backend)


def test_a_model_in_several_files_runs_on_a_card(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    entry = written("llama", tmp_path)
    pieces = cut(entry.source.gguf.path, tmp_path / "pieces", 5)
    assert len(pieces) > 2
    in_pieces = of_gguf(pieces[0], dtype="float32")
    require_runnable_head(in_pieces, read_head(pieces[0]), "cuda")
    text = torch.tensor([random_tokens(20, vocabulary=VOCABULARY)])
    with torch.inference_mode():
        one, other = (in_packed_blocks(on_this_card(each).model)(text).logits for each in (entry, in_pieces))
    assert torch.equal(one, other)


@pytest.mark.parametrize("kind", ["qwen3_5", "granite", "olmo3"])
def test_a_kind_alone_tells_what_stays_in_blocks(kind: str) -> None:
    pytest.importorskip("triton")
    assert runnable.kind_stays_in_blocks(kind, "cuda", experts=False)
    assert not runnable.kind_stays_in_blocks(kind, "cuda", experts=True)
    assert not runnable.kind_stays_in_blocks(kind, "cpu", experts=False)
    assert not runnable.kind_stays_in_blocks("falcon", "cuda", experts=False)


def test_files_with_experts_stay_in_blocks_too_and_odd_rows_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    for kind in ("gpt_oss", "gemma4", "nemotron_h", "glm4_moe", "qwen2_moe"):
        assert runnable.kind_stays_in_blocks(kind, "cuda", experts=True)
    odd = tiny_module("cohere2", hidden_size=48)
    path = write_family("cohere2", odd, tmp_path / "tiny.gguf", tiny_tokenizer(("ab",)))
    with pytest.raises(BrokenFileError, match=r"rows of model\.embed_tokens\.weight are no whole blocks"):
        on_this_card(of_gguf(path))


def test_what_is_brought_for_a_card_has_no_weights(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    folder = bring(written("llama", tmp_path), device="cuda")
    assert not list(folder.glob("*.safetensors"))
    assert (folder / "config.json").is_file()
    assert (folder / "tokenizer.json").is_file()


def test_types_with_kernels_are_those_that_count_as_such(tmp_path: Path) -> None:
    assert FORMATS.keys() - {"PLAIN"} == runnable.CARD_TYPES
    entry: Any = written("llama", tmp_path)
    head = read_head(entry.source.gguf.path)
    assert runnable.card_bytes(head) > sum(one.size for one in head.tensors if one.type == "Q8_0")
