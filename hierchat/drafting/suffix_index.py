"""Finds earlier occurrences of a text's ending, and what followed them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

BREAK = -1
"""Stands between texts: matches and continuations end there."""
MAX_MATCH = 32


class SuffixIndex:
    """A token log with, for every pair of tokens, a chain through its occurrences, newest first.

    Appending is constant time; a lookup visits at most `visits` occurrences of the last pair. 8 bytes per token plus
    a dictionary entry per distinct pair.
    """

    def __init__(self, visits: int = 32) -> None:
        self.visits = visits
        self._tokens = array("i")
        self._previous = array("i")  # the occurrence before this one of the pair that ends here
        self._newest: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._tokens)

    def append(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            here = len(self._tokens)
            previous = -1
            if here and token != BREAK and self._tokens[-1] != BREAK:
                pair = _pair(self._tokens[-1], token)
                previous = self._newest.get(pair, -1)
                self._newest[pair] = here
            self._tokens.append(token)
            self._previous.append(previous)

    def continuations(self, context: Sequence[int], length: int) -> list[tuple[int, tuple[int, ...]]]:
        """(match length, continuation of at most `length` tokens) for occurrences of the context's ending, newest
        first. An occurrence that nothing follows is left out."""
        if len(context) < 2 or length < 1:
            return []
        found: list[tuple[int, tuple[int, ...]]] = []
        tokens, end = self._tokens, self._newest.get(_pair(context[-2], context[-1]), -1)
        for _ in range(self.visits):
            if end < 0:
                break
            match = 2
            limit = min(MAX_MATCH, len(context), end + 1)
            while match < limit and tokens[end - match] == context[-1 - match]:
                match += 1
            following = tokens[end + 1 : end + 1 + length].tolist()
            if BREAK in following:
                following = following[: following.index(BREAK)]
            if following:
                found.append((match, tuple(following)))
            end = self._previous[end]
        return found


def _pair(first: int, second: int) -> int:
    return first << 32 | second
