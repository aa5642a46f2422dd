"""Tell what each layer of a decoder has, and compute cosines and sines of rotary positions, with their scalings."""

import math
from collections.abc import Iterator, Mapping
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hierchat.models.architectures import families, mixers
from hierchat.models.architectures.families import Name, architecture_of
from hierchat.models.progress import UnsupportedError

# How far back the layers of a decoder see.
FULL, SLIDING = "full_attention", "sliding_attention"
"""What transformers calls the kinds of layers that the CPU engine computes."""


def layer_kinds(config: Mapping[str, Any]) -> list[str]:
    """Return the kind of each layer's attention, in transformers' words, also where an older config.json names none."""
    if kinds := config.get("layer_types"):
        return list(kinds)
    layers = range(config["num_hidden_layers"])
    if not _window(config):
        return [FULL for _ in layers]
    period = config.get("sliding_window_pattern") or architecture_of(config).full_every
    if isinstance(period, str):  # EXAONE's "LLLG"
        period = len(period)
    full = config.get("max_window_layers") or 0  # Qwen's first layers have none
    return [FULL if layer < full or (period and (layer + 1) % period == 0) else SLIDING for layer in layers]


def windows(config: Mapping[str, Any]) -> list[int]:
    """Return how many positions up to its own each layer's window lets a query see; 0: all of them."""
    window = _window(config)
    return [window if kind == SLIDING else 0 for kind in layer_kinds(config)]


def _window(config: Mapping[str, Any]) -> int:
    has_window = config.get("use_sliding_window", architecture_of(config).window)
    return config.get("sliding_window") or 0 if has_window else 0


WITHOUT_SLOTS = {"conv", "linear_attention", "mamba", "mlp", "moe"}
"""transformers' names of layers that have no keys and values."""
Heads = tuple[int, int, int]
"""Query heads, key-value heads, numbers per head."""


def layer_heads(config: Mapping[str, Any]) -> list[Heads]:
    """Return the numbers of heads of each layer; those without a window may have others than those with one."""
    usual = heads_of(config)
    architecture = families.ARCHITECTURES.get(str(config.get("model_type")))
    if not architecture or not architecture.full_head_dim:
        return [usual] * config["num_hidden_layers"]
    heads, kv_heads, size = usual
    if config.get("per_layer_config"):  # as transformers saves it, by the layer's number: "04"
        said = {int(layer): own for layer, own in config["per_layer_config"].items()}
        each = [said.get(layer, {}) for layer in range(config["num_hidden_layers"])]
        return [(heads, own.get("num_key_value_heads", kv_heads), own.get("head_dim", size)) for own in each]
    fewer = config.get("num_global_key_value_heads") if config.get("attention_k_eq_v") else None
    full = heads, fewer or kv_heads, config.get("global_head_dim") or architecture.full_head_dim
    return [full if kind == FULL else usual for kind in layer_kinds(config)]


def sources(config: Mapping[str, Any]) -> list[int]:
    """Return for each layer whose keys and values it reads: its own, or those of the last of its kind with some."""
    layers = config["num_hidden_layers"]
    own = layers - (config.get("num_kv_shared_layers") or 0)
    if own == layers:
        return list(range(layers))
    kinds = layer_kinds(config)
    last = {kind: layer for layer, kind in enumerate(kinds[:own])}
    return [layer if layer < own else last[kinds[layer]] for layer in range(layers)]


def slot_size(config: Mapping[str, Any]) -> int:
    """Return how many numbers the key-value cache holds per position."""
    heads = layer_heads(config)
    shared = families.ARCHITECTURES.get(str(config.get("model_type"))) and config.get("num_kv_shared_layers")
    kept = set(sources(config)) if shared else range(len(heads))
    without = [kind in WITHOUT_SLOTS for kind in config.get("layer_types") or [None] * len(heads)]
    return sum(2 * heads[layer][1] * heads[layer][2] for layer in kept if not without[layer])


def layer_input_size(config: Mapping[str, Any]) -> int:
    """Return the size of the input that each layer has of its own; 0: none."""
    has_inputs = "layer_gate" in architecture_of(config).matrices
    return config.get("hidden_size_per_layer_input") or 0 if has_inputs else 0


def has_mlp_beside_experts(config: Mapping[str, Any]) -> bool:
    """Tell whether layers have routed experts beside a dense MLP."""
    return bool(architecture_of(config).experts_beside_mlp) and experts_of(config)[0] > 0


def expert_width(config: Mapping[str, Any]) -> int:
    """Return the width of an MLP (rows of gate and up), of one expert where a layer has several."""
    architecture = architecture_of(config)
    beside = has_mlp_beside_experts(config)
    if architecture.mixers and experts_of(config)[0]:
        return int(config[architecture.routed_inner])
    return int(config["moe_intermediate_size" if beside else architecture.inner])


def matrices_of(config: Mapping[str, Any], layer: int) -> dict[str, Name]:
    """Return the names of a layer's matrices by their place."""
    architecture = architecture_of(config)
    if architecture.mixers:
        own = mixers.own_names(config, layer)
        return {place: name for place, name in own.items() if place not in families.VECTORS}
    beside = architecture.experts_beside_mlp if has_mlp_beside_experts(config) else {}
    return _without({**architecture.matrices, **beside}, _missing(config, layer))


def norms_of(config: Mapping[str, Any], layer: int) -> dict[str, Name]:
    """Return the names of a layer's norms by their place."""
    return _without(architecture_of(config).norms, _missing(config, layer))


def vectors_of(config: Mapping[str, Any], layer: int) -> dict[str, Name]:
    """Return the names of the vectors of a layer's mixer by their place; hybrids alone have some."""
    own = mixers.own_names(config, layer) if architecture_of(config).mixers else {}
    return {place: name for place, name in own.items() if place in families.VECTORS}


def _without(names: Mapping[str, Name], missing: set[str]) -> dict[str, Name]:
    return {place: name for place, name in names.items() if place not in missing}


def _missing(config: Mapping[str, Any], layer: int) -> set[str]:
    if architecture_of(config).mixers:
        return mixers.missing_norms(config, layer)
    missing = set[str]()
    if not layer_input_size(config):
        missing |= families.LAYER_INPUTS.keys() | families.LAYER_INPUT_NORMS.keys()
    if not has_mlp_beside_experts(config):
        missing |= families.NORMS_BESIDE_MLP.keys()
    if config.get("num_kv_shared_layers") and sources(config)[layer] != layer:
        missing |= {"k", "v", "key_norms"}
    if config.get("attention_k_eq_v") and layer_kinds(config)[layer] == FULL:
        missing.add("v")  # the keys are
    return missing


class MatrixSize(NamedTuple):
    """Size of a matrix of a layer. `experts`: how many there are of it, one for each; 0: it is one of no expert."""

    rows: int
    columns: int
    experts: int = 0

    @property
    def shape(self) -> tuple[int, int]:
        """Return rows, those of all experts together, and columns."""
        return max(self.experts, 1) * self.rows, self.columns


def _joined_rows(sizes: list[MatrixSize]) -> tuple[int, ...]:
    rows = sum(one.rows for one in sizes)
    of_each = (rows, sizes[0].columns)
    return (sizes[0].experts, *of_each) if sizes[0].experts else of_each


class Expected(NamedTuple):
    """Tensor of a model. `shape`: row length last; `matrix`: may be of any block type; `optional`: a file may lack it;
    `loose`: dimensions of one do not count."""

    name: Name
    shape: tuple[int, ...]
    matrix: bool = False
    optional: bool = False
    loose: bool = False


def expected(config: Mapping[str, Any], *, gguf: bool = True) -> Iterator[Expected]:
    """Yield every tensor of a model with the shape that follows from its configuration, as GGUF files or safetensors
    have it. Files and weights are checked against this list, because the kernels check no bounds."""
    architecture = architecture_of(config)
    require_consistent(config)
    hidden, tokens = config["hidden_size"], config["vocab_size"]
    yield Expected(architecture.embedding, (tokens, hidden), matrix=True)
    yield Expected(architecture.last_norm, (hidden,))
    yield Expected(families.HEAD, (tokens, hidden), matrix=True, optional=True)
    layers = config["num_hidden_layers"]
    if inputs := layer_input_size(config):
        own = config.get("vocab_size_per_layer_input") or tokens
        yield Expected(families.LAYER_EMBEDDING, (own, layers * inputs), matrix=True)
        yield Expected(families.LAYER_PROJECTION, (layers * inputs, hidden), matrix=True)
        yield Expected(families.LAYER_PROJECTION_NORM, (inputs,))
    for layer in range(layers):
        sizes, names = matrix_sizes(config, layer), matrices_of(config, layer)
        biases = architecture.biases_of(config)
        same = itemgetter(int(gguf)) if architecture.mixers else tuple
        for name in dict.fromkeys(names.values()):  # several places may be rows of one tensor
            places = [place for place, its in names.items() if same(its) == same(name)]
            shape = _joined_rows([sizes[place] for place in places])
            yield Expected(name.of(layer), shape, matrix=True)
            if architecture.biases and set(places) & set(architecture.biases):
                yield Expected(name.of(layer, "bias"), shape[:-1], optional=not set(places) & set(biases))
        for place, size in norm_sizes(config, layer).items():
            yield Expected(architecture.norms[place].of(layer), (size,))
        if architecture.mixers:
            its_vectors = vectors_of(config, layer)
            for place, shape in mixers.vector_sizes(config, layer).items():
                yield Expected(its_vectors[place].of(layer, ""), shape, loose=True)
        if architecture.sinks:
            yield Expected(architecture.sinks.of(layer), (layer_heads(config)[layer][0],))
        if architecture.scales:
            yield Expected(architecture.scales.of(layer), (1,))
        if has_mlp_beside_experts(config):
            yield Expected(families.ROUTER_NORMS.of(layer, "scale"), (hidden,))
            yield Expected(families.EXPERT_SCALES.of(layer, "scale"), (experts_of(config)[0],))


def matrix_sizes(config: Mapping[str, Any], layer: int) -> dict[str, MatrixSize]:
    """Return the size of each matrix of a layer by its place."""
    architecture = architecture_of(config)
    (heads, kv_heads, size), hidden = layer_heads(config)[layer], config["hidden_size"]
    experts = experts_of(config)[0] if architecture.experts else 0
    beside, inputs = has_mlp_beside_experts(config), layer_input_size(config)
    width = 0 if architecture.mixers else expert_width(config)
    if config.get("use_double_wide_mlp") and not experts and sources(config)[layer] != layer:
        width *= 2
    dense = config[architecture.inner] if beside else 0
    sizes = {
        "q": MatrixSize(heads * size, hidden),
        "k": MatrixSize(kv_heads * size, hidden),
        "v": MatrixSize(kv_heads * size, hidden),
        "o": MatrixSize(hidden, heads * size),
        "gate": MatrixSize(width, hidden, experts),
        "up": MatrixSize(width, hidden, experts),
        "down": MatrixSize(hidden, width, experts),
        "router": MatrixSize(experts, hidden),
        "dense_gate": MatrixSize(dense, hidden),
        "dense_up": MatrixSize(dense, hidden),
        "dense_down": MatrixSize(hidden, dense),
        "layer_gate": MatrixSize(inputs, hidden),
        "layer_out": MatrixSize(hidden, inputs),
    }
    if architecture.mixers:
        named = architecture.matrices
        joined = named.get("q_gate") == named.get("q")  # else there is one number for each head
        sizes["q_gate"] = MatrixSize(heads * size if joined else heads, hidden)
        own = mixers.sizes(config, layer)
        sizes |= {place: MatrixSize(*both) for place, both in own.items()}
        if mixers.has_routed(config, layer) or config["layer_types"][layer] == mixers.EXPERTS:
            experts = sizes["router"].rows
            sizes |= {place: sizes[place]._replace(experts=experts) for place in ("gate", "up", "down")}
    return {place: sizes[place] for place in matrices_of(config, layer)}


def norm_sizes(config: Mapping[str, Any], layer: int) -> dict[str, int]:
    """Return the length of each norm of a layer by its place."""
    heads, kv_heads, size = layer_heads(config)[layer]
    several = (heads, kv_heads) if architecture_of(config).joint_norms else (1, 1)
    own = {"query_norms": several[0] * size, "key_norms": several[1] * size}
    return {place: own.get(place, config["hidden_size"]) for place in norms_of(config, layer)}


def require_consistent(config: Mapping[str, Any]) -> None:
    """Check that the numbers of a configuration fit each other. Raises ValueError, naming one that does not."""
    require_plausible(config)
    layers, shared = config["num_hidden_layers"], config.get("num_kv_shared_layers") or 0
    if shared >= layers:
        raise ValueError(f"its num_kv_shared_layers is {shared} of {layers} layers")
    for key in ("layer_types", "no_rope_layers"):
        if (given := config.get(key)) and len(given) != layers:
            raise ValueError(f"its {key} has {len(given)} entries for {layers} layers")
    for heads, kv_heads, size in set(layer_heads(config)):
        if min(heads, kv_heads, size) < 1 or heads % kv_heads:
            raise ValueError(f"its {heads} heads of {size} numbers share {kv_heads} key-value heads")
    window = _window(config)
    if type(window) is not int or window < 0:
        raise ValueError(f"its sliding_window is {window}")
    experts, active = experts_of(config) if architecture_of(config).experts else (1, 1)
    if experts and not 0 < active <= experts:
        raise ValueError(f"it chooses {active} of {experts} experts")
    for kind in {kind for kind in config.get("layer_types") or () if mixers.has_state(kind)}:
        mixer = mixers.mixer_of(config, kind)
        sizes = mixer[:2] if kind == mixers.CONVOLUTION else mixer
        if min(sizes) < 1 or (mixer.keys and mixer.values % mixer.keys):
            raise ValueError(f"the sizes of its states are {', '.join(map(str, mixer))}")
    layouts = rotary_layouts(config)
    for (_, _, size), kind in zip(layer_heads(config), rope_kinds(config), strict=True):
        pairs, offset, _ = layouts[max(kind, 0)]
        if not 0 <= pairs <= offset <= size - pairs:
            raise ValueError(f"rotary positions turn {2 * pairs} of {size} numbers per head")


def vector_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shape of each vector that a BlockModel has, without "rope_factors", which some have."""
    architecture = architecture_of(config)
    layers, hidden = range(config["num_hidden_layers"]), config["hidden_size"]
    sizes = matrix_sizes(config, 0)
    norms = [norm_sizes(config, layer) for layer in layers]
    found: dict[str, tuple[int, ...]] = {"last_norm": (hidden,)}
    for place in architecture.norms:  # shorter ones are filled up with zeros
        if most := max(one.get(place, 0) for one in norms):
            found[place] = (len(layers), most)
    heads, kv_heads, size = layer_heads(config)[0]
    if biases := architecture.biases_of(config):
        found["biases"] = (len(layers), heads + 2 * kv_heads, size)
    for place in set(biases) - set("qkv"):
        found[f"{place}_biases"] = (len(layers), *_joined_rows([sizes[place]])[:-1])
    if architecture.mixers:
        for layer in layers:
            own = mixers.vector_sizes(config, layer)
            found |= {place: (len(layers), *shape) for place, shape in own.items()}
    if architecture.sinks:
        found["sinks"] = (len(layers), heads)
    if architecture.scales:
        found["scales"] = (len(layers), 1)
    if has_mlp_beside_experts(config):
        found["router_norms"] = (len(layers), hidden)
        found["expert_scales"] = (len(layers), experts_of(config)[0])
    if inputs := layer_input_size(config):
        found["layer_norm"] = (inputs,)
    return found


# Sizes of a decoder, as its config.json gives them.
_MOST = {
    **dict.fromkeys(("altup_num_inputs",), 2**6),
    **dict.fromkeys(("num_hidden_layers", "num_kv_shared_layers"), 2**10),
    **dict.fromkeys(("num_attention_heads", "num_global_key_value_heads", "num_key_value_heads"), 2**12),
    **dict.fromkeys(("global_head_dim", "head_dim"), 2**14),
    **dict.fromkeys(("n_routed_experts", "num_experts", "num_local_experts"), 2**14),
    **dict.fromkeys(("num_experts_per_tok", "top_k_experts"), 2**14),
    **dict.fromkeys(("hidden_size", "hidden_size_per_layer_input"), 2**17),
    **dict.fromkeys(("intermediate_size", "moe_intermediate_size"), 2**20),
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), 2**24),
    **dict.fromkeys(("max_position_embeddings", "original_max_position_embeddings"), 2**31),
}
"""Far above those of the largest models. A file may say more, to have somebody count to it or take as much memory."""
_LEAST = {"hidden_size": 1, "num_hidden_layers": 1, "vocab_size": 1}
_MOST_OF_OTHERS = 2**48
_MAY_BE_INFINITE = "limit"


def require_plausible(config: Mapping[str, Any]) -> None:
    """Check numbers before anything is computed with them. Raises ValueError, naming one that no model can have."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            require_plausible(value)
        for one in value if isinstance(value, list | tuple) else [value]:
            if isinstance(one, Mapping):
                require_plausible(one)
            elif one is not None and not _is_plausible(key, one):
                raise ValueError(f"its {key} is {str(one)[:40]}")


def _is_plausible(key: str, value: Any) -> bool:
    if key in _MOST:
        return type(value) is int and _LEAST.get(key, 0) <= value <= _MOST[key]
    if isinstance(value, float):
        return math.isfinite(value) or (value > 0 and _MAY_BE_INFINITE in key)
    return not isinstance(value, int) or abs(value) <= _MOST_OF_OTHERS


def heads_of(config: Mapping[str, Any]) -> tuple[int, int, int]:
    """Return the numbers of query heads and key-value heads, and the numbers per head."""
    heads = config["num_attention_heads"]
    size = config.get("head_dim") or config["hidden_size"] // heads
    return heads, config.get("num_key_value_heads") or heads, size


def query_scales(config: Mapping[str, Any], positions: int) -> NDArray[np.float32]:
    """Return the factor of the queries at each position, [positions]."""
    divided = 1.0 / math.sqrt(config.get("query_pre_attn_scalar") or heads_of(config)[2])
    scale = config.get("attention_multiplier") or architecture_of(config).query_scale or divided
    rope = config.get("rope_parameters") or {}
    if not (growth := rope.get("llama_4_scaling_beta")):
        return np.full(positions, scale, np.float32)
    passed = np.arange(positions) // rope["original_max_position_embeddings"]
    return (scale * (1.0 + growth * np.log1p(passed))).astype(np.float32)


def experts_of(config: Mapping[str, Any]) -> tuple[int, int]:
    """Return the number of experts in a layer, and how many of them a token activates; 0, 0: it has none."""
    experts = config.get("num_experts") or config.get("num_local_experts") or 0
    if mixers.EXPERTS in (config.get("layer_types") or ()):
        experts = config.get("n_routed_experts") or 0
    if not experts or config.get("enable_moe_block") is False:
        return 0, 0
    return experts, config.get("num_experts_per_tok") or config.get("top_k_experts") or 0


def shared_by_active(config: Mapping[str, Any]) -> bool:
    """Tell whether a token's experts are weighed by a softmax over these alone, not over all experts."""
    return bool(config.get("norm_topk_prob", True))


def chosen_by_logistic(config: Mapping[str, Any]) -> bool:
    """Tell whether experts are chosen by the logistic function of the router's scores and a bias of their own."""
    return config["model_type"] in ("lfm2_moe", "nemotron_h", "nemotron_h_moe")


# Configurations of texts, where a model knows pictures or sounds, too
KINDS = {
    **dict.fromkeys(("gemma4", "gemma4_unified", "gemma4_unified_text"), "gemma4_text"),
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    **families.RENAMED,
}
"""Kinds of models whose texts our own engine computes from safetensors, and as which architecture."""
PREFIX = "model.language_model."
"""Where the tensors of texts stand among others; in place of "model."."""


def of_text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the configuration of texts if it is one of KINDS, else all of it; of hybrids with the kinds of layers."""
    kind = KINDS.get(str(config.get("model_type")))
    if not kind:
        return mixers.completed(config)
    text = config.get("text_config") or config
    tied = text.get("tie_word_embeddings", config.get("tie_word_embeddings", True))
    return mixers.completed({**text, "model_type": kind, "tie_word_embeddings": tied})


# Rotary positions
Angles = NDArray[np.float64]

SCALINGS = ("default", "linear", "llama3", "longrope", "proportional", "yarn")
"""What transformers calls the scalings that `tables` knows."""


def rope_scaling(config: Mapping[str, Any], kind: str = FULL) -> Mapping[str, Any]:
    """Return config.json's rope parameters for layers of a kind: "rope_type", its numbers, perhaps "rope_theta"."""
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return given.get(kind) or given


def rope_type(given: Mapping[str, Any]) -> str:
    """Return the name of the scaling in these rope parameters."""
    said = str(given.get("rope_type") or given.get("type") or "default")
    return "longrope" if "long_factor" in given else said  # which Phi-3 first called "su", and "yarn"


def rotary_dims(config: Mapping[str, Any]) -> int:
    """Return how many numbers of each head rotary positions rotate; the others stay."""
    part = rope_scaling(config).get("partial_rotary_factor") or config.get("partial_rotary_factor")
    return int(heads_of(config)[2] * (part or architecture_of(config).partial_rotary))


class RotaryLayout(NamedTuple):
    """Layout of rotary positions in a head, half-split: `pairs` numbers rotate with those `offset` after them.
    Their frequencies are spread over `frequency_dims` numbers."""

    pairs: int
    offset: int
    frequency_dims: int


def rotary_layouts(config: Mapping[str, Any]) -> list[RotaryLayout]:
    """Return the layout of each of the `rope_tables`."""
    architecture = architecture_of(config)
    size = rotary_dims(config)
    usual = RotaryLayout(size // 2, size // 2, size)
    if not architecture.local_rope_base:
        return [usual]
    proportional = any(rope_type(rope_scaling(config, kind)) == "proportional" for kind in (FULL, SLIDING))
    if not architecture.full_head_dim and not proportional:
        return [usual, usual]
    sizes = dict(zip(layer_kinds(config), (one[2] for one in layer_heads(config)), strict=True))
    found = []
    for kind in (FULL, SLIDING):
        given, size = rope_scaling(config, kind), sizes.get(kind, heads_of(config)[2])
        rotated = int((given.get("partial_rotary_factor") or 1.0) * size)
        if rope_type(given) == "proportional":
            found.append(RotaryLayout(rotated // 2, size // 2, size))
        else:
            found.append(RotaryLayout(rotated // 2, rotated // 2, rotated))
    return found


def rope_kinds(config: Mapping[str, Any]) -> list[int]:
    """Return which of the `rope_tables` rotates the queries and keys of each layer; -1: none."""
    architecture = architecture_of(config)
    seen = windows(config)
    used = [1 if window and architecture.local_rope_base else 0 for window in seen]
    if turned := config.get("no_rope_layers"):  # which tells, despite its name, of those that have some
        return [one if turns else -1 for one, turns in zip(used, turned, strict=False)]
    if every := config.get("no_rope_layer_interval") or architecture.unrotated_every:
        return [-1 if (layer + 1) % every == 0 else one for layer, one in enumerate(used)]
    if architecture.full_unrotated and config.get("sliding_window"):
        return [one if window else -1 for one, window in zip(used, seen, strict=True)]
    return used


def rope_tables(
    config: Mapping[str, Any],
    positions: int,
    factors: NDArray[np.float32] | None = None,
    context_length: int = 0,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Compute cosines and sines, float32 [kinds of layers, positions, most pairs]. `factors` divide the frequencies.
    LongRoPE's factors follow from `context_length` for all texts, so that no key changes while a text grows.
    Raises UnsupportedError for an unknown scaling."""
    architecture, given = architecture_of(config), rope_scaling(config)
    base = given.get("rope_theta") or config.get("rope_theta") or architecture.rope_base
    kinds = rotary_layouts(config)
    if rope_type(given) == "longrope":
        given = {**given, "chosen": _longrope(given, config, context_length or positions)}
    found = [_tables(config, given, base, positions, kinds[0], factors)]
    if architecture.local_rope_base:
        given = (config.get("rope_parameters") or {}).get(SLIDING) or {}
        base = given.get("rope_theta") or config.get("rope_local_base_freq") or architecture.local_rope_base
        found.append(_tables(config, given, base, positions, kinds[1], None))
    most = max(kind.pairs for kind in kinds)
    wide = [[np.pad(one, ((0, 0), (0, most - one.shape[1]))) for one in kind] for kind in found]
    cosines, sines = zip(*wide, strict=True)
    return np.stack(cosines), np.stack(sines)


def _tables(
    config: Mapping[str, Any],
    given: Mapping[str, Any],
    base: float,
    positions: int,
    those: RotaryLayout,
    factors: NDArray[np.float32] | None,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    plain = base ** -(np.arange(0, 2 * those.pairs, 2, dtype=np.float64) / those.frequency_dims)
    kind = rope_type(given)
    attention_factor = 1.0
    if factors is not None:
        frequencies = plain / factors
    elif kind == "default":
        frequencies = plain
    elif kind == "linear":
        frequencies = plain / given["factor"]
    elif kind == "proportional":
        frequencies = plain / (given.get("factor") or 1.0)
    elif kind == "llama3":
        frequencies = _llama3(plain, given)
    elif kind == "yarn":
        frequencies = _yarn(plain, given, config, base)
        attention_factor = given.get("attention_factor") or _yarn_attention_factor(given)
    elif kind == "longrope":
        frequencies, attention_factor = plain / given["chosen"][0], given["chosen"][1]
    else:
        raise UnsupportedError(f"The CPU engine does not compute rope scaling {kind}.")
    angles = np.arange(positions, dtype=np.float64)[:, None] * frequencies
    cosines, sines = np.cos(angles) * attention_factor, np.sin(angles) * attention_factor
    return cosines.astype(np.float32), sines.astype(np.float32)


def _llama3(plain: Angles, given: Mapping[str, Any]) -> Angles:
    """Scale frequencies as Llama 3.1: long waves are stretched, short ones left, those between blended."""
    factor, low, high = given["factor"], given["low_freq_factor"], given["high_freq_factor"]
    trained = given["original_max_position_embeddings"]
    waves = 2 * math.pi / plain
    smooth = np.clip((trained / waves - low) / (high - low), 0.0, 1.0)
    return (1 - smooth) * plain / factor + smooth * plain


def _yarn_attention_factor(given: Mapping[str, Any]) -> float:
    def grown(by: float) -> float:
        return 0.1 * by * math.log(given["factor"]) + 1.0 if given["factor"] > 1 else 1.0

    one, other = given.get("mscale"), given.get("mscale_all_dim")
    return grown(one) / grown(other) if one and other else grown(1.0)


def _longrope(
    given: Mapping[str, Any], config: Mapping[str, Any], context_length: int
) -> tuple[Angles, float]:
    """Return the divisors of frequencies and the factor of cosines and sines in LongRoPE (Ding et al. 2024)."""
    trained = given.get("original_max_position_embeddings") or config["original_max_position_embeddings"]
    factor = given.get("factor") or config["max_position_embeddings"] / trained
    grown = math.sqrt(1 + math.log(factor) / math.log(trained)) if factor > 1 else 1.0
    chosen = given["long_factor"] if context_length > trained else given["short_factor"]
    return np.asarray(chosen, np.float64), given.get("attention_factor") or grown


def _yarn(plain: Angles, given: Mapping[str, Any], config: Mapping[str, Any], base: float) -> Angles:
    """Scale frequencies as YaRN (Peng et al. 2023): a ramp over the dimensions between interpolation and none."""
    trained = given.get("original_max_position_embeddings") or config["max_position_embeddings"]
    size = 2 * len(plain)

    def dimension(rotations: float) -> float:
        return size * math.log(trained / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low, high = dimension(given.get("beta_fast") or 32.0), dimension(given.get("beta_slow") or 1.0)
    if given.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    ramp = np.clip((np.arange(len(plain)) - low) / max(high - low, 0.001), 0.0, 1.0)
    return plain / given["factor"] * ramp + plain * (1 - ramp)
