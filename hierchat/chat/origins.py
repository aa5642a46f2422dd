"""Where a stored reply's words came from: runs of its text, each with what its draft was found by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from hierchat.chat.statistics import Decode, text_pieces
from hierchat.store import UNKNOWN, Origin, SourceSpan, Store, Whereabouts


@dataclass(frozen=True, slots=True)
class Run:
    """Text whose tokens came from one source, and from one place of it."""

    text: str
    source: str
    tokens: int = 1
    origin: Origin = UNKNOWN
    there: Whereabouts | None = None
    """Where the message stands that its draft was found in; None where there is none, or where it is gone."""
    phrase: str = ""
    """What stands there word for word: the text that matched and this run, as far as it is of this reply."""

    @property
    def gone(self) -> bool:
        """Whether it came from a message that was deleted since."""
        return self.origin.origin_id is not None and self.there is None


def runs_of(
    store: Store, user_id: int, tokens: Sequence[int], spans: Sequence[SourceSpan], decode: Decode
) -> list[Run]:
    """The runs of a reply; joined they are its whole text. Runs without text are left out."""
    pieces = text_pieces(tokens, (span.length for span in spans), decode)
    edges = pairwise(accumulate(map(len, pieces), initial=0))
    whole = "".join(pieces)
    there = store.whereabouts(user_id, {span.origin.origin_id or 0 for span in spans})
    runs = []
    for span, piece, (begin, end) in zip(spans, pieces, edges, strict=True):
        origin = span.origin
        phrase = ""
        if origin.origin_id is not None:
            before = decode(tokens[max(span.start - origin.matched, 0) : span.start])
            phrase = whole[max(begin - len(before), 0) : end]
        if piece:
            place = there.get(origin.origin_id or 0)
            runs.append(Run(piece, span.source, span.length, origin, place, phrase))
    return runs
