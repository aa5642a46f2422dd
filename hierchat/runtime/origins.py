"""What a draft was found by, in terms of the store: from the place in a database to the message that stands there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hierchat.drafting.drafter import in_order
from hierchat.drafting.growing.layout import CONTEXT, CORPUS, SLOT_NAMES
from hierchat.drafting.source import Source
from hierchat.drafting.tree import Match
from hierchat.store import Origin


@dataclass(slots=True)
class Origins:
    """Over the databases of one reply. `prompt`: tokens before the reply."""

    sources: list[Source]
    prompt: int

    @classmethod
    def over(cls, sources: Iterable[Source], prompt: int) -> Origins:
        """`sources`: those that the reply's drafter was given."""
        return cls(in_order(sources), prompt)

    def of(self, match: Match, chance: float | None) -> Origin:
        """Of an accepted token. Ask while its reply is written: later the databases hold other texts."""
        if match.slot < 0:
            return Origin(chance=chance)
        found = Origin(SLOT_NAMES[match.slot], match.length, chance)
        if match.position < 0:
            return found
        if match.slot == CONTEXT:
            return Origin(found.slot, match.length, chance, place=match.position - self.prompt)
        source = self.sources[match.database]
        if source.origin:
            return Origin(source.origin, match.length, chance)
        if source.text_at is not None:
            message, place = source.text_at(match.position)
            return Origin(found.slot, match.length, chance, message, place=place)
        if match.slot == CORPUS and source.title_at is not None:
            title = source.title_at(match.position)
            return Origin(found.slot, match.length, chance, corpus=title, place=match.position)
        return found
