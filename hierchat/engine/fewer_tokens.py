"""A draft model with some of the target's tokens, as a sequence over all of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hierchat.engine.rows import Rows
from hierchat.engine.runner import CachedSequence, Runner
from hierchat.engine.sampling.top import top_tokens
from hierchat.models.errors import BrokenFileError

NEVER = np.float32(-1e30)
"""Logit of a token that the model does not have."""


class FewerTokens:
    """`known` [n]: the tokens that the model numbers 0 .. n - 1; its number `others`, by default n, stands for all
    others.

    Raises BrokenFileError where these are another model's.
    """

    def __init__(
        self, inner: CachedSequence, known: NDArray[np.int64], vocabulary: int, others: int | None = None
    ) -> None:
        if (others is None and inner.vocabulary != len(known) + 1) or known[-1] >= vocabulary:
            raise BrokenFileError(
                f"It has {inner.vocabulary} tokens for {len(known)} that it should know, the last of them number "
                f"{known[-1]} of {vocabulary}. Distil the draft again."
            )
        self._inner = inner
        self._known = known
        self._numbers = np.full(vocabulary, len(known) if others is None else others, np.int64)
        self._numbers[known] = np.arange(len(known))
        self._tokens: list[int] = []
        self._segment: Sequence[int] = ()
        self.vocabulary = vocabulary
        self.context_length = inner.context_length
        self.exact = inner.exact

    @property
    def runner(self) -> Runner:
        return self._inner.runner

    @property
    def tokens(self) -> list[int]:
        return self._tokens

    def rollback(self, length: int) -> None:
        del self._tokens[length:]
        self._inner.rollback(length)

    def read(self, tokens: Sequence[int]) -> None:
        self._inner.read(self._own(tokens))
        self._tokens += tokens

    def forward(self, tokens: Sequence[int], parents: Sequence[int], *, padded: bool = True) -> Rows:
        self._segment = tokens
        return _AllTokens(
            self._inner.forward(self._own(tokens), parents, padded=padded), self._known, self.vocabulary
        )

    def commit(self, nodes: Sequence[int]) -> None:
        self._inner.commit(nodes)
        self._tokens += [self._segment[node] for node in nodes]

    def adopt(self, other: CachedSequence, tokens: Sequence[int]) -> bool:
        return False

    def close(self) -> None:
        self._inner.close()

    def _own(self, tokens: Sequence[int]) -> list[int]:
        return self._numbers[np.asarray(tokens, np.int64)].tolist()


class _AllTokens:
    """Rows over all of the target's tokens."""

    def __init__(self, rows: Rows, known: NDArray[np.int64], vocabulary: int) -> None:
        self._rows, self._known, self._vocabulary = rows, known, vocabulary
        self.recorded = rows.recorded

    def __getitem__(self, node: int) -> NDArray[np.float32]:
        row = np.full(self._vocabulary, NEVER, np.float32)
        row[self._known] = self._rows[node][: len(self._known)]
        return row

    def __len__(self) -> int:
        return len(self._rows)

    def wait(self, *, best: bool) -> None:
        self._rows.wait(best=False)

    def best(self, node: int) -> int:
        return -1

    def likeliest(self, nodes: Sequence[int], count: int) -> NDArray[np.int32]:
        return np.array([top_tokens(self[node], count) for node in nodes])

    def hidden(self, nodes: Sequence[int]) -> NDArray[np.float32] | None:
        return self._rows.hidden(nodes)

    def kept(self) -> Rows:
        return _AllTokens(self._rows.kept(), self._known, self._vocabulary)
