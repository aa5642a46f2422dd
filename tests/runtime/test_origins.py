"""From the place in a database to the message or corpus that stands there."""

from __future__ import annotations

from hierchat.drafting.draft_tree import NO_MATCH, Match
from hierchat.drafting.drafter import in_order
from hierchat.drafting.growing.kernel_arrays import CONTEXT, CORPUS, HISTORY, PROMPTS, SEED, SUCCESSORS
from hierchat.drafting.source import Source
from hierchat.runtime.history_index import DraftOrigins
from hierchat.store import Origin

SOURCES = [
    Source(CORPUS, title_at=lambda position: f"notes {position}"),
    Source(HISTORY, text_at=lambda position: (7, position - 10)),
    Source(SEED, title_at=str),
    Source(PROMPTS, text_at=lambda position: (8, position)),
]


def test_each_database_tells_what_it_knows() -> None:
    origins = DraftOrigins(in_order(SOURCES), prompt=100)
    assert origins.of(NO_MATCH, 0.5) == Origin(chance=0.5)
    assert origins.of(Match(CONTEXT, 3, -1, 90), 0.5) == Origin("context", 3, 0.5, place=-10)
    assert origins.of(Match(CONTEXT, 1, -1, -1), 0.5) == Origin("context", 1, 0.5)
    assert origins.of(Match(HISTORY, 4, 0, 12), 0.5) == Origin("history", 4, 0.5, 7, place=2)
    assert origins.of(Match(PROMPTS, 4, 1, 12), None) == Origin("prompts", 4, None, 8, place=12)
    assert origins.of(Match(SUCCESSORS, 2, -1, -1), 0.5) == Origin("successors", 2, 0.5)
    assert origins.of(Match(SEED, 4, 2, 12), 0.5) == Origin("seed", 4, 0.5)
    assert origins.of(Match(CORPUS, 4, 3, 12), 0.5) == Origin("corpus", 4, 0.5, corpus="notes 12", place=12)
