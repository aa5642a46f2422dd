"""Operations on the index of all suffixes, one by one against a table of all places of every short run of tokens."""

import random
from collections import defaultdict
from pathlib import Path

import numpy as np

from hierchat.drafting import suffix_index
from hierchat.drafting.growing.evidence import occurrences
from hierchat.drafting.suffix_index import SuffixIndex

OPERATIONS = 5_000
"""Of one input."""
LONGEST = 5
"""Tokens that are looked up."""
MOST = 60
"""Texts held at once."""


class Places:
    """Where each run of up to LONGEST tokens stands in the texts that are there."""

    def __init__(self) -> None:
        self.at: defaultdict[tuple[int, ...], set[int]] = defaultdict(set)

    def add(self, start: int, text: list[int]) -> None:
        for place in range(len(text)):
            for end in range(place + 1, min(place + LONGEST, len(text)) + 1):
                self.at[tuple(text[place:end])].add(start + place)

    def remove(self, start: int, text: list[int]) -> None:
        for place in range(len(text)):
            for end in range(place + 1, min(place + LONGEST, len(text)) + 1):
                self.at[tuple(text[place:end])].remove(start + place)


def found(index: SuffixIndex, words: list[int]) -> list[int]:
    """Where these tokens stand, as drafts look it up: by halving each run's order."""
    text, places = np.array(words, np.int32), list[int]()
    with index.lock:
        log, order, starts, sizes = index.arrays
        for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
            part = order[start : start + size]
            run = np.array([0, log.ctypes.data, log.size, part.ctypes.data, size])
            low, high = occurrences(run, 0, size, text, 0)
            places += part[low:high].tolist()
    return places


def operations(dice: random.Random, folder: Path) -> int:
    """Texts come, alone and several at once, and go; after each, and between, tokens are looked up. Now and then the
    index is made anew of its stored orders. Every tenth input has its merges in the thread."""
    before, suffix_index.AT_ONCE = suffix_index.AT_ONCE, 64 if dice.random() < 0.1 else suffix_index.AT_ONCE
    try:
        index, places, held = SuffixIndex(), Places(), list[tuple[int, list[int]]]()
        kinds = dice.choice([2, 4, 40])
        for number in range(OPERATIONS):
            turn = dice.random()
            if turn < 0.08 and len(held) < MOST:
                texts = [
                    [dice.randrange(kinds) for _ in range(dice.randrange(25))]
                    for _ in range(1 if turn < 0.06 else dice.randrange(4))
                ]
                for start, text in zip(index.extend(texts), texts, strict=True):
                    held.append((start, text))
                    places.add(start, text)
            elif turn < 0.14 and held:
                gone = [
                    held.pop(dice.randrange(len(held))) for _ in range(min(len(held), dice.randrange(1, 3)))
                ]
                index.remove((start, len(text)) for start, text in gone)
                for start, text in gone:
                    places.remove(start, text)
            else:
                if held and turn < 0.9:  # what stands there, mostly
                    _, text = dice.choice(held)
                    at = dice.randrange(len(text) + 1)
                    words = text[at : at + dice.randrange(1, LONGEST + 1)]
                else:
                    words = [dice.randrange(kinds) for _ in range(dice.randrange(1, LONGEST + 1))]
                if words:
                    if suffix_index.AT_ONCE == 64:
                        index.wait()  # what waits to be sorted is not found yet
                    expected = places.at.get(tuple(words), set())
                    there = found(index, words)
                    assert len(there) == len(expected), (number, words)
                    assert set(there) == expected, (number, words)
        index.close()
        return OPERATIONS
    finally:
        suffix_index.AT_ONCE = before
