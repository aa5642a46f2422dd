"""Measured replies of some weeks, and what was learned from them: for figures over time."""

from __future__ import annotations

from datetime import datetime, timedelta
from random import Random

from hierchat.chat.statistics import ForwardCosts
from hierchat.drafting.acceptance import BINS, Acceptance
from hierchat.drafting.growing.kernel_arrays import CONTEXT, CORPUS, HISTORY, MAX_MATCH
from hierchat.store import NewMessage, NewTurn, SourceCount, Store, TurnFigures

CODER = ("Qwen2.5-Coder 1.5B", "coder")
SMALL = ("SmolLM2 135M", "small")
COSTS = ForwardCosts(CODER[0], 412, tuple(48.0 + 1.1 * n + 0.09 * max(n - 12, 0) ** 1.6 for n in range(32)))


def measured_reply(
    store: Store,
    user: int,
    days_ago: int,
    model: tuple[str, str] = CODER,
    *,
    tokens: int = 240,
    speedup: float | None = 2.0,
    sources: dict[str, SourceCount] | None = None,
) -> int:
    """A reply of 10 seconds that was written so long ago."""
    conversation = store.chats.create(user, f"Measured {store.users.counts(user)[0] + 1}")
    question = store.messages.add(user, conversation, NewMessage(None, "question"))
    reply = store.replies.begin(user, conversation, question, NewTurn(*model, {}, 0, True))
    store.replies.append(reply, "answer", list(range(tokens)), ["target"] * tokens)
    counts = {"context": SourceCount(200, 96)} if sources is None else sources
    figures = TurnFigures(
        seconds=10.0,
        forwards=tokens // 2,
        tokens_per_forward=2.0,
        proposed=sum(count.proposed for count in counts.values()),
        accepted=sum(count.accepted for count in counts.values()),
        sources=counts,
        baseline=None if speedup is None else "measured",
        baseline_tokens_per_second=None if speedup is None else tokens / 10 / speedup,
        speedup=speedup,
        finish="end",
    )
    store.replies.finish(reply, "answer", "complete", figures)
    at = datetime.now() - timedelta(days=days_ago)
    with store.connection.write() as db:
        db.execute("UPDATE messages SET created_at = ? WHERE id = ?", [at.timestamp(), reply])
    return reply


def weeks(store: Store, user: int, days: int = 30) -> None:
    """A user's replies to two models, which come faster as the history grows; all is the same each time."""
    chance = Random(7)
    for days_ago in range(days - 1, -1, -1):
        if chance.random() < 0.15:  # a day off
            continue
        learned = 1 - days_ago / days
        for _ in range(chance.randint(1, 4)):
            tokens = chance.randint(120, 600)
            parts = {
                "context": chance.uniform(0.2, 0.34),
                "history": 0.05 + 0.25 * learned * chance.uniform(0.7, 1.3),
                "statistics": chance.uniform(0.03, 0.09),
                "qwen2.5-coder-0.5b": chance.uniform(0.05, 0.12),
            }
            right = {"context": 0.52, "history": 0.61, "statistics": 0.34, "qwen2.5-coder-0.5b": 0.71}
            sources = {
                name: SourceCount(int(tokens * share / right[name]), int(tokens * share))
                for name, share in parts.items()
            }
            model = SMALL if chance.random() < 0.25 else CODER
            speedup = None if chance.random() < 0.1 else 1.3 + 1.1 * learned + chance.uniform(-0.15, 0.15)
            measured_reply(store, user, days_ago, model, tokens=tokens, speedup=speedup, sources=sources)
    learned_counts(store, user, CODER[1])


def learned_counts(store: Store, user: int, model_key: str) -> None:
    """As if some thousand drafts had been counted."""
    acceptance = Acceptance()
    for slot, off in ((CONTEXT, 0.03), (HISTORY, -0.04), (CORPUS, -0.12)):
        for n in range(BINS):
            middle, number = (n + 0.5) / BINS, 900 * (1 - n / BINS) ** 2 + 30
            right = min(max(middle + off * (1 - abs(2 * middle - 1)), 0.0), 1.0)
            acceptance.curve[slot, n] = number, number * middle, number * right
    for length in range(1, MAX_MATCH + 1):
        number = 4000 / length**1.3
        acceptance.matches[HISTORY, length] = number, number * (1 - 0.75 / length**0.55)
    assert store.learned.keep(user, model_key, "acceptance", acceptance.to_bytes())
