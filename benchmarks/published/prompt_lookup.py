"""Draft by prompt lookup decoding (Saxena, 2023) as transformers 5.23 has it (`prompt_lookup_num_tokens`).

The last two tokens are looked for in prompt and reply, then the last one. What followed the earliest occurrence is the
draft. Nothing is kept between replies, and no corpus is used.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks.published.common import Published, SortedTexts, chain
from hierchat.drafting.draft_tree import DraftTree

WIDTH = 11
"""10 drafts: `prompt_lookup_num_tokens=10`, as in the documentation."""
LONGEST = 2
"""`max_matching_ngram_size`."""
_SPARE = 4096


class PromptLookup(Published):
    """Draft the chain that followed the last tokens' earliest occurrence."""

    def __init__(self, width: int | None, statistics: Sequence[SortedTexts] = ()) -> None:
        self._most = (width or WIDTH) - 1
        self._text = np.zeros(_SPARE, np.int32)
        self._held = 0

    def begin(self, prompt: Sequence[int]) -> None:
        self._held = 0
        self.observe(prompt)

    def observe(self, tokens: Sequence[int], top: NDArray[np.int32] | None = None) -> None:
        end = self._held + len(tokens)
        if end > len(self._text):
            self._text = np.concatenate([self._text, np.zeros(end, np.int32)])
        self._text[self._held : end] = tokens
        self._held = end

    def propose(self, limit: int | None = None) -> DraftTree:
        text = self._text[: self._held]
        for size in range(min(LONGEST, len(text) - 1), 0, -1):
            same = text[:-size] == text[-size]  # of windows that something follows
            for place in range(1, size):
                same = same & (text[place : place - size] == text[place - size])
            if same.any():
                begin = int(same.argmax()) + size
                return chain(text[begin : begin + self._most].tolist(), "context", limit)
        return DraftTree()
