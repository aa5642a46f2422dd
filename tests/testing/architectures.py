"""Tiny random models of every architecture that the CPU engine computes, in transformers and as GGUF files."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.core_model_loading import revert_weight_conversion

from hierchat.models.architectures.families import (
    ARCHITECTURES,
    GGUF_ARCHITECTURES,
    HEAD,
    LONG_FACTORS,
    ROPE_FACTORS,
    SHORT_FACTORS,
)
from hierchat.models.architectures.model_config import (
    expected,
    expert_width,
    experts_of,
    layer_heads,
    rotary_dims,
    rotary_layouts,
)
from hierchat.models.formats.assemble import whole
from tests.gguf_files.heads import ALIKE, GRANITE
from tests.testing.tiny import CONTEXT, VOCABULARY

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


def _rope(kind: str, theta: float = 1e4, **more: Any) -> dict[str, Any]:
    return {"rope_type": kind, "rope_theta": theta, **more}


def _config(model_type: str, **changed: Any) -> Any:
    """Make a configuration of this kind, tiny where nothing else is said."""
    return AutoConfig.for_model(model_type, **{**SHAPE, **changed})


BEGIN = "original_max_position_embeddings"
LLAMA3 = _rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, **{BEGIN: 64})
YARN = _rope("yarn", factor=4.0, **{BEGIN: 128})
LINEAR = _rope("linear", factor=2.0)
LONGROPE = _rope(
    "longrope",
    short_factor=[1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
    long_factor=[1.0, 2.0, 3.0, 5.0, 8.0, 9.0, 10.0, 12.0],
    **{BEGIN: 64},
)
GROWING = {
    **YARN,
    "beta_fast": 16.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.3,
    BEGIN: 64,
}
PER_KIND = {"full_attention": {**YARN, "rope_theta": 5e5}, "sliding_attention": _rope("default", 5e5)}
GEMMA3 = {**SHAPE, "num_hidden_layers": 4, "sliding_window": 20, "sliding_window_pattern": 3}
GEMMA3_SCALED = {
    "full_attention": _rope("linear", 1e6, factor=8.0),
    "sliding_attention": _rope("default", 1e3),
}
GEMMA4 = {
    "num_hidden_layers": 6,
    "sliding_window": 20,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
    "global_head_dim": 32,
    "final_logit_softcapping": 4.0,
    "hidden_size_per_layer_input": 0,
}
GEMMA4_LARGE = {**GEMMA4, "attention_k_eq_v": True, "num_global_key_value_heads": 1}
EXPERTS = {**SHAPE, "moe_intermediate_size": 32, "num_experts": 12, "num_experts_per_tok": 3}
WINDOWED = {"num_hidden_layers": 4, "sliding_window": 20}
MXFP4, Q8_0 = gguf.GGMLQuantizationType.MXFP4, gguf.GGMLQuantizationType.Q8_0
FAMILIES = {
    "smollm3": _config("smollm3", num_hidden_layers=4, pad_token_id=0),
    "granite": _config(
        "granite",
        embedding_multiplier=3.0,
        residual_multiplier=0.6,
        attention_multiplier=0.2,
        logits_scaling=4.0,
    ),
    "phi3": _config(
        "phi3",
        sliding_window=60,
        pad_token_id=0,
        rope_parameters=_rope("default", partial_rotary_factor=0.75),
    ),
    "phi3, long": _config("phi3", pad_token_id=0, rope_parameters=LONGROPE),
    "olmo2": _config("olmo2"),
    "olmo3": _config("olmo3", **WINDOWED, rope_parameters=PER_KIND),
    "gemma2": _config(
        "gemma2",
        **WINDOWED,
        query_pre_attn_scalar=16,
        attn_logit_softcapping=3.0,
        final_logit_softcapping=4.0,
    ),
    "gemma4": _config(
        "gemma4_text",
        **{**GEMMA4, "hidden_size_per_layer_input": 32},
        vocab_size_per_layer_input=272,
        num_kv_shared_layers=3,
        use_double_wide_mlp=True,
    ),
    "gemma4, large": _config("gemma4_text", **GEMMA4_LARGE),
    "gemma4, experts": _config(
        "gemma4_text",
        **GEMMA4_LARGE,
        enable_moe_block=True,
        num_experts=6,
        top_k_experts=2,
        moe_intermediate_size=32,
    ),
    "ministral3": _config("ministral3", pad_token_id=0, rope_parameters=GROWING),
    "glm4": _config("glm4", pad_token_id=0),
    "exaone4": _config("exaone4", **WINDOWED),
    "seed_oss": _config("seed_oss", pad_token_id=0),
}
"""Those that need something of the engine that Llama does not."""
CONFIGS = {
    "llama": _config("llama"),
    "llama, heads of its own": _config("llama", num_key_value_heads=4, head_dim=48),
    "llama 3": _config("llama", rope_parameters=LLAMA3),
    "llama 3, tied": _config("llama", rope_parameters=LLAMA3, tie_word_embeddings=True),
    "llama, linear": _config("llama", rope_parameters=LINEAR),
    "mistral": _config("mistral", sliding_window=None),
    "mistral, window": _config("mistral", sliding_window=100),
    "qwen2, biases": _config("qwen2"),
    "qwen2, window": _config("qwen2", use_sliding_window=True, sliding_window=33, max_window_layers=1),
    "qwen3, norms": _config("qwen3"),
    "qwen3, yarn": _config("qwen3", rope_parameters=YARN),
    "qwen3 moe": _config("qwen3_moe", **EXPERTS, norm_topk_prob=True),
    "qwen3 moe, shares of all": _config("qwen3_moe", **EXPERTS, norm_topk_prob=False),
    "olmoe": _config("olmoe", initializer_range=0.1, num_experts=12, num_experts_per_tok=3, pad_token_id=0),
    "mixtral": _config("mixtral", num_local_experts=5, num_experts_per_tok=2),
    "gpt-oss": _config(
        "gpt_oss",
        num_hidden_layers=2,
        initializer_range=0.15,
        num_local_experts=6,
        num_experts_per_tok=2,
        sliding_window=20,
    ),
    "gemma3": _config("gemma3_text", **GEMMA3),
    "gemma3, a wide window": _config("gemma3_text", **{**GEMMA3, "sliding_window": 140, "head_dim": 32}),
    "gemma3, scaled": _config(
        "gemma3_text", **GEMMA3, query_pre_attn_scalar=40, rope_parameters=GEMMA3_SCALED
    ),
    "phi3, short": _config("phi3", pad_token_id=0, rope_parameters={**LONGROPE, BEGIN: CONTEXT}),
    "glm4, no biases": _config("glm4", pad_token_id=0, attention_bias=False),
    "exaone4, no window": _config("exaone4", sliding_window=None, layer_types=["full_attention"] * 3),
    **FAMILIES,
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
            if (
                "gemma4" in config.model_type and "k_norm" in name
            ):  # or scores, which nothing divides, are large
                torch.nn.init.normal_(parameter, 0.2, 0.05)
            if name.endswith(("mlp.gate.weight", "router.weight", "sinks")):  # else all are wanted alike
                torch.nn.init.normal_(parameter, 0.0, 0.5)
            if name.endswith(("router.scale", "per_expert_scale")):
                torch.nn.init.normal_(parameter, 1.0, 0.3)
            if name.endswith("router.proj.weight"):
                torch.nn.init.normal_(parameter, 0.0, 4.0)
        for name, buffer in model.named_buffers():
            if name.endswith("layer_scalar"):
                torch.nn.init.uniform_(buffer, 0.4, 1.3)
    return model.eval().requires_grad_(False)


def round_experts(model: Any) -> Any:
    """gpt-oss' experts to what MXFP4 can hold."""
    for layer in model.model.layers:
        for weights in (layer.mlp.experts.gate_up_proj, layer.mlp.experts.down_proj):
            rows = np.ascontiguousarray(weights.numpy().swapaxes(1, 2))
            rounded = gguf.dequantize(gguf.quantize(rows, MXFP4), MXFP4)
            weights.copy_(torch.from_numpy(rounded.swapaxes(1, 2).copy()))
    return model


def tensors_of(model: Any) -> dict[str, np.ndarray]:
    """As they are stored, by name: transformers keeps those of several experts in one piece."""
    state = revert_weight_conversion(model, model.state_dict())
    return {name: tensor.float().numpy() for name, tensor in state.items()}


def write_gguf(model: Any, path: Path, tokenizer: Any, *, packed: bool = False) -> Path:
    """A module of transformers as llama.cpp's converter writes it, in float32, with a byte-level tokenizer; gpt-oss'
    experts in MXFP4. `packed`: matrices in Q8_0, and with the tokenizer's chat template."""
    config, state, said = model.config, tensors_of(model), model.config.to_dict()
    architecture = ARCHITECTURES[config.model_type]
    # Mistral's files say llama, and transformers knows them by their name
    kind = {"mistral": "llama", "olmo3": "olmo2"}.get(
        config.model_type, architecture.gguf or architecture.model_type
    )
    writer = gguf.GGUFWriter(path, kind)
    writer.add_name(config.model_type)
    experts, active = experts_of(said)
    names = ALIKE | GRANITE if kind == "granite" else ALIKE
    values = {key: said.get(name) for key, name in names.items()}
    values |= {
        "block_count": config.num_hidden_layers,
        "vocab_size": config.vocab_size,
        "rope.dimension_count": rotary_dims(said),
        "expert_count": experts or None,
        "expert_used_count": active if experts else None,
        "expert_feed_forward_length": expert_width(said) if experts else None,
    }
    if config.model_type in ("gemma2", "gemma3_text", "olmo3", "phi3", "exaone4", "gpt_oss"):
        values["attention.sliding_window"] = config.sliding_window or None
    if kind == "gemma2":
        values |= {
            f"{name}_logit_softcapping": said[f"{name}_logit_softcapping"] for name in ("attn", "final")
        }
    if kind == "gemma4":
        values |= _layers_of_gemma4(config)
    for key, value in values.items():
        add_value(writer, f"{kind}.{key}", value)
    _add_rotations(model, writer)
    add_tokens(config, writer, tokenizer)
    if packed:
        writer.add_chat_template(tokenizer.chat_template)
    heads = {"attn_q": config.num_attention_heads, "attn_k": said["num_key_value_heads"]}
    interleaved_rope = GGUF_ARCHITECTURES[kind].gguf_interleaved_rope and not architecture.interleaved_rope
    for name in (one.name for one in expected(said)):
        if name == HEAD and config.tie_word_embeddings:
            continue
        if name.gguf.endswith(".bias") and not architecture.biases_of(said):
            continue
        floats = whole(name, experts, state.__getitem__)
        if "norm" in name.gguf:
            floats = floats + np.float32(architecture.norm_offset)
        if (
            interleaved_rope and (matrix := name.gguf.split(".")[-2]) in heads
        ):  # neighbours are rotated together
            halves = floats.reshape(heads[matrix], 2, config.head_dim // 2, -1)
            floats = np.ascontiguousarray(halves.swapaxes(1, 2).reshape(floats.shape))
        if "_exps.weight" in name.gguf:
            floats = floats.reshape(experts, -1, floats.shape[1])
        if "_exps.weight" in name.gguf and kind == "gpt-oss":
            writer.add_tensor(name.gguf, gguf.quantize(floats, MXFP4), raw_dtype=MXFP4)
        elif packed and floats.ndim > 1:
            writer.add_tensor(name.gguf, gguf.quantize(floats, Q8_0), raw_dtype=Q8_0)
        else:
            writer.add_tensor(name.gguf, floats)
    finish(writer)
    return path


def finish(writer: gguf.GGUFWriter) -> None:
    """Write all that was added."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_value(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif value is not None:
        writer.add_array(key, value)


def _layers_of_gemma4(config: Any) -> dict[str, Any]:
    """What differs from layer to layer; lists where llama.cpp's converter writes lists."""
    windowed = [kind == "sliding_attention" for kind in config.layer_types]
    own = config.num_hidden_layers - config.num_kv_shared_layers
    heads = layer_heads(config.to_dict())
    _, kv_heads, size = heads[windowed.index(True)]
    inner, full = config.intermediate_size, heads[windowed.index(False)]
    wide = [inner * (1 if n < own else 2) for n in range(len(heads))]
    return {
        "attention.sliding_window": config.sliding_window,
        "attention.sliding_window_pattern": windowed,
        "attention.shared_kv_layers": config.num_kv_shared_layers,
        "embedding_length_per_layer_input": config.hidden_size_per_layer_input,
        "final_logit_softcapping": config.final_logit_softcapping,
        "feed_forward_length": wide if config.use_double_wide_mlp else inner,
        "attention.head_count_kv": kv_heads if full[1] == kv_heads else [one for _, one, _ in heads],
        **dict.fromkeys(("attention.key_length", "attention.value_length", "rope.dimension_count"), full[2]),
        **dict.fromkeys(("attention.key_length_swa", "attention.value_length_swa"), size),
        "rope.dimension_count_swa": size,
        "rope.freq_base_swa": float(config.rope_parameters["sliding_attention"]["rope_theta"]),
    }


def _add_rotations(model: Any, writer: gguf.GGUFWriter) -> None:
    given = model.config.rope_parameters
    given = given.get("full_attention", given)
    writer.add_rope_freq_base(given["rope_theta"])
    if given["rope_type"] == "proportional":
        pairs = rotary_layouts(model.config.to_dict())[0]
        factors = np.array([1.0] * pairs.pairs + [1e30] * (pairs.offset - pairs.pairs), np.float32)
        writer.add_tensor(ROPE_FACTORS, factors)
    if given["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(given["rope_type"]))
        writer.add_rope_scaling_factor(given["factor"])
    if given["rope_type"] in ("yarn", "longrope"):
        writer.add_rope_scaling_orig_ctx_len(given["original_max_position_embeddings"])
    if given["rope_type"] == "longrope":
        writer.add_rope_scaling_attn_factors(model.model.rotary_emb.attention_scaling)
        for name, kind in ((LONG_FACTORS, "long_factor"), (SHORT_FACTORS, "short_factor")):
            writer.add_tensor(name, np.array(given[kind], np.float32))
    if beta := given.get("llama_4_scaling_beta"):
        writer.add_rope_scaling_yarn_beta_fast(given["beta_fast"])
        writer.add_rope_scaling_yarn_beta_slow(given["beta_slow"])
        writer.add_rope_scaling_yarn_log_mul(given["mscale_all_dim"])
        writer.add_attn_temperature_scale(beta)
    if given["rope_type"] == "llama3":
        size = model.config.head_dim
        plain = given["rope_theta"] ** -(np.arange(0, size, 2) / size)
        factors = plain / model.model.rotary_emb.inv_freq.numpy()
        writer.add_tensor(ROPE_FACTORS, factors.astype(np.float32))


def add_tokens(
    config: Any, writer: gguf.GGUFWriter, tokenizer: Any, split: str = "smollm", padding: int | None = None
) -> None:
    """`padding`: a token behind those of the tokenizer, as published files of hybrids have it."""
    tokens = [token for token, _ in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])]
    tokens += [f"<pad{i}>" for i in range(config.vocab_size - len(tokens))]
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(split)
    writer.add_token_list(tokens)
    special = set(tokenizer.all_special_tokens)
    if padding is not None:
        special.add(tokens[padding])
        writer.add_pad_token_id(padding)
    writer.add_token_types([control if token in special else normal for token in tokens])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(tokenizer.bos_token_id)
    writer.add_eos_token_id(tokenizer.eos_token_id)
