"""arctic-inference's own suffix cache, the one that vLLM drafts with, built from its source distribution.

Its trees over prompt and replies (C++) take the place of ours in `suffix`: the same method, as its authors wrote it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hierchat.bench.published.arctic_build import arctic_folder
from hierchat.bench.published.common import SortedTexts
from hierchat.bench.published.suffix import DEPTH, FACTOR, LEAST, WIDTH
from hierchat.drafting.suffix_index import BREAK
from hierchat.drafting.tree import DraftTree


class Arctic:
    """Drafts of a tree whose size follows the length of the match. Raises ArmError where it cannot be built."""

    top = 0

    def __init__(self, width: int | None, statistics: Sequence[SortedTexts] = ()) -> None:
        self._most = (width or WIDTH) - 1
        folder = str(arctic_folder())
        if folder not in sys.path:
            sys.path.append(folder)
        module: Any = importlib.import_module("arctic_inference.suffix_decoding")
        self._cache = module.SuffixDecodingCache(max_tree_depth=DEPTH)
        self._numbers = count()
        self._learned: list[int] = []
        self._now: int | None = None
        for texts in statistics:
            for text in np.split(texts.tokens, np.flatnonzero(texts.tokens == BREAK) + 1):
                self._add(text[text != BREAK])

    def begin(self, prompt: Sequence[int]) -> None:
        self._end()
        self._now = next(self._numbers)
        self._cache.start_request(self._now, np.array(prompt, np.int32))
        self._tail = list(prompt[-DEPTH:])

    def observe(self, tokens: Sequence[int], top: NDArray[np.int32] | None = None) -> None:
        self._cache.add_active_response(self._now, np.array(tokens, np.int32))
        self._tail = [*self._tail, *tokens][-DEPTH:]

    def propose(self, limit: int | None = None) -> DraftTree:
        most = self._most if limit is None else min(self._most, limit)
        if most <= 0:
            return DraftTree()
        draft = self._cache.speculate(
            self._now,
            np.array(self._tail, np.int32),
            max_spec_tokens=most,
            max_spec_factor=FACTOR,
            min_token_prob=LEAST,
            use_tree_spec=True,
        )
        size = len(draft.token_ids)
        return DraftTree(tuple(draft.token_ids), tuple(draft.parents), ("suffix",) * size, tuple(draft.probs))

    def learn(self, reply: Sequence[int]) -> None:
        self._end()
        self._learned.append(self._add(np.array(reply, np.int32)))

    def forget(self) -> None:
        self._end()
        for number in self._learned:
            self._cache.evict_cached_response(number)
        self._learned = []

    def _add(self, text: NDArray[np.int32]) -> int:
        """A text of its own among the earlier replies."""
        number = next(self._numbers)
        self._cache.start_request(number, np.zeros(0, np.int32))
        self._cache.add_active_response(number, np.ascontiguousarray(text, np.int32))
        self._cache.stop_request(number)
        return number

    def _end(self) -> None:
        """The reply that was being written is no more; `learn` gets it whole."""
        if self._now is not None:
            self._cache.stop_request(self._now)
            self._cache.evict_cached_response(self._now)
        self._now = None
