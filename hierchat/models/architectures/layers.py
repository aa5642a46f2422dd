"""What each layer of a decoder has, where layers differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hierchat.models.architectures.architecture import (
    EMBEDDING,
    EXPERT_SCALES,
    HEAD,
    LAST_NORM,
    LAYER_EMBEDDING,
    LAYER_INPUT_NORMS,
    LAYER_INPUTS,
    LAYER_PROJECTION,
    LAYER_PROJECTION_NORM,
    NORMS_BESIDE,
    ROUTER_NORMS,
    Architecture,
    Name,
)
from hierchat.models.architectures.families import ARCHITECTURES
from hierchat.models.architectures.sizes import experts_of, heads_of

# How far back the layers of a decoder see.


FULL, SLIDING = "full_attention", "sliding_attention"
"""What transformers calls the kinds of layers that the CPU engine computes."""


def layer_kinds(config: Mapping[str, Any], architecture: Architecture) -> list[str]:
    """What each layer's attention is, in transformers' words, also where an older config.json does not name it."""
    if kinds := config.get("layer_types"):
        return list(kinds)
    layers = range(config["num_hidden_layers"])
    if not _window(config, architecture):
        return [FULL for _ in layers]
    period = config.get("sliding_window_pattern") or architecture.full_every
    if isinstance(period, str):  # EXAONE's "LLLG"
        period = len(period)
    full = config.get("max_window_layers") or 0  # Qwen's first layers have none
    return [FULL if layer < full or (period and (layer + 1) % period == 0) else SLIDING for layer in layers]


def windows(config: Mapping[str, Any], architecture: Architecture) -> list[int]:
    """Positions that each layer sees of those up to its own, which counts; 0: all of them."""
    window = _window(config, architecture)
    return [window if kind == SLIDING else 0 for kind in layer_kinds(config, architecture)]


def _window(config: Mapping[str, Any], architecture: Architecture) -> int:
    return config.get("sliding_window") or 0 if config.get("use_sliding_window", architecture.window) else 0


WITHOUT_SLOTS = {"conv", "linear_attention", "mamba", "mlp", "moe"}
"""transformers' names of layers that have no keys and values."""
Heads = tuple[int, int, int]
"""Query heads, key-value heads, numbers per head."""


def layer_heads(config: Mapping[str, Any]) -> list[Heads]:
    """Of each layer; those without a window may have others than those with one."""
    usual = heads_of(config)
    architecture = ARCHITECTURES.get(str(config.get("model_type")))
    if not architecture or not architecture.full_head_dim:
        return [usual] * config["num_hidden_layers"]
    heads, kv_heads, size = usual
    if config.get("per_layer_config"):  # as transformers saves it, by the layer's number: "04"
        said = {int(layer): own for layer, own in config["per_layer_config"].items()}
        each = [said.get(layer, {}) for layer in range(config["num_hidden_layers"])]
        return [(heads, own.get("num_key_value_heads", kv_heads), own.get("head_dim", size)) for own in each]
    fewer = config.get("num_global_key_value_heads") if config.get("attention_k_eq_v") else None
    full = heads, fewer or kv_heads, config.get("global_head_dim") or architecture.full_head_dim
    return [full if kind == FULL else usual for kind in layer_kinds(config, architecture)]


def sources(config: Mapping[str, Any]) -> list[int]:
    """For each layer the one whose keys and values it reads: itself, or the last of its kind that has its own."""
    layers = config["num_hidden_layers"]
    own = layers - (config.get("num_kv_shared_layers") or 0)
    if own == layers:
        return list(range(layers))
    kinds = layer_kinds(config, ARCHITECTURES[config["model_type"]])
    last = {kind: layer for layer, kind in enumerate(kinds[:own])}
    return [layer if layer < own else last[kinds[layer]] for layer in range(layers)]


def slot_size(config: Mapping[str, Any]) -> int:
    """Numbers per position of the key-value cache."""
    heads = layer_heads(config)
    shared = ARCHITECTURES.get(str(config.get("model_type"))) and config.get("num_kv_shared_layers")
    kept = set(sources(config)) if shared else range(len(heads))
    without = [kind in WITHOUT_SLOTS for kind in config.get("layer_types") or [None] * len(heads)]
    return sum(2 * heads[layer][1] * heads[layer][2] for layer in kept if not without[layer])


def layer_input_size(config: Mapping[str, Any], architecture: Architecture) -> int:
    """Numbers of the input that each layer has of its own; 0: none."""
    return config.get("hidden_size_per_layer_input") or 0 if "layer_gate" in architecture.matrices else 0


def has_experts_beside(config: Mapping[str, Any], architecture: Architecture) -> bool:
    """Whether layers have several experts and what others have alone."""
    return bool(architecture.beside) and experts_of(config)[0] > 0


def expert_width(config: Mapping[str, Any], architecture: Architecture) -> int:
    """Rows of gate and up, of one expert where a layer has several."""
    beside = has_experts_beside(config, architecture)
    return int(config["moe_intermediate_size" if beside else architecture.inner])


def matrices_of(architecture: Architecture, config: Mapping[str, Any], layer: int) -> dict[str, Name]:
    """The matrices of a layer."""
    beside = architecture.beside if has_experts_beside(config, architecture) else {}
    return _without({**architecture.matrices, **beside}, _missing(architecture, config, layer))


def norms_of(architecture: Architecture, config: Mapping[str, Any], layer: int) -> dict[str, Name]:
    """The norms of a layer."""
    return _without(architecture.norms, _missing(architecture, config, layer))


def _without(names: Mapping[str, Name], missing: set[str]) -> dict[str, Name]:
    return {place: name for place, name in names.items() if place not in missing}


def _missing(architecture: Architecture, config: Mapping[str, Any], layer: int) -> set[str]:
    """Which of an architecture's matrices and norms a layer of this model has not."""
    missing = set[str]()
    if not layer_input_size(config, architecture):
        missing |= LAYER_INPUTS.keys() | LAYER_INPUT_NORMS.keys()
    if not has_experts_beside(config, architecture):
        missing |= NORMS_BESIDE.keys()
    if config.get("num_kv_shared_layers") and sources(config)[layer] != layer:
        missing |= {"k", "v", "key_norms"}
    if config.get("attention_k_eq_v") and layer_kinds(config, architecture)[layer] == FULL:
        missing.add("v")  # the keys are
    return missing


def tensors(architecture: Architecture, config: Mapping[str, Any]) -> Iterator[Name]:
    """The names of all tensors of a model; HEAD among them, and biases that it may lack."""
    yield from (EMBEDDING, LAST_NORM, HEAD)
    if layer_input_size(config, architecture):
        yield from (LAYER_EMBEDDING, LAYER_PROJECTION, LAYER_PROJECTION_NORM)
    for layer in range(config.get("num_hidden_layers") or 0):
        matrices = matrices_of(architecture, config, layer)
        yield from (name.of(layer) for name in matrices.values())
        yield from (name.of(layer) for name in norms_of(architecture, config, layer).values())
        yield from (matrices[name].of(layer, "bias") for name in architecture.biases)
        yield from (name.of(layer) for name in (architecture.sinks, architecture.scales) if name)
        if has_experts_beside(config, architecture):
            yield from (name.of(layer, "scale") for name in (ROUTER_NORMS, EXPERT_SCALES))
