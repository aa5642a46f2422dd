"""Finds earlier occurrences of a text's ending, and what followed them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

BREAK = -1
"""Stands between texts: matches and continuations end there."""
MAX_MATCH = 32


class SuffixIndex:
    """A token log with, for every token and every pair of tokens, a chain through its occurrences, newest first.

    Appending is constant time; a lookup visits at most `visits` occurrences of the last pair or, where there are none,
    half as many of the last token. 12 bytes per token plus a dictionary entry per distinct token and pair.
    """

    def __init__(self, visits: int = 16) -> None:
        self.visits = visits
        self._tokens = array("i")
        self._previous = array("i")  # the occurrence before this one of the token
        self._previous_pair = array("i")  # and of the pair that ends here
        self._newest: dict[int, int] = {}
        self._newest_pair: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._tokens)

    def append(self, tokens: Iterable[int]) -> None:
        before = self._tokens[-1] if self._tokens else BREAK
        for here, token in enumerate(tokens, len(self._tokens)):
            previous = previous_pair = -1
            if token != BREAK:
                previous = self._newest.get(token, -1)
                self._newest[token] = here
                if before != BREAK:
                    pair = before << 32 | token
                    previous_pair = self._newest_pair.get(pair, -1)
                    self._newest_pair[pair] = here
            self._tokens.append(token)
            self._previous.append(previous)
            self._previous_pair.append(previous_pair)
            before = token

    def continuations(self, context: Sequence[int], length: int) -> list[tuple[int, list[int]]]:
        """(match length, continuation of at most `length` tokens) for occurrences of the context's ending, newest
        first. An occurrence that nothing follows is left out."""
        if not context or length < 1:
            return []
        found: list[tuple[int, list[int]]] = []
        if len(context) > 1:
            pair = context[-2] << 32 | context[-1]
            found = self._follow(self._newest_pair.get(pair, -1), self._previous_pair, 2, context, length)
        return found or self._follow(self._newest.get(context[-1], -1), self._previous, 1, context, length)

    def _follow(
        self, end: int, previous: Sequence[int], known: int, context: Sequence[int], length: int
    ) -> list[tuple[int, list[int]]]:
        """Along one chain from `end` on; `known` tokens are known to match."""
        found = []
        tokens = self._tokens
        for _ in range(self.visits * known // 2):
            if end < 0:
                break
            match, limit = known, min(MAX_MATCH, len(context), end + 1)
            while match < limit and tokens[end - match] == context[-1 - match]:
                match += 1
            following = tokens[end + 1 : end + 1 + length].tolist()
            if BREAK in following:
                following = following[: following.index(BREAK)]
            if following:
                found.append((match, following))
            end = previous[end]
        return found
