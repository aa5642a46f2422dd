"""What texts would bring, before they are added: the last replies drafted again, with and without them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from hierchat.drafting.acceptance import Acceptance
from hierchat.drafting.growing.layout import CORPUS
from hierchat.drafting.source import Source
from hierchat.engine.recorded import steps
from hierchat.models.progress import Progress, Report, silent
from hierchat.runtime.drafters import drafter_over, statistics_sources
from hierchat.runtime.hosted import Hosted

REPLIES, TOKENS = 20, 4_000
"""Of the last replies at most so many are tried, and of them so many tokens."""
FEWEST = 500
"""Tokens of replies below which nothing is told."""
Written = tuple[Sequence[int], Sequence[int]]
"""A prompt, and the reply to it."""


@dataclass(frozen=True, slots=True)
class Gain:
    """Tokens per forward over some replies, drafted from what drafts now and with the new texts beside it. Earlier
    replies do not draft here: those that are tried would be found among them."""

    replies: int
    before: float
    after: float


def gain(
    hosted: Hosted, written: Iterable[Written], texts: Iterable[Sequence[int]], report: Report = silent
) -> Gain | None:
    """Of these texts, tokenised. None where drafting is not possible, or too little was written to tell. `report` is
    called between its parts."""
    tried = list(_first(written)) if hosted.drafts else []
    if sum(len(reply) for _, reply in tried) < FEWEST:
        return None
    new = Source.of(texts, CORPUS)
    new.index.wait()
    now = statistics_sources(hosted.statistics)
    before, after = (_tokens_per_forward(hosted, sources, tried, report) for sources in (now, [*now, new]))
    return Gain(len(tried), before, after)


def _first(written: Iterable[Written]) -> Iterator[Written]:
    total = 0
    for prompt, reply in written:
        if total >= TOKENS:
            return
        total += len(reply)
        yield prompt, reply


def _tokens_per_forward(
    hosted: Hosted, sources: Sequence[Source], tried: Sequence[Written], report: Report
) -> float:
    acceptance = Acceptance()
    forwards = 0
    for prompt, reply in tried:
        report(Progress("reading", 0, None, ""))
        forwards += sum(1 for _ in steps(drafter_over(hosted, sources, acceptance), prompt, reply))
    return sum(len(reply) for _, reply in tried) / forwards
