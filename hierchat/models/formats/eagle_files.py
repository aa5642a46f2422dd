"""Read EAGLE-3 heads (arXiv 2503.01840) from folders of SpecForge and speculators, and llama.cpp's GGUF files.

A head is a layer like Llama's whose attention reads a token's embedding and a state side by side. `fc` makes that state
of the target's own behind some of its layers; further ahead it is what the layer itself computed. `d2t` tells by how
much a token's number is higher in the target than among the head's outputs; `t2d` marks the same tokens. In GGUF files
`d2t` has the target's numbers themselves, and rotary positions pair neighbours in queries and keys."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hierchat.language import later
from hierchat.models.architectures.families import ARCHITECTURES, HEAD, ROPE_FACTORS
from hierchat.models.architectures.model_config import expected
from hierchat.models.formats.blocks import TYPES
from hierchat.models.formats.gguf_families import Family, halves
from hierchat.models.formats.gguf_head import Head, read_head
from hierchat.models.formats.gguf_module import raw_rows, unpacked
from hierchat.models.formats.mtp_layer import read_tensors
from hierchat.models.progress import NONSENSE, BrokenFileError, UnsupportedError

_SHAPE = (
    "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_act",
    "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters", "max_position_embeddings", "attention_bias",
    "mlp_bias",
)  # fmt: skip
ASSISTANTS = "gemma4_assistant", "gemma4_unified_assistant"  # engine/torch/assistant_head.py
_NUMBERS, _MAP = "eagle_aux_hidden_state_layer_ids", "d2t"
EAGLE = "eagle3"
_GGUF = Family(
    EAGLE,
    ("llama",),
    needs={name: name for name in ("target_hidden_size", "vocab_size")},
    may={name: name for name in ("norm_before_fc", "norm_before_residual")},
)
_ONES = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "vocab_size")
_LLAMA = [one.name for one in expected(ARCHITECTURES["llama"], {**dict.fromkeys(_ONES, 1), "head_dim": 2})]
_OWN_NAMES = {name.gguf: name.transformers.removeprefix("model.") for name in _LLAMA} | {
    "enc.output_norm.weight": "input_norm.weight",
    "blk.0.attn_norm_2.weight": "layers.0.hidden_norm.weight",
}
"""What speculators calls the tensors of a GGUF file; others have the same name."""


@dataclass(frozen=True, slots=True)
class EagleConfig:
    """Describe a head: `shape` as LlamaConfig takes it, the target's tokens (`vocabulary`) and those that it can draft
    (`outputs`), behind how many `layers` it reads the target's states, of `state` numbers each, and the names of its
    `options`: norm_before_residual, norm_before_fc, norm_output (further ahead it reads its normed state)."""

    shape: Mapping[str, Any]
    vocabulary: int
    outputs: int
    layers: tuple[int, ...]
    state: int
    options: frozenset[str]


def says_head(folder: Path) -> dict[str, Any] | None:
    """Return the configuration of a head or assistant in a folder or file, or None. Raises BrokenFileError."""
    if folder.is_file():
        return _said_in(folder, head) if (head := read_head(folder)).architecture == EAGLE else None
    with suppress(OSError, ValueError, AttributeError):
        said: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        eagle = EAGLE in f"{said.get('speculators_model_type')} {said.get('architectures')}".lower()
        return said if eagle or said.get("model_type") in ASSISTANTS else None
    return None


def _said_in(gguf: Path, head: Head) -> dict[str, Any]:
    """Read the configuration of a GGUF file's head; what rotary frequencies are divided by there becomes LongRoPE."""
    parts = {tensor.name: tensor for tensor in head.tensors}
    try:
        said = _GGUF.config(head)
        said[_NUMBERS] = head.of_layers("target_layers") or head.of_layers("extract_layers")  # older files
        said["draft_vocab_size"] = parts[HEAD.gguf].shape[-1] if HEAD.gguf in parts else None
        if ROPE_FACTORS in parts:
            factors = unpacked(gguf, parts[ROPE_FACTORS]).tolist()
            scaled = {"short_factor": factors, "long_factor": factors, "attention_factor": 1.0}
            said["rope_parameters"] |= {"rope_type": "longrope", **scaled}
    except NONSENSE as error:
        raise BrokenFileError(later("its configuration makes no sense")) from error
    return said


def read_config(said: Mapping[str, Any], target: Any) -> EagleConfig:
    """Read the configuration of a head for a target by that one's configuration of texts. Raises UnsupportedError where
    it does not fit, BrokenFileError where it makes no sense."""
    size, tokens, layers = target.hidden_size, target.vocab_size, target.num_hidden_layers
    try:
        inner, shape = said.get("eagle_config") or {}, said.get("transformer_layer_config") or said
        numbers = [2, layers // 2, layers - 3]
        if own := said.get(_NUMBERS):  # as vLLM counts: the layer that reads the state
            numbers = own
        elif own := inner.get(_NUMBERS):  # as SGLang does: the layer that the state comes out of
            numbers = [number + 1 for number in own]
        options = {"norm_before_residual": shape is not said, **inner, **said}
        found = EagleConfig(
            shape={name: shape[name] for name in _SHAPE if shape.get(name) is not None},
            vocabulary=int(shape["vocab_size"]),
            outputs=int(said.get("draft_vocab_size") or shape["vocab_size"]),
            layers=tuple(map(int, numbers)),
            state=int(said.get("target_hidden_size") or shape["hidden_size"]),
            options=frozenset(name for name, value in options.items() if value is True),
        )
        fits = len(numbers) > 1 and 0 <= min(found.layers) <= max(found.layers) <= layers
    except NONSENSE as error:
        raise BrokenFileError(later("its configuration makes no sense")) from error
    if (known := found.vocabulary, state := found.state) != (tokens, size):
        raise UnsupportedError(
            later(f"it was made for {known} tokens and states of {state}, not for {tokens} and {size}")
        )
    if not fits:
        read = ", ".join(map(str, numbers))
        raise UnsupportedError(later(f"it reads states behind layers {read}, the model has {layers}"))
    return found


def head_tensors(path: Path, config: EagleConfig, dtype: Any) -> dict[str, Any]:
    """Read the tensors of a head by speculators' names, those of a GGUF file unpacked to a dtype. Raises
    UnsupportedError, BrokenFileError, and what safetensors raise."""
    if not path.is_file():
        return read_tensors(path, _own_name)
    import torch

    found = dict[str, Any]()
    for tensor in read_head(path).tensors:
        name = _OWN_NAMES.get(tensor.name, tensor.name)
        if name == _MAP and tensor.type == "I64":
            numbers = raw_rows(path, tensor).view("<i8").reshape(-1)
            found[name] = torch.from_numpy(numbers - np.arange(len(numbers)))
        elif (odd := tensor.type) not in TYPES:
            raise UnsupportedError(later(f"its tensors are in {odd}"))
        elif name != ROPE_FACTORS:
            try:
                floats = unpacked(path, tensor)
                if name.endswith(("q_proj.weight", "k_proj.weight")):
                    floats = halves(len(floats) // config.shape["head_dim"]).make(floats)
            except NONSENSE as error:
                raise BrokenFileError(later("its configuration makes no sense")) from error
            found[name] = torch.from_numpy(floats).to(dtype)
    return found


def _own_name(name: str) -> str | None:
    """Return what speculators calls a tensor; None for one that is computed anew."""
    own = name.removeprefix("model.").replace("midlayer.", "layers.0.")
    return None if own.endswith("inv_freq") else own


def take_known(found: dict[str, Any], config: EagleConfig) -> NDArray[np.int64] | None:
    """Take the map of the vocabulary out of a head's tensors: the target's token of each output; None where the two
    are the same. Raises BrokenFileError."""
    offsets, mask = found.pop(name := _MAP, None), found.pop("t2d", None)
    if offsets is None:
        if config.outputs == config.vocabulary:
            return None
        raise BrokenFileError(later(f"the file lacks {name}"))
    whole = not (offsets.is_floating_point() or offsets.is_complex()) and offsets.shape == (config.outputs,)
    given = offsets.long().numpy() if whole and config.outputs else np.array([-1])
    # Each in turn before they are added, which could overflow
    near = (given >= -config.outputs).all() and (given < config.vocabulary).all()
    known = np.arange(len(given)) + given if near else np.array([-1])
    wrong = known[0] < 0 or known[-1] >= config.vocabulary or (np.diff(known) <= 0).any()
    if wrong or (mask is not None and not np.array_equal(mask.bool().numpy().nonzero()[0], known)):
        raise BrokenFileError(later("its map of the vocabulary (d2t, t2d) does not list tokens in order"))
    return known
