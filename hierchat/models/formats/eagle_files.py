"""Read EAGLE-3 heads (arXiv 2503.01840) from folders as SpecForge and speculators write them.

A head is a layer like Llama's whose attention reads a token's embedding and a state side by side. `fc` makes that state
of the target's own behind some of its layers; further ahead it is what the layer itself computed. `d2t` tells by how
much a token's number is higher in the target than among the head's outputs; `t2d` marks the same tokens."""

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
from hierchat.models.progress import NONSENSE, BrokenFileError, UnsupportedError

_SHAPE = (
    "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_act",
    "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters", "max_position_embeddings", "attention_bias",
    "mlp_bias",
)  # fmt: skip
_NUMBERS = "eagle_aux_hidden_state_layer_ids"


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


def says_eagle(folder: Path) -> dict[str, Any] | None:
    """Return the configuration of a folder that holds an EAGLE-3 head; None for any other."""
    with suppress(OSError, ValueError, AttributeError):
        said: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if "eagle3" in f"{said.get('speculators_model_type')} {said.get('architectures')}".lower():
            return said
    return None


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
        raise BrokenFileError(later("its config.json makes no sense")) from error
    if (known := found.vocabulary, state := found.state) != (tokens, size):
        raise UnsupportedError(
            later(f"it was made for {known} tokens and states of {state}, not for {tokens} and {size}")
        )
    if not fits:
        read = ", ".join(map(str, numbers))
        raise UnsupportedError(later(f"it reads states behind layers {read}, the model has {layers}"))
    return found


def own_name(name: str) -> str | None:
    """Return what speculators calls a tensor; None for one that is computed anew."""
    own = name.removeprefix("model.").replace("midlayer.", "layers.0.")
    return None if own.endswith("inv_freq") else own


def take_known(tensors: dict[str, Any], config: EagleConfig) -> NDArray[np.int64] | None:
    """Take the map of the vocabulary out of a head's tensors: the target's token of each output; None where the two
    are the same. Raises BrokenFileError."""
    offsets, mask = tensors.pop(name := "d2t", None), tensors.pop("t2d", None)
    if offsets is None:
        if config.outputs == config.vocabulary:
            return None
        raise BrokenFileError(later(f"the file lacks {name}"))
    whole = not offsets.is_floating_point() and tuple(offsets.shape) == (config.outputs,)
    known = np.arange(config.outputs) + offsets.long().numpy() if whole else np.array([-1])
    wrong = known[0] < 0 or known[-1] >= config.vocabulary or (np.diff(known) <= 0).any()
    if wrong or (mask is not None and not np.array_equal(mask.bool().numpy().nonzero()[0], known)):
        raise BrokenFileError(later("its map of the vocabulary (d2t, t2d) does not list tokens in order"))
    return known
