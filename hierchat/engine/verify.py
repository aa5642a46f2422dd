"""Verification: walk down the draft tree along the target's own choices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hierchat.config import GenerationSettings
from hierchat.engine.rows import Rows
from hierchat.engine.sampling.grammar import Grammar
from hierchat.engine.sampling.sampler import Counts, choose

_PLAIN = GenerationSettings()
_CHANGING = (
    "temperature",
    "grammar",
    "logit_bias",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)


@dataclass(frozen=True, slots=True)
class Verified:
    """What a segment brought."""

    nodes: tuple[int, ...]
    """Path of the segment's nodes that stand, root first."""
    tokens: tuple[int, ...]
    """The target's choices: one per node of the path; all but the last (the bonus token) were drafted."""


def choose_from(
    rows: Rows,
    node: int,
    position: int,
    settings: GenerationSettings,
    counts: Counts | None = None,
    grammar: Grammar | None = None,
) -> int:
    """choose() for a row of a segment, among what `grammar` allows. Where only the likeliest token counts, a device has
    found it already."""
    if _only_likeliest(settings) and (token := rows.best(node)) >= 0:
        return token
    row = grammar.masked(rows[node]) if grammar else rows[node]
    return choose(row, position, settings.seed, settings, counts)


def wait_for(rows: Rows, settings: GenerationSettings) -> None:
    """Wait for a forward on a device, bringing what choose_from will ask for: the only synchronisation of a step."""
    rows.wait(best=_only_likeliest(settings))


def verify(
    rows: Rows,
    tokens: Sequence[int],
    parents: Sequence[int],
    position: int,
    settings: GenerationSettings,
    counts: Counts,
    *,
    first: int = 0,
    grammar: Grammar | None = None,
) -> Verified:
    """The longest accepted path and its bonus token.

    `rows` [nodes, vocabulary] are the logits after each node of the segment; node 0 is the committed text's last token,
    the others are drafts; its row is number `first`, theirs follow. `position` is that of the token chosen after node
    0. `counts` and `grammar` gain the chosen tokens.
    """
    children: dict[tuple[int, int], int] = {}
    for node in range(1, len(tokens)):
        children.setdefault((parents[node], tokens[node]), node)
    path: list[int] = [0]
    chosen: list[int] = []
    while True:
        token = choose_from(rows, first + path[-1], position + len(chosen), settings, counts, grammar)
        chosen.append(token)
        counts.add(token)
        if grammar:
            grammar.take(token)
        following = children.get((path[-1], token))
        if following is None:
            return Verified(tuple(path), tuple(chosen))
        path.append(following)


def _only_likeliest(settings: GenerationSettings) -> bool:
    """Whether the choice is the likeliest token, as the model's logits have it."""
    return all(getattr(settings, name) == getattr(_PLAIN, name) for name in _CHANGING)
