"""What there is to know of the loaded model and of the texts that draft, beside what the store has."""

from __future__ import annotations

from dataclasses import dataclass

from hierchat.runtime.draft_index.history import Histories
from hierchat.runtime.hosted import Hosted

CONTEXT = 1_000
"""Tokens behind which costs are told: not those that the engine holds now, which may be another user's."""


@dataclass(frozen=True, slots=True)
class ForwardCosts:
    """What a forward of the loaded model costs on this machine, draft and verification with it."""

    model: str
    context: int
    """Tokens behind it."""
    ms: tuple[float, ...]
    """By rows, from one row on."""


@dataclass(frozen=True, slots=True)
class IndexMemory:
    """Bytes in memory of what drafts by looking up."""

    history: int
    """Of this user's earlier chats."""
    corpora: int
    """Of the texts that ship and of added ones. They are mapped from files, so that the system may drop them."""


def forward_costs(hosted: Hosted) -> ForwardCosts | None:
    """As measured by now; None where it is computed elsewhere."""
    if not hosted.is_local:
        return None
    context = min(CONTEXT, hosted.local.context_length)
    return ForwardCosts(hosted.name, context, tuple(hosted.local.latency.step_ms(context)))


def index_memory(user_id: int, hosted: Hosted | None, histories: Histories) -> IndexMemory:
    """Of this user's histories with all models that wrote since the start."""
    corpora = sum(one.tokens.nbytes + one.order.nbytes for one in hosted.statistics) if hosted else 0
    return IndexMemory(histories.nbytes(user_id), corpora)
