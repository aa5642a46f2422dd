"""What llama.cpp's converter does to the tensors of a checkpoint, family by family."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Named = Iterator[tuple[str, Floats]]


def tensors_in(architecture: str, config: Any, state: dict[str, Floats], guessing: int) -> Named:
    kind = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    layers = config.num_hidden_layers
    table = gguf.get_tensor_name_map(kind, layers + guessing)
    whole = any(".eh_proj." in name for name in state)
    for name, tensor in _merged(state):
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        for said, floats in CHANGES[architecture](config, name, tensor):
            found = (
                said.removeprefix("=") if said.startswith("=") else table.get_name(said, (".weight", ".bias"))
            )
            if around := _AROUND.fullmatch(said):
                found = f"blk.{layers}.nextn.{around[1].replace('.', '_')}.weight"
            assert found, said
            yield found, np.asarray(floats, np.float32)
            if guessing and not whole and f".{layers - 1}." in found:
                yield found.replace(f".{layers - 1}.", f".{layers}."), np.asarray(floats, np.float32)
    if guessing and not whole:
        yield f"blk.{layers}.nextn.enorm.weight", np.ones(config.hidden_size, np.float32)


_AROUND = re.compile(r"model\.layers\.\d+\.(eh_proj|enorm|hnorm|shared_head\.norm)\.weight")
"""Parts around a layer that guesses further tokens."""


def _merged(state: dict[str, Floats]) -> Named:
    """Experts of a layer in one tensor, and streams of AltUp."""
    several: dict[tuple[str, str], dict[int, Floats]] = {}
    streams: dict[str, list[Floats]] = {}
    for name, tensor in state.items():
        if found := re.fullmatch(r"(.*\.experts)\.(\d+)\.(\w+)\.weight", name):
            several.setdefault((found[1], found[3]), {})[int(found[2])] = tensor
        elif found := re.fullmatch(r"(model\.altup_(?:unembed_)?projections)\.\d\.weight", name):
            streams.setdefault(f"{found[1]}.weight", []).append(tensor)
        else:
            yield name, tensor
    for name, tensors in streams.items():
        yield name, np.stack(tensors)
    for (stem, matrix), experts in several.items():
        layer = stem.split(".")[2]
        begin = f"layers.{layer}.feed_forward" if "feed_forward" in stem else f"model.layers.{layer}.mlp"
        yield f"{begin}.experts.{matrix}.weight", np.stack([experts[n] for n in range(len(experts))])


def of_qwen3next(config: Any, name: str, tensor: Floats) -> Named:
    if name.endswith(".A_log"):
        yield name, -np.exp(tensor)
    elif name.endswith(".dt_bias"):
        yield name.replace(".dt_bias", ".dt_proj.bias"), tensor
    elif "conv1d" in name:
        yield name, tensor.squeeze()
    elif name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
        yield name, tensor + 1
    elif "in_proj_qkvz" in name:
        keys, each = config.linear_num_key_heads, config.linear_num_value_heads // config.linear_num_key_heads
        sizes = [config.linear_key_head_dim] * 2 + [each * config.linear_value_head_dim] * 2
        parts = np.split(tensor.reshape(keys, sum(sizes), -1), np.cumsum(sizes)[:-1], axis=1)
        q, k, v, z = (part.reshape(-1, tensor.shape[1]) for part in parts)
        layer = name.split(".")[2]
        yield f"=blk.{layer}.attn_qkv.weight", np.concatenate([q, k, v])
        yield f"=blk.{layer}.attn_gate.weight", z
    else:
        yield name, tensor


def _of_qwen35(config: Any, name: str, tensor: Floats) -> Named:
    keys, values = config.linear_num_key_heads, config.linear_num_value_heads
    size, first = config.linear_value_head_dim, 2 * keys * config.linear_key_head_dim

    def tiled(floats: Floats, numbers: int) -> Floats:
        heads = floats.reshape(keys, values // keys, numbers, *floats.shape[1:])
        return heads.swapaxes(0, 1).reshape(floats.shape)

    if ".in_proj_qkv." in name or ".conv1d" in name:
        tensor = tensor.squeeze()
        tensor = np.concatenate([tensor[:first], tiled(tensor[first:], size)])
    elif ".in_proj_z." in name:
        tensor = tiled(tensor, size)
    elif re.search(r"in_proj_[ab]\.|linear_attn\.(A_log|dt_bias)", name):
        tensor = tiled(tensor, 1)
    elif "linear_attn.out_proj" in name:
        tensor = tiled(tensor.T, size).T
    yield from of_qwen3next(config, name, tensor)


def _turned(config: Any, name: str, tensor: Floats) -> Floats:
    """Rows of queries and keys, so that neighbours are rotated together."""
    if not name.endswith(("q_proj.weight", "k_proj.weight")):
        return tensor
    heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
    return tensor.reshape(heads, 2, -1, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape)


def _of_mamba2(inner: int, groups: int, name: str, tensor: Floats) -> Named:
    if name.endswith("dt_bias"):
        yield name.replace(".dt_bias", ".dt_proj.bias"), tensor
    elif "conv1d" in name:
        yield name, tensor.squeeze()
    elif name.endswith(".A_log"):
        yield name, -np.exp(tensor).reshape(-1, 1)
    elif name.endswith(".D"):
        yield name, tensor.reshape(-1, 1)
    elif name.endswith((".mamba.norm.weight", ".mixer.norm.weight")):
        yield name, tensor.reshape(groups, inner // groups)
    else:
        yield name, tensor


def _of_granite(config: Any, name: str, tensor: Floats) -> Named:
    layer = f"=blk.{name.split('.')[2]}" if ".layers." in name else ""
    beside = "_shexp" if config.num_local_experts else ""
    if name.endswith("block_sparse_moe.input_linear.weight"):
        gate, up = np.split(tensor, 2, axis=-2)
        yield from ((f"{layer}.ffn_gate_exps.weight", gate), (f"{layer}.ffn_up_exps.weight", up))
    elif name.endswith("shared_mlp.input_linear.weight"):
        gate, up = np.split(tensor, 2, axis=-2)
        yield from ((f"{layer}.ffn_gate{beside}.weight", gate), (f"{layer}.ffn_up{beside}.weight", up))
    elif name.endswith("shared_mlp.output_linear.weight") and not beside:
        yield f"{layer}.ffn_down.weight", tensor
    elif ".mamba." in name:
        inner = config.mamba_expand * config.hidden_size
        yield from _of_mamba2(inner, config.mamba_n_groups, name, tensor)
    else:
        yield name, _turned(config, name, tensor)


def _of_lfm2(config: Any, name: str, tensor: Floats) -> Named:
    tensor = tensor.squeeze(1) if "conv.conv" in name else tensor
    if name.endswith(".expert_bias"):
        name += ".bias"
    yield name, tensor


def _of_nemotron(config: Any, name: str, tensor: Floats) -> Named:
    inner = config.mamba_num_heads * config.mamba_head_dim
    name = name.replace("e_score_correction_bias", "e_score_correction.bias")
    for said, floats in _of_mamba2(inner, config.n_groups, name, tensor):
        yield said, _turned(config, said, floats)


def _of_gemma3n(config: Any, name: str, tensor: Floats) -> Named:
    if name.endswith("_scale"):
        name += ".weight"
    if "embed_tokens" in name and len(tensor) < config.vocab_size:
        tensor = np.concatenate(
            [tensor, np.zeros((config.vocab_size - len(tensor), tensor.shape[1]), np.float32)]
        )
    yield name, tensor


def _plain(config: Any, name: str, tensor: Floats) -> Named:
    yield name.replace("e_score_correction_bias", "e_score_correction.bias"), tensor


CHANGES: dict[str, Callable[[Any, str, Floats], Named]] = {
    **dict.fromkeys(("qwen35", "qwen35moe"), _of_qwen35),
    "qwen3next": of_qwen3next,
    **dict.fromkeys(("granitehybrid", "granitemoe"), _of_granite),
    **dict.fromkeys(("lfm2", "lfm2moe"), _of_lfm2),
    **dict.fromkeys(("nemotron_h", "nemotron_h_moe"), _of_nemotron),
    **dict.fromkeys(("cohere2", "olmoe", "glm4moe", "qwen2moe"), _plain),
    "gemma3n": _of_gemma3n,
}
