"""What a draft learns from: text that the target wrote, in the numbers of the tokens that the draft knows."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hierchat.corpus.seed import seed, seed_files, writer
from hierchat.drafting.suffix_index import BREAK
from hierchat.models.catalogue import ModelEntry
from hierchat.store import Store
from hierchat.store.drafting_texts import Mark
from hierchat.store.replies import TOKEN

WINDOW = 256
"""Tokens of one sample."""
HELD_BACK = 0.03
"""Part of the text that is not learned from, but measured on."""


class TooLittleText(Exception):
    """There is not enough that the target wrote."""


def written(entry: ModelEntry, tokenizer: Any) -> NDArray[np.int64]:
    """Of the texts that ship, what the target itself wrote; BREAK around each text."""
    own = seed([file for file in seed_files(entry) if writer(file) == entry.name], tokenizer, entry.name)
    return np.concatenate([np.array([BREAK]), *([np.asarray(own.tokens, np.int64)] if own else [])])


def replies(store: Store, user_id: int, model_key: str) -> NDArray[np.int64]:
    """All that the target wrote for a user; BREAK around each reply."""
    parts = [np.array([BREAK])]
    for _, tokens in store.drafting_texts(user_id, model_key, "written", Mark())[0]:
        parts += [np.frombuffer(tokens, TOKEN).astype(np.int64), np.array([BREAK])]
    return np.concatenate(parts)


def frequent(text: NDArray[np.int64], most: int, always: Collection[int]) -> NDArray[np.int64]:
    """The tokens that a draft knows: `always`, and the most frequent ones of the text; `most` at most, rising."""
    tokens, counts = np.unique(text[text != BREAK], return_counts=True)
    ranked = tokens[np.argsort(-counts, kind="stable")].tolist()
    return np.array(sorted(list(dict.fromkeys([*sorted(always), *ranked]))[:most]), np.int64)


@dataclass(frozen=True, slots=True)
class Samples:
    """Windows of text, int64 [n, WINDOW + 1] in the draft's numbers."""

    learned: NDArray[np.int64]
    held_back: NDArray[np.int64]


def samples(text: NDArray[np.int64], known: NDArray[np.int64], end_id: int) -> Samples:
    """The text cut into windows; between texts stands `end_id`. Raises TooLittleText."""
    text = np.where(text == BREAK, end_id, text)
    at = np.searchsorted(known, text).clip(max=len(known) - 1)
    numbers = np.where(known[at] == text, at, len(known))
    count = (len(numbers) - 1) // WINDOW
    back = max(1, int(count * HELD_BACK))
    if count - back < 8:
        raise TooLittleText(
            f"The model has written {len(text):,} tokens here; a draft needs {9 * WINDOW + 1:,} at the very least, "
            "and learns little from less than a few hundred thousand. Chat more, and give --history."
        )
    windows = np.stack([numbers[WINDOW * n : WINDOW * (n + 1) + 1] for n in range(count)])
    return Samples(windows[:-back], windows[-back:])
