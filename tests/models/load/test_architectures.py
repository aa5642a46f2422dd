"""Every architecture, as safetensors and as a GGUF file, loaded as users load it: the logits of transformers."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from transformers import Gemma3TextConfig

from hierchat.engine.cpu.memory import CHUNK
from hierchat.engine.cpu.runner import CpuRunner
from hierchat.models.architectures.model_config import slot_size
from hierchat.models.catalogue import ModelEntry
from hierchat.models.formats.blocks import pack
from hierchat.models.load.check import expected_step
from hierchat.models.load.load_model import load, load_torch
from tests.testing.architectures import CONFIGS, FAMILIES, GEMMA3, MXFP4, model_of, round_experts, write_gguf
from tests.testing.tiny_files import of_folder, of_gguf, tiny_tokenizer

VOCABULARY = 272
TOKENS = np.random.default_rng(0).integers(0, VOCABULARY, 200).tolist()
SIX_LAYERS = Gemma3TextConfig(
    **{**GEMMA3, "num_hidden_layers": 6, "sliding_window_pattern": 6, "query_pre_attn_scalar": 16}
)
"""What a GGUF file cannot say of Gemma 3: every sixth layer is a full one, and queries are scaled by their size."""
SAME = (
    "llama", "llama 3, tied", "llama, linear", "mistral", "qwen2, biases", "qwen3, norms", "qwen3, yarn",
    "qwen3 moe", "gpt-oss",
)  # fmt: skip
FILES = {**{name: CONFIGS[name] for name in SAME}, "gemma3": SIX_LAYERS, **FAMILIES}
SAFETENSORS = {"llama", "qwen3 moe", "gpt-oss", "gemma4, experts", "phi3, long"}
"""Tried as safetensors, too: their files differ most."""
READ_BY_TRANSFORMERS = {"llama", "qwen2, biases"}
"""It leaves out rotary scaling, takes heads of Qwen3 and the scale of Gemma 3's queries for granted, and finds no names
for Mistral's tensors."""


def logits(entry: ModelEntry) -> np.ndarray:
    loaded = load(entry, "cpu", backend="blocks")
    target = CpuRunner(loaded.model, context_length=loaded.context_length).open()
    assert target.runner.exact
    kinds = target.runner.slots
    held = len(kinds[0].keys) * CHUNK * slot_size(loaded.model.config)  # of layers with keys of their own
    assert sum(2 * kind.keys.size for kind in kinds) == held
    target.read(TOKENS[:150])
    return np.asarray(target.forward(TOKENS[150:], range(-1, 49)))


def expected(model: Any) -> np.ndarray:
    with torch.inference_mode():
        return np.asarray(model(torch.tensor([TOKENS])).logits[0, 150:])


def agree(found: np.ndarray, right: np.ndarray) -> bool:
    return bool(np.abs(found - right).max() <= 2e-3 * np.abs(right).max())


def save(model: Any, folder: Path) -> ModelEntry:
    """As safetensors whose weights are packed without loss."""
    for name, parameter in model.named_parameters():
        if parameter.ndim < 2 or "bias" in name:
            continue
        turned = model.config.model_type == "gpt_oss" and parameter.ndim == 3
        given = parameter.swapaxes(1, 2) if turned else parameter
        floats = np.ascontiguousarray(given.numpy())
        rounded = pack(floats.reshape(-1, floats.shape[-1]), 8).floats().reshape(floats.shape)
        given.copy_(torch.from_numpy(rounded))
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return of_folder(folder, blocks=8)


@pytest.mark.parametrize("name", FILES)
def test_gguf_files(name: str, tmp_path: Path) -> None:
    model = model_of(FILES[name], vocab_size=VOCABULARY)
    if name == "gpt-oss":
        round_experts(model)
    entry = of_gguf(write_gguf(model, tmp_path / "tiny.gguf", tiny_tokenizer(extra=("ab",))))
    assert agree(logits(entry), expected(model))
    if name in READ_BY_TRANSFORMERS:
        assert agree(expected(load_torch(entry, "cpu", backend="float32").model), expected(model))


@pytest.mark.parametrize("name", [name for name in CONFIGS if name not in FILES or name in SAFETENSORS])
def test_safetensors(name: str, tmp_path: Path) -> None:
    model = model_of(CONFIGS[name], vocab_size=VOCABULARY)
    entry = save(model, tmp_path / "tiny")
    assert agree(logits(entry), expected(model))


def test_gpt_oss_as_it_was_published(tmp_path: Path) -> None:
    """Experts in MXFP4: numbers of neighbours in a byte, and their scales beside them."""
    model = model_of(CONFIGS["gpt-oss"], vocab_size=VOCABULARY)
    folder = tmp_path / "tiny"
    entry = save(model, folder)
    round_experts(model)
    model.save_pretrained(folder)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        rows = np.ascontiguousarray(tensors.pop(name).swapaxes(1, 2))
        raw = gguf.quantize(rows, MXFP4).reshape(*rows.shape[:2], -1, 17)
        numbers = np.concatenate([raw[..., 1:] & 15, raw[..., 1:] >> 4], axis=-1)
        tensors[f"{name}_blocks"] = numbers[..., 0::2] | numbers[..., 1::2] << 4
        tensors[f"{name}_scales"] = np.ascontiguousarray(raw[..., 0])
    save_file(tensors, file)
    loaded = load(entry, "cpu", backend="blocks")
    assert {loaded.model.layers[0][place].name for place in ("gate", "up", "down")} == {"MXFP4"}
    assert agree(logits(entry), expected(model))


def test_gemma_4_beside_pictures(tmp_path: Path) -> None:
    """A repository as it was published: tensors of texts under names of their own, among others."""
    model = model_of(CONFIGS["gemma4, large"], vocab_size=VOCABULARY)
    file = tmp_path / "tiny" / "config.json"
    entry = save(model, file.parent)
    text = json.loads(file.read_text())
    for key in ("per_layer_config", "architectures"):
        text.pop(key)
    text |= {"global_head_dim": 32, "num_global_key_value_heads": 1, "use_bidirectional_attention": "vision"}
    whole = {"architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4", "text_config": text}
    file.write_text(json.dumps(whole))
    weights = load_file(file.parent / "model.safetensors")
    renamed = {name.replace("model.", "model.language_model.", 1): one for name, one in weights.items()}
    renamed["model.vision_tower.patch.weight"] = np.zeros((2, 2), np.float32)
    save_file(renamed, file.parent / "model.safetensors")
    assert expected_step(entry, "cpu") == "kernels"
    assert agree(logits(entry), expected(model))


def test_a_configuration_as_gemma_was_published_with(tmp_path: Path) -> None:
    """Without the kinds of layers, and with rotary bases in fields of their own."""
    model = model_of(SIX_LAYERS, vocab_size=VOCABULARY)
    file = tmp_path / "tiny" / "config.json"
    entry = save(model, file.parent)
    config = json.loads(file.read_text())
    for key in ("layer_types", "rope_parameters", "_sliding_window_pattern"):
        config.pop(key)
    config |= {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "sliding_window_pattern": 6}
    file.write_text(json.dumps(config))
    assert agree(logits(entry), expected(model))
