"""What loading a model gives."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from hierchat.models.catalogue import Backend, Quantisation

# Which tokenizers mean the same tokens by the same ids.


_known: WeakKeyDictionary[Any, tuple[int, str]] = WeakKeyDictionary()
"""By tokenizer: how many tokens it had, and their tokens_sha256."""


def same_tokens(target_tokenizer: Any, draft_tokenizer: Any) -> str | None:
    """None when both map the same tokens to the same ids, else the reason why the draft model does not fit.

    Compares the maps themselves: configured vocabulary sizes differ by padding within one family.
    """
    if tokens_sha256(target_tokenizer) == tokens_sha256(draft_tokenizer):
        return None
    target, draft = target_tokenizer.get_vocab(), draft_tokenizer.get_vocab()
    if len(target) != len(draft):
        return f"the target has {len(target)} tokens and the draft model {len(draft)}"
    token, number = min(
        (item for item in target.items() if draft.get(item[0]) != item[1]), key=lambda item: item[1]
    )
    there = f"has number {draft[token]}" if token in draft else "does not exist"
    return f"the target's token {token!r} with number {number} {there} in the draft model"


def tokens_sha256(tokenizer: Any) -> str:
    """Names a token-to-id map. Of a large one it takes a third of a second, the first time."""
    count, name = _known.get(tokenizer, (0, ""))
    if count != len(tokenizer):
        name = hashlib.sha256(json.dumps(sorted(tokenizer.get_vocab().items())).encode()).hexdigest()
        _known[tokenizer] = len(tokenizer), name
    return name


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
