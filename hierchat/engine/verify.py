"""Verification: walk down the draft tree along the target's own choices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hierchat.config import GenerationSettings
from hierchat.engine.sampler import Counts, choose
from hierchat.engine.target import Rows


@dataclass(frozen=True, slots=True)
class Verified:
    """What a block brought."""

    nodes: tuple[int, ...]
    """Path of the block's nodes that stand, root first."""
    tokens: tuple[int, ...]
    """The target's choices: one per node of the path; all but the last (the bonus token) were drafted."""


def verify(
    rows: Rows,
    tokens: Sequence[int],
    parents: Sequence[int],
    position: int,
    settings: GenerationSettings,
    counts: Counts,
) -> Verified:
    """The longest accepted path and its bonus token.

    `rows` [nodes, vocabulary] are the logits after each node of the block; node 0 is the committed text's last token,
    the others are drafts. `position` is that of the token chosen after node 0. `counts` gains the chosen tokens.
    """
    children: dict[tuple[int, int], int] = {}
    for node in range(1, len(tokens)):
        children.setdefault((parents[node], tokens[node]), node)
    path: list[int] = [0]
    chosen: list[int] = []
    while True:
        token = choose(rows[path[-1]], position + len(chosen), settings.seed, settings, counts)
        chosen.append(token)
        counts.add(token)
        following = children.get((path[-1], token))
        if following is None:
            return Verified(tuple(path), tuple(chosen))
        path.append(following)
