"""The target: a forward over a block of positions, committing into key-value slots that can be rolled back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Rows(Protocol):
    """Logits of a block's nodes, float32; valid until the target's next forward. An array, or late_rows.LateRows."""

    def __getitem__(self, node: int, /) -> NDArray[np.float32]:
        """[vocabulary]"""
        ...

    def __len__(self) -> int: ...


class Target(Protocol):
    """A model with the tokens whose keys and values it holds.

    A block is `tokens` with `parents`: parents[i] < i is the node that node i follows, -1 what is committed. Equal
    positions get equal bits whatever else is in the block where `exact` is true.
    """

    vocabulary: int
    context_length: int
    exact: bool
    """Whether row invariance was proved when the target was made."""

    @property
    def tokens(self) -> list[int]:
        """Committed tokens; do not change."""
        ...

    def rollback(self, length: int) -> None:
        """Forget all but the first `length` committed tokens."""
        ...

    def read(self, tokens: Sequence[int]) -> None:
        """Commit a chunk of the prompt."""
        ...

    def forward(self, tokens: Sequence[int], parents: Sequence[int], *, padded: bool = True) -> Rows:
        """Logits of every node of a block; nothing is committed. padded=False: fastest, maybe other bits."""
        ...

    def commit(self, nodes: Sequence[int]) -> None:
        """Commit a path of nodes of the last block, from its root on."""
        ...
