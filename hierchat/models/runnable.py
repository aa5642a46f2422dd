"""Tell from a configuration alone what can be computed by our own engine, and through transformers."""

import math
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, Literal

from hierchat.language import later
from hierchat.models.architectures import families, mixers, model_config
from hierchat.models.architectures.model_config import SCALINGS, rope_scaling, rope_type
from hierchat.models.formats.blocks import TYPES
from hierchat.models.formats.gguf_config import READ_BY_TRANSFORMERS, expected_of, foreign, gguf_config
from hierchat.models.formats.gguf_families import FAMILIES, IN_BLOCKS
from hierchat.models.formats.gguf_head import Head
from hierchat.models.formats.gguf_tokenizer import unknown_tokenizer
from hierchat.models.formats.layouts import BLOCK
from hierchat.models.progress import UnsupportedError

ComputePath = Literal["kernels", "slots", "plain"]
"""What computes a model: our kernels; transformers' modules over our slots; or transformers alone, without drafts."""
NO_DRAFTS = later("Drafts are not possible for this kind of model yet.")
STEPS: dict[ComputePath, str] = {
    "kernels": later("Runs on hierchat's own engine, with drafts."),
    "slots": later("Runs through transformers, with drafts."),
    "plain": later(
        "Runs through transformers, without drafts: they are not possible for this kind of model yet."
    ),
}
"""As sentences for the page."""

# Kinds of models that transformers' own modules compute, by transformers' names
ATTENTION = {model_config.FULL, model_config.SLIDING, "chunked_attention"}
"""Layers that look back at keys and values."""
SLOTTED = frozenset([
    "afmoe", "apertus", "arcee", "aria_text", "axk1", "beam", "biogpt", "bitnet", "cohere", "cohere2",
    "cohere2_moe", "ctrl", "cwm", "dbrx", "deepseek_v3", "diffllama", "dots1", "ernie4_5", "ernie4_5_moe",
    "exaone4", "exaone_moe", "flex_olmo", "flint", "fuyu", "gemma", "gemma2", "gemma3", "gemma3_text",
    "gemma3n_text", "gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text", "glm", "glm4", "glm4_moe",
    "glm4_moe_lite", "gpt-sw3", "gpt2", "gpt_bigcode", "gpt_neox", "gpt_oss", "granite", "granite_swa",
    "granitemoe", "granitemoe_swa", "granitemoeshared", "helium", "hrm_text", "hunyuan_v1_dense", "hunyuan_v1_moe",
    "hy_v3", "hyperclovax", "internlm3", "iquestcoder", "jais2", "kolibri1", "laguna", "llama", "llama4",
    "llama4_text", "longcat_flash", "mellum", "mimo_v2_flash", "minicpm3", "minimax_m2", "minimax_m3_vl_text",
    "ministral", "ministral3", "mistral", "mixtral", "modernbert-decoder", "nanochat", "olmo", "olmo2", "olmo3",
    "olmoe", "opt", "persimmon", "phi", "phi3", "phi4_multimodal", "phimoe", "qwen2", "qwen2_moe", "qwen3",
    "qwen3_moe", "seed_oss", "smollm3", "solar_open", "starcoder2", "vaultgemma", "youtu",
])  # fmt: skip
"""Kinds that are right over our slots, in trees: their modules keep keys and values alone."""
UNGRAPHED = frozenset([
    "axk1", "deepseek_v3", "glm4_moe_lite", "gpt_bigcode", "hrm_text", "llama4", "llama4_text", "longcat_flash",
    "mimo_v2_flash", "minicpm3", "youtu",
])  # fmt: skip
"""Kinds of SLOTTED that CUDA graphs do not compute: keys and values of different sizes; attention in chunks."""
KEEPING_STATES = frozenset([
    "bamba", "granitemoehybrid", "lfm2", "lfm2_moe", "lfm3", "nemotron_h", "olmo_hybrid", "qwen3_5", "qwen3_5_moe",
    "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next",
])  # fmt: skip
"""Kinds whose layers may have a running state (engine/torch/states.py): they take drafts in CUDA graphs alone, with
experts in the blocks of their file alone."""
ALWAYS_EXPERTS = frozenset(["lfm2_moe", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_next"])
"""Kinds of KEEPING_STATES that always have several experts in a layer."""
_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Fields of configurations that count the experts of a layer."""

_NO_CHAT = {
    later("it is made to fill in words, not to chat"): [
        "bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "electra", "ernie",
        "megatron-bert", "reformer", "rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer",
        "xlm", "xlm-roberta", "xlm-roberta-xl", "xmod",
    ],
    later("it is made to turn one text into another, not to chat"): [
        "bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "marian", "mbart", "mvp", "pegasus",
        "plbart", "prophetnet", "t5", "umt5",
    ],
    later("it drafts for one other model, and cannot chat by itself"): ["gemma4_assistant", "gemma4_unified_assistant"],
    later("it is made for sounds or pictures, not to chat"): [
        "git", "got_ocr2", "moshi", "moss_transcribe_diarize", "musicgen", "musicgen_melody", "trocr", "whisper",
    ],
}  # fmt: skip
MADE_FOR_ELSE = {kind: reason for reason, kinds in _NO_CHAT.items() for kind in kinds}
"""Why kinds cannot chat that transformers counts among the models that generate text."""


def unsupported(config: Mapping[str, Any]) -> str | None:
    """Return why our own engine cannot compute a model of this configuration; None if it can."""
    try:
        return _unsupported(model_config.of_text(config))
    except KeyError as error:
        return f"a configuration without {error.args[0]}"
    except ValueError as error:
        return f"a configuration of which {error}"


def _unsupported(config: Mapping[str, Any]) -> str | None:
    kind = str(config.get("model_type"))
    if not (architecture := families.ARCHITECTURES.get(kind)):
        return families.unknown(kind)
    if architecture.mixers:
        if not config.get("layer_types"):
            return "layers that it does not name"
        if reason := _odd_mixers(config):
            return reason
    if (activation := architecture.activation_of(config)) not in families.ACTIVATIONS:
        return f"activation {activation}"
    biases = config.get("attention_bias") and "q" not in architecture.biases
    if biases or config.get("mlp_bias") or config.get("attention_out_bias"):
        return "biases of this architecture"
    if config.get("clip_qkv"):
        return "clipped queries, keys and values"
    if reason := _odd_experts(config):
        return reason
    if (rope := rope_type(rope_scaling(config))) not in SCALINGS:
        return f"rope scaling {rope}"
    known = {model_config.FULL, model_config.SLIDING, *architecture.mixers}
    if others := set(config.get("layer_types") or ()) - known:
        return f"layers of {min(others)}"
    # Pictures alone may look ahead
    if config.get("use_bidirectional_attention") not in (None, False, "vision"):
        return "attention to what comes behind"
    of_layers = sorted(set(model_config.layer_heads(config)))
    widths = [config["hidden_size"], config[architecture.inner]]
    widths += [heads * size for heads, _, size in of_layers]
    inputs = model_config.layer_input_size(config)
    beside = model_config.has_mlp_beside_experts(config)
    if inputs and beside:
        return "inputs of layers beside experts"
    widths += [inputs] * bool(inputs) + [model_config.expert_width(config)] * beside
    odd = any(size % 16 or heads % kv_heads for heads, kv_heads, size in of_layers)
    if odd or any(width % BLOCK for width in widths):
        return f"rows of {', '.join(map(str, widths))} numbers, which are no whole blocks of {BLOCK}"
    return None


def _odd_mixers(config: Mapping[str, Any]) -> str | None:
    if any(config.get(name) for name in ("mamba_proj_bias", "use_bias")):
        return "biases of this architecture"
    if mixers.CONVOLUTION in families.architecture_of(config).mixers and config.get("conv_bias"):
        return "biases of this architecture"
    if config.get("moe_latent_size"):
        return "experts of another width than their layer"
    if (config.get("n_group") or 1) > 1:
        return "groups of experts"
    for kind in sorted({kind for kind in config["layer_types"] if mixers.has_state(kind)}):
        mixer = mixers.mixer_of(config, kind)
        if mixer.keys and mixer.values % mixer.keys:
            return f"{mixer.values} heads that share {mixer.keys} keys"
        if mixer.inner % BLOCK or mixer.channels % BLOCK:
            return f"rows of {mixer.inner} numbers, which are no whole blocks of {BLOCK}"
    return None


def _odd_experts(config: Mapping[str, Any]) -> str | None:
    architecture = families.architecture_of(config)
    experts, active = model_config.experts_of(config)
    if not architecture.experts:
        return "several experts in a layer" if experts else None
    if (architecture.experts_beside_mlp or architecture.mixers) and not experts:
        return None
    if not 0 < active <= experts:
        return f"{experts} experts of which {active} are chosen"
    if config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1:
        return "dense layers among those with experts"
    if (config.get("swiglu_alpha", 1.702), config.get("swiglu_limit", 7.0)) != (1.702, 7.0):
        return "another clamp of the gate"
    return None


def require_supported(config: Mapping[str, Any]) -> None:
    """Check that our own engine computes this configuration. Raises UnsupportedError with the reason."""
    if reason := unsupported(config):
        raise UnsupportedError(f"The CPU engine does not compute {reason}.")


def refused(config: Mapping[str, Any]) -> str | None:
    """Return why a model of this configuration cannot chat through transformers; None if it can."""
    return MADE_FOR_ELSE.get(str(config.get("model_type")))


def slotted(config: Mapping[str, Any], device: str = "cpu") -> bool:
    """Tell whether transformers' modules are right over our slots: then drafts can be verified and taken back."""
    text = _of_text(config)
    if device.startswith("cpu") and _has_experts(text):
        return False  # a product over the rows of an expert gives other bits for another number of rows
    kinds = {str(config.get("model_type")), str(text.get("model_type"))}
    return kinds <= SLOTTED and set(text.get("layer_types") or ()) <= ATTENTION


def graphed(config: Mapping[str, Any], *, in_blocks: bool = False) -> bool:
    """Tell whether CUDA graphs can compute it: over static slots, by the attention of engine/cuda. `in_blocks`: experts
    are computed row by row."""
    text = _of_text(config)
    if {str(config.get("model_type")), str(text.get("model_type"))} <= KEEPING_STATES:
        return in_blocks or not _has_experts(text)
    return slotted(config, "cuda") and str(text.get("model_type")) not in UNGRAPHED


def _drafts(config: Mapping[str, Any], device: str) -> bool:
    return slotted(config, device) or (has_kernels(device) and graphed(config))


def step(config: Mapping[str, Any], *, own: bool, device: str = "cpu") -> ComputePath:
    """Return the Step that computes a model of this configuration. `own`: our own kernels may."""
    if own and not unsupported(config):
        return "kernels"
    return "slots" if _drafts(config, device) else "plain"


def step_of_kind(kind: str, *, own: bool, device: str = "cpu", experts: bool = False) -> ComputePath:
    """Return the Step that computes a model of which only its kind is known, and whether it has `experts`."""
    architecture = families.ARCHITECTURES.get(model_config.KINDS.get(kind, kind))
    if own and architecture:
        return "kernels"
    config = {"model_type": families.RENAMED.get(kind, kind), "num_experts": int(experts)}
    return "slots" if _drafts(config, device) else "plain"


def _has_experts(text: Mapping[str, Any]) -> bool:
    if text.get("model_type") == "nemotron_h":
        blocks = text.get("layers_block_type") or text.get("layer_types") or ()
        return "moe" in blocks or "E" in str(text.get("hybrid_override_pattern"))
    return text.get("model_type") in ALWAYS_EXPERTS or any(map(text.get, _COUNTS))


def _of_text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return config.get("text_config") or config


def gguf_unsupported(head: Head) -> str | None:
    """Return why our own engine cannot compute a GGUF file; None if it can."""
    config = mixers.completed(gguf_config(head))
    if not (architecture := families.GGUF_ARCHITECTURES.get(head.architecture)):
        return families.unknown(config["model_type"])
    if not config.get("num_attention_heads"):
        return "layers of different shapes"
    if not config.get("head_dim") and architecture.full_head_dim:
        return "heads whose sizes are not said"
    if reason := unsupported(config):
        return reason
    if other := foreign(head, expected_of(config, head)):
        return f"tensor {other}, which {architecture.model_type} does not have"
    scaled = rope_type(config.get("rope_scaling") or {})
    if scaled == "longrope" and not any(tensor.name == families.LONG_FACTORS for tensor in head.tensors):
        return "rope scaling longrope without its factors"
    if head.architecture == "granite" and head.of_architecture("rope.scaling.finetuned") is False:
        return "Granite without rotary positions"
    odd = sorted({tensor.type for tensor in head.tensors} - set(TYPES))
    return f"block type {odd[0]}" if odd else None


CARD_TYPES = frozenset(
    ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4"]
)
"""Block types that a GPU multiplies by as they are (engine/cuda/packed.py). Matrices of other types become 16 bits."""


def card_bytes(head: Head) -> int:
    """Return the bytes that a GGUF file's weights take on a GPU that keeps its blocks."""
    return sum(one.size if one.type in CARD_TYPES else 2 * math.prod(one.shape) for one in head.tensors)


def stays_in_blocks(head: Head, device: str) -> bool:
    """Return whether a GPU multiplies by a GGUF file's own blocks (engine/cuda/packed.py)."""
    return (
        has_kernels(device)
        and head.architecture in IN_BLOCKS
        and (head.architecture in FAMILIES or not gguf_unsupported(head))
    )


def kind_stays_in_blocks(kind: str, device: str, *, experts: bool) -> bool:
    """Return `stays_in_blocks` of a file of which only the model's kind is known, and whether it has `experts`."""
    kind = model_config.KINDS.get(kind, kind)
    architecture = families.ARCHITECTURES.get(kind)
    if experts and architecture and not architecture.experts:
        return False
    return has_kernels(device) and any(kind in one.kinds for one in IN_BLOCKS.values())


def has_kernels(device: str) -> bool:
    """Return whether the kernels of engine/cuda run on a device."""
    return device.startswith("cuda") and find_spec("triton") is not None


def gguf_step(head: Head, *, own: bool, device: str = "cpu") -> ComputePath:
    """Return the Step that computes a GGUF file's model."""
    if own and not gguf_unsupported(head):
        return "kernels"
    if stays_in_blocks(head, device):
        return "slots"
    return step(gguf_config(head), own=False, device=device)


def gguf_refused(head: Head, device: str = "cpu") -> str | None:
    """Return why a GGUF file cannot run through transformers on a device; None if it can."""
    if head.architecture in FAMILIES:
        if odd := sorted({tensor.type for tensor in head.tensors} - set(TYPES)):
            return later(f"its tensors are in {odd[0]}")
        return unknown_tokenizer(head)
    if stays_in_blocks(head, device):
        return None
    alone = set(families.GGUF_ARCHITECTURES) - (READ_BY_TRANSFORMERS if head.shards == 1 else set())
    if head.architecture in alone:
        own = gguf_unsupported(head)
        return f"only the CPU engine reads such a file{f', and does not compute {own}' if own else ''}"
    if head.shards > 1:
        return later("no way is known here to read such a model in several files")
    if head.architecture not in READ_BY_TRANSFORMERS:
        known = sorted(READ_BY_TRANSFORMERS | set(families.GGUF_ARCHITECTURES) | set(FAMILIES))
        return later(f"no way is known here to read such a file (known are {', '.join(known)})")
    return later("it has several experts in a layer") if gguf_config(head).get("num_local_experts") else None
