"""The draft: the target with fewer layers and fewer tokens, before it has learned anything."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


def make_student(target: Any, known: NDArray[np.int64], layers: int) -> Any:
    """A module of the target's class with `layers` of its layers, spread over its depth from the first on, and the
    embeddings of `known` tokens and of one more, which is the mean of all others."""
    config, parts = target.config, target.model
    fewer = {"num_hidden_layers": layers, "vocab_size": len(known) + 1, "tie_word_embeddings": True}
    left_out = dict.fromkeys(("layer_types", "eos_token_id", "bos_token_id", "pad_token_id"))
    student = type(target)(type(config)(**{**config.to_dict(), **fewer, **left_out})).to(dtype=torch.float32)
    with torch.no_grad():
        embedding, rows = parts.embed_tokens.weight.float(), torch.from_numpy(known)
        others = torch.ones(len(embedding), dtype=torch.bool)
        others[rows] = False
        unknown = embedding[others].mean(0, keepdim=True)
        student.model.embed_tokens.weight.copy_(torch.cat([embedding[rows], unknown]))
        student.model.norm.load_state_dict(parts.norm.state_dict())
        chosen = np.linspace(0, config.num_hidden_layers - 1, layers).round().astype(int)
        for layer, origin in zip(student.model.layers, chosen, strict=True):
            layer.load_state_dict(parts.layers[origin].state_dict())
    return student
