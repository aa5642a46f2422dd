"""Verify a draft tree: follow the target's own choices from its root."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hierchat.config import GenerationSettings
from hierchat.drafting.draft_tree import DraftTree
from hierchat.engine.sampling.grammar import Grammar
from hierchat.engine.sampling.sampler import Counts, choose, top_tokens


class Rows:
    """Hold the logits of a segment's nodes, float32; valid until the sequence's next forward."""

    recorded = False
    """Whether the forward did work that later ones reuse, such as recording a graph: its time is no measure."""

    def __getitem__(self, node: int) -> NDArray[np.float32]:
        """Return the logits behind a node, [vocabulary]."""
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError

    def wait(self, *, best: bool) -> None:
        """Wait until the forward is done. `best`: only best() will be read, so that less need be copied."""

    def best(self, node: int) -> int:
        """Return the node's likeliest token, the first of equals, if it is known without its logits; else -1."""
        return -1

    def likeliest(self, nodes: Sequence[int], count: int) -> NDArray[np.int32]:
        """Return the likeliest tokens in order, as top_tokens does: [nodes, count]."""
        return np.array([top_tokens(self[node], count) for node in nodes])

    def candidates(self, node: int, count: int) -> tuple[NDArray[np.int32], NDArray[np.float32], float]:
        """Return a node's likeliest tokens in order, at most `count`, their logits, and the logarithm of the sum of the
        exponentials of all logits."""
        row = self[node]
        tokens = top_tokens(row, min(count, len(row)))
        best = row[tokens[0]]
        return tokens, row[tokens], float(best) + math.log(np.exp(row - best).sum())

    def hidden(self, nodes: Sequence[int]) -> NDArray[np.float32] | None:
        """Return the hidden state behind the last norm: [nodes, hidden], valid until the runner's next forward. None
        if the runner does not keep it."""
        return None


class ArrayRows(Rows):
    """Hold rows in main memory: [nodes, vocabulary]."""

    def __init__(self, logits: NDArray[np.float32], hidden: NDArray[np.float32] | None = None) -> None:
        """Take logits, and `hidden` [nodes, hidden], where it is known."""
        self._logits = logits
        self._hidden = hidden

    def __getitem__(self, node: int) -> NDArray[np.float32]:
        return self._logits[node]

    def __len__(self) -> int:
        return len(self._logits)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self._logits, dtype, copy=copy)

    def hidden(self, nodes: Sequence[int]) -> NDArray[np.float32] | None:
        return None if self._hidden is None else self._hidden[list(nodes)]


_PLAIN = GenerationSettings()
_CHANGING = (
    "temperature",
    "grammar",
    "logit_bias",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)


@dataclass(slots=True)
class Sampler:
    """Chooses the tokens of one reply. `counts`: tokens so far, for penalties; `grammar` masks others."""

    settings: GenerationSettings
    counts: Counts | None = None
    grammar: Grammar | None = None
    _only_likeliest: bool = field(init=False)
    """Whether the choice is the likeliest token, as the model's logits have it."""

    def __post_init__(self) -> None:
        self._only_likeliest = all(
            getattr(self.settings, name) == getattr(_PLAIN, name) for name in _CHANGING
        )

    def wait_for(self, rows: Rows) -> None:
        """Wait for a forward on a device, copying what `choose` reads: the only synchronisation of a step."""
        rows.wait(best=self._only_likeliest)

    def choose(self, rows: Rows, node: int, position: int) -> int:
        """Choose the token at `position` after a node; a device may have found the likeliest already."""
        if self._only_likeliest and (token := rows.best(node)) >= 0:
            return token
        row = self.grammar.masked(rows[node]) if self.grammar else rows[node]
        return choose(row, position, self.settings.seed, self.settings, self.counts)

    def take(self, token: int) -> None:
        """Add a chosen token to the reply."""
        if self.counts:
            self.counts.add(token)
        if self.grammar:
            self.grammar.take(token)


def verify(
    rows: Rows, drafts: DraftTree, position: int, sampler: Sampler, root: int = 0
) -> tuple[list[int], list[int]]:
    """Find the longest accepted path of a draft tree and its bonus token, which the sampler takes. `rows` [nodes,
    vocabulary] are the logits behind each node of the segment; number `root` is that of the committed text's last
    token, those of the drafts follow. `position` is that of the token chosen behind the root. Returns the path, root
    first (0 is the root, n + 1 the draft n), and the target's choice after each of its nodes."""
    children = drafts.links()
    path, chosen, at = [0], list[int](), -1
    while True:
        token = sampler.choose(rows, root + 1 + at, position + len(chosen))
        chosen.append(token)
        sampler.take(token)
        following = children.get((at, token))
        if following is None:
            return path, chosen
        at = following
        path.append(at + 1)
