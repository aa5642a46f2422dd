"""Read the layer for multi-token prediction (MTP) that a model brings to draft for itself, after DeepSeek-V3 (arXiv
2412.19437): as a transformers module of that one layer.

The layer reads a token's embedding and the state before it, each behind a norm, joined by `eh_proj`. Embedding and
output are the target's. Files call it by the number behind the last layer, as DeepSeek's do, or `mtp`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import safe_open

from hierchat.language import later
from hierchat.models.architectures.model_config import FULL
from hierchat.models.formats.block_model import Matrix
from hierchat.models.formats.gguf_module import TensorShape, filled, matrices_of, stored
from hierchat.models.progress import BrokenFileError

KINDS = frozenset([
    "deepseek_v3", "glm4_moe", "glm4_moe_lite", "qwen2", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next",
])  # fmt: skip
"""transformers' names of models whose layer is one of their own kind, with full attention, and chained behind its norm
where it drafts further tokens."""
BEFORE_NORM = frozenset(["qwen2"])
"""Those whose layer, MiMo's, reads states from before the last norm, joined before the embedding, and is chained so."""
_SAID = ("mtp_num_hidden_layers", "num_nextn_predict_layers")
_ONE_LAYER = {
    "num_hidden_layers": 1,
    "layer_types": [FULL],
    "mlp_layer_types": ["sparse"],
    "first_k_dense_replace": 0,
    "mlp_only_layers": [],
    "decoder_sparse_step": 1,
}
"""Configuration of one layer: with experts, where the model has them."""
_NORM = "model.norm"
_NAMES = {
    name: own
    for own, names in {
        "eh_proj": ("eh_proj", "fc", "input_proj"),
        "enorm": ("enorm", "pre_fc_norm_embedding", "token_layernorm"),
        "hnorm": ("hnorm", "pre_fc_norm_hidden", "hidden_layernorm"),
        _NORM: ("norm", "shared_head.norm", "final_layernorm"),
    }.items()
    for name in names
}
"""What stands outside of the layer, as files call it and as the module does."""
_OF_TARGET = ("embed_tokens", "shared_head.head")
"""Copies of the target's that some files have."""


def own_name(name: str, layers: int) -> str | None:
    """Return what the module calls a tensor of a file; None for one of the target, which has so many layers."""
    begin = rf"(?:model\.)?(?:language_model\.)?(?:mtp[._]layers\.0|mtp(?!\.layers)|layers\.{layers})\."
    if not (found := re.match(begin, name)):
        return None
    rest = name[found.end() :]
    stem, _, kind = rest.rpartition(".")
    if stem in _OF_TARGET:
        return None
    return f"{_NAMES[stem]}.{kind}" if stem in _NAMES else f"model.layers.0.{rest}"


def tensors_in_file(config: Any) -> tuple[dict[str, TensorShape], set[str]]:
    """Return the tensors of a model's layer as DeepSeek calls them, with their shapes, and which are matrices; none
    where the configuration says nothing of one."""
    if not _says(config):
        return {}, set()
    layer = _empty(config, None)
    own = _tensors_of(layer)
    ours = {name: name.replace(_NORM, "shared_head.norm").removeprefix("model.layers.0.") for name in own}
    names = {name: f"model.layers.{config.num_hidden_layers}.{ours[name]}" for name in own}
    shapes = {names[name]: tuple(tensor.shape) for name, tensor in own.items()}
    return shapes, {names[name] for name in matrices_of(layer)[0] if name in names}


def read_layer(folder: Path, config: Any, dtype: Any) -> Any | None:
    """Read the layer of a folder of safetensors; as `make_layer` otherwise."""
    own = partial(own_name, layers=config.num_hidden_layers)
    return make_layer(config, dtype, read_tensors(folder, own) if config.model_type in KINDS else {})


def read_tensors(folder: Path, own: Callable[[str], str | None]) -> dict[str, Any]:
    """Read the tensors of a folder of safetensors for which `own` knows a name, by that name."""
    found: dict[str, Any] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            found |= {known: file.get_tensor(name) for name in file.keys() if (known := own(name))}  # noqa: SIM118
    return found


def make_layer(
    config: Any, dtype: Any, tensors: Mapping[str, Any], matrices: Mapping[str, Matrix] = {}
) -> Any | None:
    """Make the module of the layer, without embedding and output, by its model's configuration of texts; None where
    there is no such layer. `matrices`: tensors that will be put into it. Raises BrokenFileError with what is wrong."""
    if not (_says(config) or tensors or matrices):
        return None
    layer, given = _empty(config, dtype), dict(tensors)
    own = _tensors_of(layer)
    for name, matrix in matrices.items():
        if name not in own or not matrix.fits(tuple(own[name].shape)):
            raise BrokenFileError(later(f"{name} does not fit"))
    wanted = {name: tensor for name, tensor in own.items() if name not in matrices}
    return filled(layer, {name: fitting(name, given, tensor) for name, tensor in wanted.items()})


def _says(config: Any) -> bool:
    return config.model_type in KINDS and any(getattr(config, name, 0) for name in _SAID)


def _empty(config: Any, dtype: Any) -> Any:
    """Make the module of one layer without memory for its weights."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    own = deepcopy(config)
    for name, value in _ONE_LAYER.items():
        if getattr(own, name, None) is not None:
            setattr(own, name, value)
    size = own.hidden_size
    with no_init_weights(), torch.device("meta"):
        layer = AutoModelForCausalLM.from_config(own, dtype=dtype)
        norm = type(layer.model.norm)
        layer.enorm, layer.hnorm = (norm(size, eps=own.rms_norm_eps).to(dtype) for _ in range(2))
        layer.eh_proj = torch.nn.Linear(2 * size, size, bias=False, dtype=dtype)
    return layer


def _tensors_of(layer: Any) -> dict[str, Any]:
    """Return its own tensors by name, without those that the target has."""
    shared = {id(part.weight) for part in (layer.get_input_embeddings(), layer.get_output_embeddings())}
    return {name: tensor for name, tensor in stored(layer).items() if id(tensor) not in shared}


def fitting(name: str, found: dict[str, Any], wanted: Any) -> Any:
    """Return a tensor of a file as it is wanted; of experts that are stored one by one, all. Raises BrokenFileError."""
    import torch

    stem, _, form = name.rpartition(".")
    if name not in found and stem.endswith(".experts"):
        parts = ("gate_proj", "up_proj") if form == "gate_up_proj" else (form,)
        experts = [[f"{stem}.{n}.{part}.weight" for part in parts] for n in range(len(wanted))]
        if found.keys() >= {one for several in experts for one in several}:
            found[name] = torch.stack([torch.cat([found.pop(one) for one in several]) for several in experts])
    if name not in found:
        raise BrokenFileError(later(f"the file lacks {name}"))
    tensor = found[name]
    if tensor.shape != wanted.shape:
        shape, right = list(tensor.shape), list(wanted.shape)
        raise BrokenFileError(later(f"{name} has the shape {shape} in place of {right}"))
    if tensor.dtype not in (torch.float32, torch.float16, torch.bfloat16, wanted.dtype):
        kind = str(tensor.dtype).removeprefix("torch.")
        raise BrokenFileError(later(f"{name} is in {kind}, which is not read here"))
    if not tensor.isfinite().all():
        raise BrokenFileError(later(f"{name} holds what is no number"))
    return tensor.to(wanted.dtype)
