"""Find where a stored reply's words came from: runs of its text, each with the place that drafted it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from hierchat.chat.statistics import Decode, text_pieces
from hierchat.store import Store
from hierchat.store.records import UNKNOWN, Origin, SourceSpan, Whereabouts

_PART = "\ufffd"
"""Stands for a part of a character."""
_SHARED = 4
"""Characters that two runs may share: one, or several of a symbol that consists of them."""


@dataclass(frozen=True, slots=True)
class SourceRun:
    """Text of consecutive tokens that came from one source, and from one place of it."""

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
        """Return whether the run came from a message that was deleted since."""
        return self.origin.origin_id is not None and self.there is None


def runs_of(
    store: Store, user_id: int, message_id: int, tokens: Sequence[int], decode: Decode
) -> list[SourceRun]:
    """Return the runs by source of a stored reply; joined they are its whole text. Runs without text are left out."""
    spans = store.replies.spans(user_id, message_id)
    pieces = text_pieces(tokens, (span.length for span in spans), decode)
    edges = pairwise(accumulate(map(len, pieces), initial=0))
    whole = "".join(pieces)
    conversation = store.messages.get(user_id, message_id).conversation_id
    before = store.messages.path(user_id, conversation, message_id)[-2::-1]
    there = store.messages.whereabouts(
        user_id, {*(span.origin.origin_id or 0 for span in spans), *(one.id for one in before)}
    )
    runs = []
    for span, piece, (begin, end) in zip(spans, pieces, edges, strict=True):
        matched = decode(tokens[max(span.start - span.origin.matched, 0) : span.start])
        phrase = whole[max(begin - len(matched), 0) : end]
        origin = span.origin
        if origin.slot == "context" and origin.place is not None and origin.place < 0:
            # Which message it was is not kept, for the prompt is one text: the newest that holds the phrase.
            holds = (one.id for one in before if phrase.strip() and phrase in one.text)
            origin = replace(origin, origin_id=next(holds, None))
        if piece:
            place = there.get(origin.origin_id or 0)
            runs.append(SourceRun(piece, span.source, span.length, origin, place, phrase))
    return runs


def server_runs(spans: Sequence[SourceSpan], texts: Sequence[str], text: str) -> list[SourceRun]:
    """Return the runs by source of a reply that a server wrote. `texts`: what it says of the spans' tokens.
    Empty if these are not the reply's `text`."""
    pieces = _pieces(texts, text)
    return [
        SourceRun(piece, span.source, span.length, span.origin)
        for span, piece in zip(spans, pieces, strict=False)
        if piece
    ]


def _pieces(texts: Sequence[str], text: str) -> list[str]:
    """Split `text` into parts as `texts` begin and end; empty if they are not its own. A character that two share is in
    the later one, and what stands behind the text's end is left out: the token that ended it, a stop string."""
    pieces: list[str] = []
    at, shared = 0, False
    for one in texts:
        inside = one.strip(_PART)
        if inside and inside.startswith(text[at:]):
            pieces.append(text[at:])
            return [*pieces, *[""] * (len(texts) - len(pieces))]
        shared = shared or one.startswith(_PART)
        begins = text.find(inside, at, at + len(inside) + _SHARED) if shared and inside else at
        if begins < 0 or not text.startswith(inside, begins):
            return []
        ends = begins + len(inside)
        pieces.append(text[at:ends])
        at, shared = ends, one.endswith(_PART)
    return pieces if at == len(text) else []
