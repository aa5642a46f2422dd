"""Tiny random models of every architecture that the CPU engine computes, in transformers and as GGUF files."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
)

from hierchat.models.architectures.names import HEAD, ROPE_FACTORS
from hierchat.models.architectures.registry import ARCHITECTURES
from tests.tiny import CONTEXT, VOCABULARY

SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
}
GEMMA3 = {**SHAPE, "num_hidden_layers": 4, "sliding_window": 20, "sliding_window_pattern": 3}
GEMMA3_SCALED = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e3},
}
CONFIGS = {
    "llama": LlamaConfig(**SHAPE),
    "llama, heads of its own": LlamaConfig(**{**SHAPE, "num_key_value_heads": 4, "head_dim": 48}),
    "llama, tied": LlamaConfig(**SHAPE, tie_word_embeddings=True),
    "llama 3": LlamaConfig(**SHAPE, rope_parameters=LLAMA3),
    "llama 3, tied": LlamaConfig(**SHAPE, rope_parameters=LLAMA3, tie_word_embeddings=True),
    "llama, linear": LlamaConfig(
        **SHAPE, rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
    ),
    "mistral": MistralConfig(**SHAPE, sliding_window=None),
    "mistral, window": MistralConfig(**SHAPE, sliding_window=100),
    "qwen2, biases": Qwen2Config(**SHAPE),
    "qwen2, window": Qwen2Config(**SHAPE, use_sliding_window=True, sliding_window=33, max_window_layers=1),
    "qwen3, norms": Qwen3Config(**SHAPE),
    "qwen3, yarn": Qwen3Config(**SHAPE, rope_parameters=YARN),
    "gemma3": Gemma3TextConfig(**GEMMA3),
    "gemma3, a wide window": Gemma3TextConfig(**{**GEMMA3, "sliding_window": 140, "head_dim": 32}),
    "gemma3, scaled": Gemma3TextConfig(
        **{**GEMMA3, "query_pre_attn_scalar": 40, "rope_parameters": GEMMA3_SCALED}
    ),
}


def model_of(config: Any, **changed: Any) -> Any:
    config = deepcopy(config)
    for key, value in changed.items():
        setattr(config, key, value)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
        for name, parameter in model.named_parameters():
            if "norm" in name or "bias" in name:  # else all ones or zeros
                torch.nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.3)
    return model.eval().requires_grad_(False)


def write_gguf(model: Any, path: Path, tokenizer: Any) -> Path:
    """A module of transformers as llama.cpp's converter writes it, in float32, with a byte-level tokenizer."""
    config, state = model.config, model.state_dict()
    architecture = ARCHITECTURES[config.model_type]
    # Mistral's files say llama, and transformers knows them by their name
    kind = "llama" if config.model_type == "mistral" else architecture.gguf
    writer = gguf.GGUFWriter(path, kind)
    writer.add_name(config.model_type)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    if kind == "gemma3":
        writer.add_sliding_window(config.sliding_window)
    _add_rotations(model, writer)
    _add_tokens(config, writer, tokenizer)
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for name in architecture.tensors(config.num_hidden_layers):
        if name == HEAD and config.tie_word_embeddings:
            continue
        floats = state[name.transformers].numpy()
        if "norm" in name.gguf:
            floats = floats + np.float32(architecture.norm_offset)
        if (
            kind == "llama" and (matrix := name.gguf.split(".")[-2]) in heads
        ):  # neighbours are rotated together
            halves = floats.reshape(heads[matrix], 2, config.head_dim // 2, -1)
            floats = np.ascontiguousarray(halves.swapaxes(1, 2).reshape(floats.shape))
        writer.add_tensor(name.gguf, floats)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_rotations(model: Any, writer: gguf.GGUFWriter) -> None:
    given = model.config.rope_parameters
    given = given.get("full_attention", given)
    writer.add_rope_freq_base(given["rope_theta"])
    if given["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(given["rope_type"]))
        writer.add_rope_scaling_factor(given["factor"])
    if given["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(given["original_max_position_embeddings"])
    if given["rope_type"] == "llama3":
        size = model.config.head_dim
        plain = given["rope_theta"] ** -(np.arange(0, size, 2) / size)
        factors = plain / model.model.rotary_emb.inv_freq.numpy()
        writer.add_tensor(ROPE_FACTORS, factors.astype(np.float32))


def _add_tokens(config: Any, writer: gguf.GGUFWriter, tokenizer: Any) -> None:
    tokens = [token for token, _ in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])]
    tokens += [f"<pad{i}>" for i in range(config.vocab_size - len(tokens))]
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([control if token in tokenizer.all_special_tokens else normal for token in tokens])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(tokenizer.bos_token_id)
    writer.add_eos_token_id(tokenizer.eos_token_id)
