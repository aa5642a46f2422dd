"""Logits of a segment's nodes: an array, or values on a device that are copied at the first use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hierchat.engine.sampling.top import top_tokens


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
