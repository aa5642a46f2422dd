"""Tell what the layers of a hybrid have: attention, or a mixer that keeps a running state, and which MLP."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from hierchat.models.architectures.families import ARCHITECTURES, GATED, VECTORS, Name, architecture_of

DELTA_NET, MAMBA, CONVOLUTION = "linear_attention", "mamba", "conv"
"""Kinds of layers with a running state: Gated DeltaNet, Mamba 2, and short convolutions."""
MLP, EXPERTS = "mlp", "moe"
"""Kinds of layers that have no mixer: Nemotron-H has either a mixer or an MLP in a layer."""
_QUERIES_AND_KEYS = {"query_norms", "key_norms"}
_PATTERN = {"M": MAMBA, "*": "full_attention", "-": MLP, "E": EXPERTS}
"""Kinds of Nemotron-H's layers in older configurations."""
_EPSILONS = ("norm_eps", "layer_norm_epsilon")


def completed(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a hybrid's configuration with our names of `layer_types`, and `rms_norm_eps`; others unchanged."""
    found = dict(config)
    architecture = ARCHITECTURES.get(str(config.get("model_type")))
    if not architecture or not architecture.mixers:
        return found
    if kinds := _kinds(config):
        found |= {"layer_types": kinds, "num_hidden_layers": len(kinds)}
    if MAMBA in architecture.mixers and not (architecture.unrotated_every or architecture.full_every):
        rotated = config.get("position_embedding_type") == "rope"
        found["no_rope_layer_interval"] = None if rotated else 1
    if config.get("block_auto_adjust_ff_dim"):
        found |= {"intermediate_size": _adjusted(config), "block_auto_adjust_ff_dim": False}
    epsilons = [config[name] for name in _EPSILONS if config.get(name) is not None]
    if "rms_norm_eps" not in found and epsilons:
        found["rms_norm_eps"] = epsilons[0]
    return found


def _adjusted(config: Mapping[str, Any]) -> int:
    two_thirds = int(2 * (config.get("block_ff_dim") or config["intermediate_size"]) / 3)
    wide = int((config.get("block_ffn_dim_multiplier") or 1) * two_thirds)
    multiple = config["block_multiple_of"]
    return int(multiple * -(-wide // multiple))


def _kinds(config: Mapping[str, Any]) -> list[str]:
    architecture = architecture_of(config)
    kinds = config.get("layer_types") or config.get("layers_block_type")
    kinds = kinds or [_PATTERN.get(letter, letter) for letter in config.get("hybrid_override_pattern") or ""]
    if not kinds and (every := config.get("full_attention_interval") or architecture.full_every):
        layers = range(config.get("num_hidden_layers") or 0)
        kinds = [DELTA_NET if (layer + 1) % every else "full_attention" for layer in layers]
    # transformers calls layers of Mamba 2 linear attention, too
    names = {"attention": "full_attention", **({DELTA_NET: MAMBA} if MAMBA in architecture.mixers else {})}
    return [names.get(kind, kind) for kind in kinds]


class Mixer(NamedTuple):
    """Sizes of a mixer with a running state. In Mamba 2, `keys` are groups of B and C, `values` its heads."""

    channels: int
    width: int
    keys: int = 0
    key_size: int = 0
    values: int = 0
    value_size: int = 0

    @property
    def inner(self) -> int:
        """Return how many numbers it brings before its last matrix."""
        return self.values * self.value_size or self.channels


_SIZES = {
    "linear_": (
        "linear_num_key_heads", "linear_key_head_dim", "linear_num_value_heads", "linear_value_head_dim",
        "linear_conv_kernel_dim",
    ),
    "mamba_d": ("mamba_n_groups", "mamba_d_state", "mamba_n_heads", "mamba_d_head", "mamba_d_conv"),
    "mamba_n": ("n_groups", "ssm_state_size", "mamba_num_heads", "mamba_head_dim", "conv_kernel"),
}  # fmt: skip
"""Names in configurations, by what one of them begins with: keys, a key's size, values, a value's size, and width."""


def mixer_of(config: Mapping[str, Any], kind: str) -> Mixer:
    """Return the sizes of a layer's mixer by its kind. Raises KeyError if the configuration lacks one."""
    if kind == CONVOLUTION:
        return Mixer(config["hidden_size"], config["conv_L_cache"])
    names = _SIZES["linear_" if kind == DELTA_NET else "mamba_d" if "mamba_d_state" in config else "mamba_n"]
    keys, key_size, values, value_size, width = (config[name] for name in names)
    if value_size == "auto":
        value_size = config["mamba_expand"] * config["hidden_size"] // values
    channels = 2 * keys * key_size + values * value_size
    return Mixer(channels, width, keys, key_size, values, value_size)


def has_state(kind: str) -> bool:
    """Return whether layers of this kind keep a running state."""
    return kind in (DELTA_NET, MAMBA, CONVOLUTION)


def has_routed(config: Mapping[str, Any], layer: int) -> bool:
    """Return whether a layer has routed experts, where they take the place of its MLP."""
    experts = config.get("num_experts") or config.get("num_local_experts")
    return bool(architecture_of(config).routed and experts) and layer >= (config.get("num_dense_layers") or 0)


def own_names(config: Mapping[str, Any], layer: int) -> dict[str, Name]:
    """Return the names of a layer's matrices and of its mixer's vectors, by their place."""
    architecture = architecture_of(config)
    kind, places = config["layer_types"][layer], dict(architecture.matrices)
    if not config.get("use_attention_gate", True):
        places.pop("q_gate", None)
    if has_routed(config, layer):
        places |= architecture.routed
    if kind in architecture.mixers:
        places = {place: name for place, name in places.items() if place not in GATED}
        places |= architecture.mixers[kind]
    return {place: name for place, name in places.items() if place not in _left_out(config)}


def _left_out(config: Mapping[str, Any]) -> set[str]:
    missing = set[str]()
    biases = ("use_conv_bias", "mamba_conv_bias", "conv_bias")
    if not any(config.get(name, name == "mamba_conv_bias" and "mamba_d_state" in config) for name in biases):
        missing.add("conv_biases")
    if config.get("use_expert_bias") is False:
        missing.add("score_biases")
    if not any(config.get(name) for name in _SHARED):
        missing |= {"dense_gate", "dense_up", "dense_down", "dense_scale"}
    return missing


_SHARED = (
    "shared_expert_intermediate_size",
    "shared_intermediate_size",
    "moe_shared_expert_intermediate_size",
)


def missing_norms(config: Mapping[str, Any], layer: int) -> set[str]:
    architecture = architecture_of(config)
    kind = config["layer_types"][layer]
    missing = set[str]() if kind not in architecture.mixers else set(_QUERIES_AND_KEYS)
    if MLP in architecture.mixers:
        missing.add("attention_norms" if kind in (MLP, EXPERTS) else "inner_norms")
    if not config.get("use_sandwich_norm", True):
        missing |= {"after_attention_norms", "after_inner_norms"}
    return missing


def sizes(config: Mapping[str, Any], layer: int) -> dict[str, tuple[int, int]]:
    """Return rows and columns of a layer's matrices that depend on its kind; of one expert, if it has several."""
    architecture = architecture_of(config)
    kind, hidden = config["layer_types"][layer], config["hidden_size"]
    found = dict[str, tuple[int, int]]()
    if has_state(kind):
        mixer = mixer_of(config, kind)
        found = {
            "mix": (3 * hidden if kind == CONVOLUTION else mixer.channels, hidden),
            "z": (mixer.inner, hidden),
            "beta": (mixer.values, hidden),
            "alpha": (mixer.values, hidden),
            "o": (hidden, mixer.inner),
        }
    routed = has_routed(config, layer) or kind == EXPERTS
    inner = config.get(architecture.routed_inner if routed else architecture.inner) or 0
    shared = next((config[name] for name in _SHARED if config.get(name)), 0)
    experts = config.get("num_experts") or config.get("num_local_experts") or config.get("n_routed_experts")
    found |= {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
    found |= {"dense_gate": (shared, hidden), "dense_up": (shared, hidden), "dense_down": (hidden, shared)}
    return found | {"dense_scale": (1, hidden), "router": (experts or 0, hidden)}


def vector_sizes(config: Mapping[str, Any], layer: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of each vector of a layer's mixer, by its place."""
    kind = config["layer_types"][layer]
    mixer = mixer_of(config, kind) if has_state(kind) else Mixer(0, 0)
    shapes: dict[str, tuple[int, ...]] = {
        "conv": (mixer.channels, mixer.width),
        "conv_biases": (mixer.channels,),
        **dict.fromkeys(("decays", "step_biases", "skips"), (mixer.values,)),
        "state_norms": (mixer.value_size if kind == DELTA_NET else mixer.inner,),
        "score_biases": (sizes(config, layer)["router"][0],),
    }
    return {place: shapes[place] for place in own_names(config, layer) if place in VECTORS}
