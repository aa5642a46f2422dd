"""Write and read draft heads: the weights of one decoder layer, as safetensors by transformers' names.

A head predicts tokens from the target's hidden states, after EAGLE (Li et al., 2024, arXiv 2401.15077) and the MTP
layer of DeepSeek-V3 (arXiv 2412.19437): beside the layer it has `fc`, which joins a token's embedding and the state
before it, a norm of each, and an output over the tokens that it knows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field
from safetensors import SafetensorError
from safetensors.numpy import load, save

from hierchat.models.architectures.families import ARCHITECTURES, EMBEDDING, HEAD, Name
from hierchat.models.architectures.model_config import expected
from hierchat.models.formats.assemble import Rows, assemble, fitting
from hierchat.models.formats.block_model import BlockModel
from hierchat.models.formats.blocks import Blocks, floats_of, pack, packed
from hierchat.models.progress import NONSENSE, BrokenFileError

Floats = NDArray[np.float32]

CONFIG, CARD = "config.json", "draft_head"
"""Entries of the metadata."""
FC, EMBEDDING_NORM, HIDDEN_NORM = "fc.weight", "enorm.weight", "hnorm.weight"
KNOWN = "d2t"
"""Which of the target's tokens each output is for; missing where it is all of them, in order."""


BITS, PACKED = 4, "Q4_1"
"""Matrices are computed in blocks of 4 bits, since a forward takes as long as its weights take to be read; small files
hold them so, too."""


class HeadCard(BaseModel, frozen=True):
    """Describe a draft head."""

    target: str = Field(description="model_key of the model that it drafts for")
    model: str = Field(default="", description="its name")
    tokens: int = Field(default=0, ge=0, description="tokens of text that it was trained on")
    minutes: float = Field(default=0.0, ge=0)
    accuracy: tuple[float, ...] = Field(
        default=(), description="share of held-out tokens that it has right, one, two and more places ahead"
    )

    @property
    def length(self) -> float:
        """Return the tokens of a forward over a chain of its drafts, 1.0 without: on texts that it never saw."""
        right, length = 1.0, 1.0
        for one in self.accuracy:
            right *= one
            length += right
        return length


@dataclass(frozen=True, slots=True)
class HeadWeights:
    """Weights of a draft head. `layer`: a model of one layer, whose embedding is the target's; it reads the sum of
    `fc` [hidden, hidden] times a token's embedding and times the state before it, each behind its norm of `norms`
    [hidden]; `known` [outputs]: the token of each output, None where all are there."""

    card: HeadCard
    layer: BlockModel
    fc: tuple[Blocks, Blocks]
    norms: tuple[Floats, Floats]
    known: NDArray[np.int64] | None


def to_bytes(
    card: HeadCard, config: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]], small: bool = False
) -> bytes:
    """Return a head as a file of safetensors, with the config.json of its layer and its card among the metadata.
    `small`: in the blocks that it is computed in, a third of the size; training should not go on from there."""
    written = {
        name: packed(np.asarray(one, np.float32), BITS)[1] if small and one.ndim == 2 else one
        for name, one in tensors.items()
    }
    return save(written, {CONFIG: json.dumps(config), CARD: card.model_dump_json()})


def card_of(data: bytes) -> HeadCard | None:
    """Return the description of a head; None where that cannot be read."""
    try:
        return HeadCard.model_validate_json(_metadata(data)[CARD])
    except (ValueError, LookupError, TypeError):
        return None


def tensors_of(data: bytes) -> dict[str, NDArray[Any]]:
    """Return the tensors of a head by name; bytes are blocks of PACKED. Raises BrokenFileError."""
    try:
        found: dict[str, NDArray[Any]] = load(data)
        return {name: floats_of(PACKED, one) if one.dtype == np.uint8 else one for name, one in found.items()}
    except (SafetensorError, AssertionError, *NONSENSE) as error:
        raise BrokenFileError(f"The draft head is damaged: {error}. Train it again.") from error


def read_head(data: bytes, target: BlockModel) -> HeadWeights:
    """Read a head for a target, rounded to blocks of 4 bits. Raises BrokenFileError where it is damaged, or of a model
    of another size."""
    tensors = tensors_of(data)
    try:
        said = _metadata(data)
        config = {**json.loads(said[CONFIG]), "num_hidden_layers": 1}
        return _head(HeadCard.model_validate_json(said[CARD]), config, tensors, target)
    except NONSENSE as error:
        raise BrokenFileError(f"The draft head cannot be used: {error}. Train it again.") from error


def _metadata(data: bytes) -> dict[str, str]:
    """Return the metadata of safetensors: JSON behind its length in 8 bytes."""
    return dict(json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"])


def _head(
    card: HeadCard, config: dict[str, Any], tensors: Mapping[str, NDArray[Any]], target: BlockModel
) -> HeadWeights:
    size, tokens = target.config["hidden_size"], target.head.rows
    if config["hidden_size"] != size:
        raise ValueError(f"it is of a model of {config['hidden_size']} numbers a state, this one has {size}")

    def tensor(name: str, *shape: int) -> Floats:
        if name not in tensors:
            raise ValueError(f"it lacks {name}")
        found = np.asarray(tensors[name], np.float32)
        if shape and found.shape != shape:
            raise ValueError(f"{name} has the shape {found.shape}, not {shape}")
        if not np.isfinite(found).all():
            raise ValueError(f"{name} holds what is no number")
        return found

    known = None
    if KNOWN in tensors:
        known = np.asarray(tensors[KNOWN], np.int64)
        if known.ndim != 1 or not known.size or known.min() < 0 or known.max() >= tokens:
            raise ValueError(f"its {KNOWN} names tokens that the model's {tokens} do not have")
    if HEAD.transformers in tensors:
        tensor(HEAD.transformers, tokens if known is None else len(known), size)

    def matrix(name: Name, order: Rows | None) -> Blocks:
        if name == EMBEDDING:
            return target.embedding
        if name == HEAD and HEAD.transformers not in tensors:  # it writes by the target's own output
            return target.head if known is None else pack(target.head.floats(known), BITS)
        weights = fitting(name, 0, tensor, shapes)
        return pack(weights if order is None else weights[order], BITS)

    architecture = ARCHITECTURES[config["model_type"]]
    shapes = {one.name: one.shape for one in expected(architecture, {**config, "vocab_size": tokens})}
    layer = assemble(
        architecture,
        config,
        lambda name: fitting(name, 0, tensor, shapes),
        matrix,
        tied=False,
        norm_offset=architecture.norm_offset,
        interleaved_rope=architecture.interleaved_rope,
    )
    of_embedding, of_state = (pack(half, BITS) for half in np.split(tensor(FC, size, 2 * size), 2, axis=1))
    norms = tensor(EMBEDDING_NORM, size), tensor(HIDDEN_NORM, size)
    return HeadWeights(card, layer, (of_embedding, of_state), norms, known)
