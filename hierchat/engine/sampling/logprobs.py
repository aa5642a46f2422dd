"""How likely the chosen tokens were, and which others would have been."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hierchat.engine.rows import Rows


class TokenLogprob(NamedTuple):
    """Natural logarithms of probabilities as the model has them: before grammar, penalties, bias and temperature."""

    logprob: float
    likeliest: tuple[tuple[int, float], ...]
    """Tokens in order, the likeliest first."""


def logprobs(rows: Rows, nodes: Sequence[int], tokens: Sequence[int], count: int) -> tuple[TokenLogprob, ...]:
    """Of `tokens`, each chosen behind the node of the same place, with `count` of the likeliest."""
    found = []
    for node, token in zip(nodes, tokens, strict=True):
        row = rows[node].astype(np.float64)
        best = row.max()
        total = best + np.log(np.exp(row - best).sum())
        likeliest = rows.likeliest([node], count)[0].tolist() if count else []
        pairs = tuple((other, float(row[other] - total)) for other in likeliest if other >= 0)
        found.append(TokenLogprob(float(row[token] - total), pairs))
    return tuple(found)
