"""Define the steps of running states. triton_states.py takes them for each row by itself, along the row's own path.

One step of a head with state S [key size, value size], key k, query q, value v, fade g and rate b:

    S = exp(g) S,  c = b (v - S' k) for Gated DeltaNet, b v for Mamba 2,  S = S + k c',  out = S' q

Gated DeltaNet: Yang et al., 2024, arXiv 2412.06464. Mamba 2: Dao and Gu, 2024, arXiv 2405.21060."""

from __future__ import annotations

from typing import NamedTuple

import torch

NODES = 96
"""Nodes of a tree, at most."""
UNIT = 1e-6
"""Added to the squared length of queries and keys of Gated DeltaNet before they are divided by it."""


class Walk(NamedTuple):
    """Walks through states, int64 on a device, [walks] each: row w takes `steps` steps from the state of text `owners`.
    A row of a prompt's piece (`reads`) is followed by the rows behind it, and the state where they end is stored. Any
    other row takes a step for each node of its own path, paths[w] - starts[w]. `nodes`: a row's number in its piece."""

    owners: torch.Tensor
    nodes: torch.Tensor
    steps: torch.Tensor
    reads: torch.Tensor
    starts: torch.Tensor
    paths: torch.Tensor


class Steps(NamedTuple):
    """Keys, values, fades and rates of rows. First come rows of trees, by layer, text and node; then rows of pieces."""

    keys: torch.Tensor
    """[rows, key heads, key size]."""
    values: torch.Tensor
    """[rows, heads, value size]."""
    fades: torch.Tensor
    """[rows, heads] logarithms, float32."""
    rates: torch.Tensor
    """[rows, heads], float32."""
