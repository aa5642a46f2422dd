"""A target that drafts for another: its own choice under the same noise, taken back where the other chose otherwise."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hierchat.config import GenerationSettings
from hierchat.drafting.tree import DraftTree
from hierchat.engine.cpu.target import BlockTarget
from hierchat.engine.engine import common_prefix
from hierchat.engine.latency import LatencyCurve
from hierchat.engine.sampling.sampler import Counts
from hierchat.engine.target import Rows, Target
from hierchat.engine.verify import await_rows, verify

CHUNK = 128
"""Tokens read between two looks at `stop`."""
TOGETHER = 16
"""So many tokens that are new to it go into the forward that verifies; more are read before."""


class TargetDraftModel:
    """A hierarchy.level.DraftModel. Its forwards are the fastest, padded or not: nobody's words depend on them.

    `original`: the target, where this is a rounded copy of it: what that has read, the copy need not read again.
    """

    def __init__(
        self,
        name: str,
        target: Target,
        latency: LatencyCurve,
        settings: GenerationSettings,
        stop: threading.Event,
        original: BlockTarget | None = None,
    ) -> None:
        self.name = name
        self._target = target
        self._original = original
        self._latency = latency
        self._settings = settings
        self._stop = stop
        self._text: list[int] = []
        self._counts = Counts()
        self.read_ms = 0.0

    @property
    def length(self) -> int:
        return len(self._text)

    @property
    def room(self) -> int:
        return self._target.context_length - len(self._text)

    @property
    def reading_ms(self) -> float:
        """Expected of reading what is not in the slots, were they a chunk's tokens or fewer at a time."""
        if self._original:
            return 0.0
        step_ms = self._latency.step_ms(len(self._text))
        return (len(self._text) - len(self._target.tokens)) * step_ms[-1] / len(step_ms)

    def begin(self, text: Sequence[int]) -> None:
        self._target.rollback(common_prefix(self._target.tokens, text[:-1]))
        self._text = list(text)
        self._counts = Counts(text)

    def verify(self, drafts: DraftTree) -> Sequence[int]:
        self._take_over()
        new = self._text[len(self._target.tokens) :]
        if len(new) > TOGETHER:
            if not self._read(new[:-1]):
                return ()
            new = new[-1:]
        began = time.perf_counter()
        last = len(new) - 1
        tokens = (*new, *drafts.tokens)
        parents = (
            *range(-1, last),
            *(last + 1 + parent if parent >= 0 else last for parent in drafts.parents),
        )
        rows = self._target.forward(tokens, parents, padded=False)
        await_rows(rows, self._settings)
        block_parents = (-1, *(parent + 1 for parent in drafts.parents))
        found = verify(
            _From(rows, last) if last else rows,
            (new[-1], *drafts.tokens),
            block_parents,
            len(self._text),
            self._settings,
            self._counts,
        )
        self._target.commit([*range(last), *(last + node for node in found.nodes)])
        self._latency.note(len(tokens), len(self._text), (time.perf_counter() - began) * 1e3)
        self._text += found.tokens
        return found.tokens

    def follow(self, length: int, tokens: Sequence[int]) -> None:
        for token in self._text[length:]:
            self._counts.remove(token)
        del self._text[length:]
        self._target.rollback(min(length, len(self._target.tokens)))
        self._text += tokens
        for token in tokens:
            self._counts.add(token)

    def _take_over(self) -> None:
        """Of the text, but for its last token, what the original has read."""
        if not self._original or not isinstance(self._target, BlockTarget):
            return
        held, end = len(self._target.tokens), min(len(self._original.tokens), len(self._text) - 1)
        if held < end and self._original.tokens[:end] == self._text[:end]:
            self._target.adopt(self._original, self._text[held:end])

    def _read(self, tokens: Sequence[int]) -> bool:
        """All of them, unless it is stopped."""
        began = time.perf_counter()
        try:
            for at in range(0, len(tokens), CHUNK):
                if self._stop.is_set():
                    return False
                self._target.read(tokens[at : at + CHUNK])
            return True
        finally:
            self.read_ms += (time.perf_counter() - began) * 1e3


class _From:
    """The rows of a block from one of them on."""

    def __init__(self, rows: Rows, first: int) -> None:
        self._rows, self._first = rows, first

    def __getitem__(self, node: int) -> NDArray[np.float32]:
        return self._rows[self._first + node]

    def __len__(self) -> int:
        return len(self._rows) - self._first
