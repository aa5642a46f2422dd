"""What a family of GGUF files says: its configuration in transformers' terms, and out of which tensors of the file
those of transformers' module are made. llama.cpp's converter is what is undone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hierchat.models.formats.gguf_head import Head

Floats = NDArray[np.float32]
Config = Mapping[str, Any]


def itself(tensor: Floats) -> Floats:
    """As the file has it."""
    return tensor


@dataclass(frozen=True, slots=True)
class Part:
    """How a tensor of the module is made. `of`: names in the file, those of a layer without the layer; none: the one
    that gguf's own table names. `whole`: what stands for it as it is, where the file has it. Dimensions of one are not
    counted.

    Of matrices `make` moves whole rows, or with `columns` whole columns, and computes nothing: so it can be asked which
    go where."""

    make: Callable[..., Any] = itself
    of: tuple[str, ...] = ()
    whole: str = ""
    columns: bool = False


@dataclass(frozen=True, slots=True)
class Family:
    """`kinds`: transformers' names of what its files may be, with pictures and without. `parts`: by how names end in
    transformers, the longest first; what is not named there is as gguf's table says. `unused`: how names of tensors end
    that a file may have and the module has not. `prefixes`: what names begin with in transformers, and in gguf's
    table."""

    gguf: str
    kinds: tuple[str, ...]
    config: Callable[[Head], dict[str, Any]]
    parts: Callable[[Config], Mapping[str, Part]]
    unused: tuple[str, ...] = ()
    prefixes: tuple[str, str] = ("model.", "model.")


def joined(axis: int) -> Callable[..., Floats]:
    """Tensors behind each other."""
    return lambda *tensors: np.concatenate(tensors, axis=axis)


def minus_one(tensor: Floats) -> Floats:
    """Weights of a norm to which transformers adds one; files have the sum."""
    return tensor - np.float32(1)


def logarithm(tensor: Floats) -> Floats:
    """A_log of the decay that files have, which is -exp(A_log)."""
    return np.log(-tensor.astype(np.float64)).astype(np.float32)


def halves(heads: int) -> Part:
    """Rows of queries or keys whose neighbours are rotated together, as transformers has them: in halves."""

    def apart(tensor: Floats) -> Floats:
        pairs = tensor.reshape(heads, -1, 2, *tensor.shape[1:])
        return pairs.swapaxes(1, 2).reshape(tensor.shape)

    return Part(apart)


EXPERTS = {
    "experts.gate_up_proj": Part(
        joined(1), ("ffn_gate_exps.weight", "ffn_up_exps.weight"), "ffn_gate_up_exps.weight"
    ),
    "experts.down_proj": Part(of=("ffn_down_exps.weight",)),
}
"""Of all experts of a layer."""
STATES = {"A_log": Part(logarithm), "dt_bias": Part(of=("ssm_dt.bias",))}
"""Of a layer that keeps a running state."""
SCORE_BIAS = {"e_score_correction_bias": Part(of=("exp_probs_b.bias",))}
"""What is added to experts' scores where they are chosen."""
