"""The drafter that the program uses: one place for the page and for every measurement of it."""

from __future__ import annotations

from collections.abc import Sequence

from hierchat.chat.host import Hosted
from hierchat.drafting.acceptance import Acceptance
from hierchat.drafting.context import ContextSource
from hierchat.drafting.drafter import Drafter
from hierchat.drafting.history import HistorySource
from hierchat.drafting.source import DraftSource


def default_drafter(
    hosted: Hosted, history: HistorySource, width: int | None = None, acceptance: Acceptance | None = None
) -> Drafter:
    """All sources that the program has. `acceptance`: what earlier replies of this user and model taught."""
    return drafter_over(hosted, [ContextSource(), history], width, acceptance)


def drafter_over(
    hosted: Hosted,
    sources: Sequence[DraftSource],
    width: int | None = None,
    acceptance: Acceptance | None = None,
) -> Drafter:
    """The program's drafter over some of its sources. `width` fixes the positions per forward, drafts and one."""
    return Drafter(sources, acceptance, hosted.engine.latency, width)
