"""Verification: walk down the draft tree along the target's own choices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hierchat.config import GenerationSettings
from hierchat.engine.sampling.grammar import Grammar
from hierchat.engine.sampling.sampler import Counts, choose, top_tokens

# Logits of a segment's nodes: an array, or values on a device that are copied at the first use.


class Rows(Protocol):
    """Logits of a segment's nodes, float32; valid until the sequence's next forward."""

    @property
    def recorded(self) -> bool:
        """Whether the forward did work that later ones reuse, such as recording a graph: its time is no measure."""
        ...

    def __getitem__(self, node: int, /) -> NDArray[np.float32]:
        """[vocabulary]"""
        ...

    def __len__(self) -> int: ...

    def wait(self, *, best: bool) -> None:
        """Until the forward is done. `best`: only best() will be asked for, so that less need be brought."""
        ...

    def best(self, node: int) -> int:
        """The node's likeliest token, the first of equals, where it is known without looking through its logits; else
        -1."""
        ...

    def likeliest(self, nodes: Sequence[int], count: int) -> NDArray[np.int32]:
        """[nodes, count]: the likeliest tokens in order, as top_tokens has them."""
        ...

    def hidden(self, nodes: Sequence[int]) -> NDArray[np.float32] | None:
        """[nodes, hidden]: what the head read, behind the last norm; valid until the runner's next forward. None where
        the runner does not bring it."""
        ...

    def kept(self) -> Rows:
        """The same logits, valid beyond the next forward."""
        ...


class ArrayRows:
    """Rows that are there: [nodes, vocabulary]."""

    recorded = False

    def __init__(self, logits: NDArray[np.float32], hidden: NDArray[np.float32] | None = None) -> None:
        """`hidden` [nodes, hidden], where it is known."""
        self._logits = logits
        self._hidden = hidden

    def __getitem__(self, node: int) -> NDArray[np.float32]:
        return self._logits[node]

    def __len__(self) -> int:
        return len(self._logits)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self._logits, dtype, copy=copy)

    def wait(self, *, best: bool) -> None:
        pass

    def best(self, node: int) -> int:
        return -1

    def likeliest(self, nodes: Sequence[int], count: int) -> NDArray[np.int32]:
        return np.array([top_tokens(self._logits[node], count) for node in nodes])

    def hidden(self, nodes: Sequence[int]) -> NDArray[np.float32] | None:
        return None if self._hidden is None else self._hidden[list(nodes)]

    def kept(self) -> Rows:
        return ArrayRows(self._logits)


class LateRows:
    """The rows of one forward. The first call waits for the forward, and copies all values of its kind at once.

    `best` alone is a few bytes: greedy decoding needs no logits. Valid until `expire`, at the target's next forward.
    """

    def __init__(
        self,
        best: Callable[[], NDArray[np.int64]],
        rows: Callable[[], NDArray[np.float32]],
        count: int,
        recorded: bool = False,
        top: Callable[[Sequence[int], int], NDArray[np.int32]] | None = None,
    ) -> None:
        """`best()` [count]: the likeliest tokens, -1 where a row holds no numbers; `rows()` [count, vocabulary].

        `top(nodes, k)` [nodes, k]: their likeliest tokens in order, found on the device; None to find them in `rows()`.
        `recorded`: the forward recorded a graph; its time is no measure of the next one's.
        """
        self.recorded = recorded
        self._fetch_best = best
        self._fetch_rows = rows
        self._fetch_top = top
        self._count = count
        self._best: NDArray[np.int64] | None = None
        self._rows: NDArray[np.float32] | None = None
        self._expired = False

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, node: int) -> NDArray[np.float32]:
        if self._rows is None:
            self._require_fresh()
            self._rows = self._fetch_rows()
        self._require_fresh()
        return self._rows[node]

    def best(self, node: int) -> int:
        """The node's likeliest token, the first of equals; -1 where its logits are no numbers."""
        if self._best is None:
            self._require_fresh()
            self._best = self._fetch_best()
        return int(self._best[node])

    def likeliest(self, nodes: Sequence[int], count: int) -> NDArray[np.int32]:
        """[nodes, count]: their likeliest tokens, as top_tokens has them; whole rows stay where they are."""
        if self._fetch_top is None or self._rows is not None:
            return np.array([top_tokens(self[node], count) for node in nodes])
        self._require_fresh()
        return self._fetch_top(nodes, count)

    def hidden(self, nodes: Sequence[int]) -> None:
        """They stay on the device: a graph's memory is used again."""

    def wait(self, *, best: bool) -> None:
        self.best(0) if best else self[0]

    def kept(self) -> Rows:
        return ArrayRows(np.array([self[node] for node in range(self._count)]))

    def expire(self) -> None:
        """The memory behind the rows is used again."""
        self._expired = True

    def _require_fresh(self) -> None:
        if self._expired:
            raise RuntimeError("These rows are of an earlier forward; copy what is needed for longer.")


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


# How likely the chosen tokens were, and which others would have been.


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
