"""The draft: the target with fewer layers and fewer tokens, before it has learned anything."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hierchat.models.progress import UnsupportedError


def make_student(target: Any, known: NDArray[np.int64], layers: int) -> Any:
    """A module of the target's class with `layers` of its layers, spread over its depth from the first on, and the
    embeddings of `known` tokens and of one more, which is the mean of all others. Float32, on the target's device.

    Raises UnsupportedError where the target is not built like Llama, or has fewer layers.
    """
    config = target.config
    parts: Any = getattr(target, "model", None)
    if not all(hasattr(parts, name) for name in ("layers", "embed_tokens", "norm")):
        raise UnsupportedError(
            f"No draft can be distilled from a {config.model_type} model; it takes one like Llama."
        )
    if not 1 <= layers <= config.num_hidden_layers:
        raise UnsupportedError(
            f"The target has {config.num_hidden_layers} layers; give --layers between 1 and that."
        )
    own = type(config)(
        **{
            **config.to_dict(),
            "num_hidden_layers": layers,
            "vocab_size": len(known) + 1,
            "layer_types": None,
            "tie_word_embeddings": True,
            "eos_token_id": None,
            "bos_token_id": None,
            "pad_token_id": None,
        }
    )
    student = type(target)(own).to(device=target.device, dtype=torch.float32)
    with torch.no_grad():
        embedding = parts.embed_tokens.weight.float()
        others = torch.ones(len(embedding), dtype=torch.bool, device=embedding.device)
        rows = torch.from_numpy(known).to(embedding.device)
        others[rows] = False
        unknown = embedding[others].mean(0, keepdim=True) if others.any() else torch.zeros_like(embedding[:1])
        student.model.embed_tokens.weight.copy_(torch.cat([embedding[rows], unknown]))
        student.model.norm.load_state_dict(parts.norm.state_dict())
        chosen = np.linspace(0, config.num_hidden_layers - 1, layers).round().astype(int)
        for layer, origin in zip(student.model.layers, chosen, strict=True):
            layer.load_state_dict(parts.layers[origin].state_dict())
    return student
