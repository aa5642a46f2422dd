"""Read the configuration of a model from the head of its GGUF file, in transformers' terms, and check the file's
tensors against the list that follows from it."""

import math
from collections.abc import Mapping
from typing import Any

from hierchat.models.architectures import families, mixers, model_config
from hierchat.models.architectures.model_config import FULL, SLIDING, Expected, require_plausible
from hierchat.models.formats.blocks import TYPES, UnknownBlockType
from hierchat.models.formats.gguf_families import FAMILIES, GRANITE
from hierchat.models.formats.gguf_head import Head, Tensor, partial_rotary, scaling_of
from hierchat.models.progress import BrokenFileError, UnsupportedError, making_sense

MODEL_TYPES = {
    **{name: architecture.model_type for name, architecture in families.GGUF_ARCHITECTURES.items()},
    "gpt2": "gpt2",
    "starcoder2": "starcoder2",
}
"""Architectures of GGUF files by transformers' name; those that are no entry of the registry run through it."""
READ_BY_TRANSFORMERS = frozenset([
    "gemma2", "gemma3", "gpt2", "llama", "mistral", "phi3", "qwen2", "qwen3", "qwen3moe", "starcoder2",
])  # fmt: skip
"""Architectures whose files transformers, too, can read."""
_KEYS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "max_position_embeddings": "context_length",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
_LAYERS_OF_27B = {"gemma2": 46, "gemma3_text": 62}
"""Layers by which llama.cpp, too, knows the two Gemmas that divide scores by another root than of a head's size."""
_WINDOW_OF_GEMMA_2, _PERIOD_OF_GEMMA_4 = 4096, 6
"""Taken where a file does not name them."""


def gguf_config(head: Head) -> dict[str, Any]:
    """Read a GGUF file's configuration in transformers' terms, as far as we need it; for FAMILIES all of it.
    Raises BrokenFileError for missing or impossible numbers."""
    with making_sense(head.architecture):
        layers = head.of_architecture("block_count")
        require_plausible({"num_hidden_layers": layers})  # others are made from it
        family = FAMILIES.get(head.architecture)
        config = family.config(head) if family else _config(head)
        require_plausible(config)
    return config


def _config(head: Head) -> dict[str, Any]:
    kind = MODEL_TYPES.get(head.architecture, head.architecture.replace("-", "_"))
    window = head.of_architecture("attention.sliding_window")
    if kind == "olmo2" and window:
        kind = "olmo3"
    elif kind == "gemma2":
        window = window or _WINDOW_OF_GEMMA_2
    keys = _KEYS | (GRANITE if kind == "granite" else {})
    found = {
        "model_type": kind,
        **{key: head.of_architecture(name) for key, name in keys.items()},
        "sliding_window": window,
        "query_pre_attn_scalar": _query_scalar(head, kind) if kind in _LAYERS_OF_27B else None,
        **_experts(head, kind),
        "rope_scaling": scaling_of(head),
        "partial_rotary_factor": partial_rotary(head),
        **(_of_gemma4(head) if kind == "gemma4_text" else {}),
    }
    return {key: value for key, value in found.items() if value is not None}


def _experts(head: Head, kind: str) -> dict[str, Any]:
    experts, active = (head.of_architecture(f"expert_{key}") for key in ("count", "used_count"))
    width = head.of_architecture("expert_feed_forward_length")
    match kind:
        case "gpt_oss":
            found = {"num_local_experts": experts, "num_experts_per_tok": active}
            return found | ({"intermediate_size": width} if width else {})
        case "gemma4_text":
            found = {"num_experts": experts, "top_k_experts": active, "moe_intermediate_size": width}
            return {**found, "enable_moe_block": bool(experts)}
        case "qwen3_moe":
            if not width and active:
                width = head.of_architecture("feed_forward_length") // active
            found = {"num_experts": experts, "num_experts_per_tok": active, "moe_intermediate_size": width}
            return {**found, "norm_topk_prob": True}  # as llama.cpp has it, whose files do not say
    return {"num_local_experts": experts}


def _of_gemma4(head: Head) -> dict[str, Any]:
    layers, tensors = head.of_architecture("block_count") or 0, {tensor.name for tensor in head.tensors}
    every = head.of_architecture("attention.sliding_window_pattern") or _PERIOD_OF_GEMMA_4
    windowed = head.of_layers("attention.sliding_window_pattern") or [
        bool((layer + 1) % every) for layer in range(layers)
    ]
    full = [layer for layer, has_window in enumerate(windowed) if not has_window]
    wide = head.of_layers("feed_forward_length")
    key_values = head.of_layers("attention.head_count_kv")
    found = {
        "layer_types": [SLIDING if has_window else FULL for has_window in windowed],
        "head_dim": head.of_architecture("attention.key_length_swa"),
        "global_head_dim": head.of_architecture("attention.key_length"),
        "attention_k_eq_v": bool(full) and families.MATRICES["v"].of(full[0]).gguf not in tensors,
        "num_kv_shared_layers": head.of_architecture("attention.shared_kv_layers") or 0,
        "hidden_size_per_layer_input": head.of_architecture("embedding_length_per_layer_input") or 0,
        "use_double_wide_mlp": len(set(wide)) > 1,
        "hidden_activation": "gelu_pytorch_tanh",
    }
    if wide:
        found["intermediate_size"] = wide[0]
    if key_values:
        found["num_key_value_heads"] = key_values[windowed.index(True) if any(windowed) else 0]
        found["num_global_key_value_heads"] = key_values[full[0]] if full else None
    return found


def _query_scalar(head: Head, kind: str) -> int | None:
    """Return the square of what Gemma divides scores by, which its files do not say."""
    if head.of_architecture("block_count") == _LAYERS_OF_27B[kind]:
        return int(head.of_architecture("embedding_length") // head.of_architecture("attention.head_count"))
    return head.of_architecture("attention.key_length")


WHOLE = frozenset(families.GGUF_ARCHITECTURES) - {"gemma2", "gemma3", *FAMILIES}
"""Architectures of GGUF files of which `whole_config` has everything that the CPU engine reads."""


def completed(config: Mapping[str, Any], head: Head) -> dict[str, Any]:
    """Complete transformers' reading of a GGUF file: add scaled rotary positions, take away a window that it adds."""
    own = gguf_config(head)
    scaled = own.pop("rope_scaling", {})
    parameters = config.get("rope_parameters") or {}
    parameters = parameters | ({FULL: parameters[FULL] | scaled} if FULL in parameters else scaled)
    return {**config, "sliding_window": None, **own, "rope_parameters": parameters}


def whole_config(head: Head) -> dict[str, Any] | None:
    """Return config.json and generation_config.json in one, as transformers has them; None where it alone can."""
    if head.architecture in FAMILIES:
        return {**mixers.completed(gguf_config(head)), **special_tokens(head)}
    shapes = {tensor.name: tensor.shape for tensor in head.tensors}
    epsilon = head.of_architecture("attention.layer_norm_rms_epsilon")
    if head.architecture not in WHOLE or families.EMBEDDING.gguf not in shapes or epsilon is None:
        return None
    own = gguf_config(head)
    architecture = families.ARCHITECTURES[own["model_type"]]
    if architecture.optional_biases:
        own["attention_bias"] = families.MATRICES["q"].of(0, "bias").gguf in shapes
    if own.get("hidden_size_per_layer_input"):
        own["vocab_size_per_layer_input"] = shapes[families.EMBEDDING.gguf][-1]
    scaled = own.pop("rope_scaling", {})
    return {
        "sliding_window": None,
        **own,
        "hidden_act": "silu",
        "rms_norm_eps": epsilon,
        "rope_parameters": _rope_parameters(architecture, head, scaled),
        "tie_word_embeddings": families.HEAD.gguf not in shapes,
        "vocab_size": shapes[families.EMBEDDING.gguf][-1],
        **special_tokens(head),
    }


def _rope_parameters(
    architecture: families.Architecture, head: Head, scaled: dict[str, Any]
) -> dict[str, Any]:
    local = head.of_architecture("rope.freq_base_swa")
    base = head.of_architecture("rope.freq_base") or architecture.rope_base
    given = {"rope_type": "default", "rope_theta": base}
    if architecture.full_head_dim:  # read_gguf finds out which part of a head is rotated
        scaled, local = {"rope_type": "proportional"}, local or architecture.local_rope_base
    windowed = given | ({"rope_theta": local} if local else {})
    return {FULL: given | scaled, SLIDING: windowed} if architecture.local_rope_base else given | scaled


def special_tokens(head: Head) -> dict[str, Any]:
    """Return the tokens that begin, pad and end texts, also where there are none: transformers would make some up."""
    keys = {"bos_token_id": "bos", "pad_token_id": "padding"}
    found = {name: head.values.get(f"tokenizer.ggml.{key}_token_id") for name, key in keys.items()}
    return {**found, "eos_token_id": end_tokens(head)}


def end_tokens(head: Head) -> int | list[int] | None:
    """Return the tokens that end a text, a turn or a message, as a generation configuration has them."""
    found = (head.values.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom"))
    ends = list(dict.fromkeys(end for end in found if end is not None))
    return ends if len(ends) > 1 else next(iter(ends), None)


# Tensors, checked before they are read
FLOATS = ("F32", "F16", "BF16")
"""Types of tensors that are no matrices."""


def expected_of(config: Mapping[str, Any], head: Head) -> dict[str, Expected]:
    """Return the tensors that a file must or may have, by name. Raises ValueError or KeyError."""
    embedding = next((one.shape[-1] for one in head.tensors if one.name == families.EMBEDDING.gguf), 0)
    config = {
        **mixers.completed(config),
        "vocab_size": head.vocabulary or config.get("vocab_size") or embedding or 1,
    }
    wanted = {one.name.gguf: one for one in model_config.expected(config)}
    # Keys and values of layers that use others' may be there, too; nobody reads them
    for one in model_config.expected({**config, "num_kv_shared_layers": 0}):
        wanted.setdefault(one.name.gguf, one._replace(optional=True))
    turned = model_config.rotary_layouts(config)[0].offset
    for name in families.FACTORS:
        wanted[name] = Expected(families.Name("", name), (turned,), optional=True)
    return wanted


def require_shapes(head: Head, wanted: Mapping[str, Expected], name: str) -> None:
    """Check the shape and type of each listed tensor. Raises BrokenFileError, UnsupportedError."""
    for tensor in head.tensors:
        if one := wanted.get(tensor.name):
            shape = tensor.shape[::-1]
            squeezed = [size for size in shape if size != 1] == [size for size in one.shape if size != 1]
            in_one_row = len(one.shape) == 1 and math.prod(shape) == one.shape[0]
            if not (one.loose and (squeezed or in_one_row)):
                require_shape(tensor, one.shape, name)
            require_type(tensor, name, matrix=one.matrix)


def require_shape(tensor: Tensor, shape: tuple[int, ...], name: str) -> None:
    """Check a tensor's shape, row length last; leading dimensions of one do not count. Raises BrokenFileError."""
    if _plain(tensor.shape[::-1]) != _plain(shape):
        found, right = (" x ".join(map(str, one)) for one in (tensor.shape[::-1], shape))
        raise BrokenFileError(
            f"{name} does not fit what it says of the model: its tensor {tensor.name} is {found}, not {right}. "
            "Choose another file."
        )


def _plain(shape: tuple[int, ...]) -> tuple[int, ...]:
    ones = next((at for at, size in enumerate(shape) if size != 1), len(shape))
    return shape[ones:]


def require_type(tensor: Tensor, name: str, *, matrix: bool) -> None:
    """Check the type of a tensor's numbers. Raises UnsupportedError."""
    if tensor.type not in TYPES:
        raise UnsupportedError(f"{name}: {tensor.name} has {UnknownBlockType(tensor.type)}.")
    if not matrix and tensor.type not in FLOATS:
        raise UnsupportedError(
            f"{name}: {tensor.name} is in {tensor.type}; it is read in {', '.join(FLOATS)} alone."
        )


def foreign(head: Head, wanted: Mapping[str, Expected]) -> str | None:
    """Return a tensor of a file that the list lacks, None if there is none. MTP layers do not count."""
    total = head.of_architecture("block_count") or 0
    guessing = range(total - (head.of_architecture("nextn_predict_layers") or 0), total)
    behind = tuple(f"blk.{layer}." for layer in guessing)
    others = (one.name for one in head.tensors if one.name not in wanted and not one.name.startswith(behind))
    return min(others, default=None)


def require_all(head: Head, wanted: Mapping[str, Expected], name: str) -> None:
    """Check that a file has every tensor that it must have, and no other. Raises BrokenFileError, UnsupportedError."""
    there = {tensor.name for tensor in head.tensors}
    if missing := min(
        (key for key, one in wanted.items() if not one.optional and key not in there), default=None
    ):
        raise BrokenFileError(f"{name} lacks the tensor {missing}. Fetch or copy it again.")
    if other := foreign(head, wanted):
        raise UnsupportedError(f"{name} has the tensor {other}, which such a model does not have.")
