"""Models in the blocks of their GGUF file on a device, with torch's processor in a card's place and plain products."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hierchat.config import GenerationSettings
from hierchat.engine.cpu.runner import CpuRunner
from hierchat.engine.cuda.cuda_runner import CudaRunner, Graphs
from hierchat.engine.cuda.packed import FORMATS
from hierchat.engine.cuda.packed_modules import in_packed_blocks, is_packed
from hierchat.engine.local import LocalEngine
from hierchat.models import device_memory, runnable
from hierchat.models.catalogue import ModelEntry
from hierchat.models.fetch.bring import bring
from hierchat.models.formats.gguf_head import read_head
from hierchat.models.load.check import memory_needed, on_card
from hierchat.models.load.load_model import LoadedModel, load, load_on_card
from hierchat.models.progress import DoesNotFitError
from tests.engine.drafters import Buried
from tests.engine.test_cuda_runner import pretended
from tests.testing.architectures import CONFIGS, model_of, write_gguf
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


@pytest.mark.parametrize("name", ["qwen2, biases", "qwen3 moe"])
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
    needed = memory_needed(entry, "cuda", weights=4_900_000_000)
    assert needed is not None
    assert needed < 6_500_000_000
    needs = device_memory.needs_on_card(4_900_000_000, 65536)
    with pytest.raises(
        DoesNotFitError, match=r"on cuda \(32768 positions\).*`context_length: 18176` would fit.*=cpu"
    ):
        device_memory.require_fit("it", needs, 32768, device="cuda")


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
