"""What loading a model gives."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from hierchat.models.catalogue import Backend, Quantisation
from hierchat.models.load.token_map import tokens_sha256


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """`model` is a BlockModel where the CPU engine computes, a BlockModule where it multiplies for transformers, else a
    transformers module in eval mode.

    `device` and `dtype` as torch names them; `context_length` counts positions. `model_key` is a SHA-256 that names
    the tokens and the weights before quantisation and rounding: history written under it may draft for any precision
    of the same model. `end_ids` are the tokens that end a reply. `note`: why the CPU engine does not compute it, or
    that it was not made to chat.
    """

    name: str
    model: Any
    tokenizer: Any
    device: str
    dtype: str
    quantisation: Quantisation
    backend: Backend
    context_length: int
    model_key: str
    end_ids: frozenset[int]
    note: str = ""


def model_key(tokenizer: Any, identity: str) -> str:
    """Names a model by its tokens and the identity of its weights."""
    return hashlib.sha256(f"{tokens_sha256(tokenizer)}\n{identity}".encode()).hexdigest()
