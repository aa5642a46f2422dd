"""Chats, and measured replies of some weeks, that a test begins with."""

from datetime import datetime, timedelta

from hierchat.store import Store
from hierchat.store.records import NewMessage, NewTurn, SourceCount, TurnFigures
from tests.testing.fake_service import REPLY

CODER = ("Qwen2.5-Coder 1.5B", "coder")
SMALL = ("SmolLM2 135M", "small")

RICH = (
    REPLY
    + """
| Method | Speed |
|:-------|------:|
| slice  | fast  |
| loop   | slow, see [the manual](https://docs.example/a/b) |

> Quoted, with $x^2$ and ~~no~~ `code`.

- [x] done
- open
"""
)
"""A reply with all kinds of Markdown."""


def stored_chat(store: Store, title: str, turns: int, reply: str = REPLY) -> int:
    """A chat of `turns` questions and replies; its id."""
    user = store.users.ensure("local")
    chat = store.chats.create(user, title)
    parent = None
    for number in range(1, turns + 1):
        question = store.messages.add(user, chat, NewMessage(parent, f"{title}, question {number}"))
        parent = store.replies.begin(user, chat, question, NewTurn("fake", "fake", {}, 0, True))
        store.replies.append(parent, reply, [0], ["target"])
        store.replies.finish(parent, reply, "complete", TurnFigures(finish="end"))
    return chat


def measured_reply(
    store: Store,
    user: int,
    days_ago: int,
    model: tuple[str, str] = CODER,
    *,
    speedup: float | None = 2.0,
    sources: dict[str, SourceCount] | None = None,
) -> int:
    """A reply of 10 seconds that was written so long ago."""
    conversation = store.chats.create(user, f"Measured {store.users.counts(user)[0] + 1}")
    question = store.messages.add(user, conversation, NewMessage(None, "question"))
    tokens = 240
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
    """A user's replies to two models, which come faster as the history grows, and what was learned from them."""
    for days_ago in range(days):
        learned = 1 - days_ago / days
        parts = {
            "context": 0.27,
            "history": 0.05 + 0.25 * learned,
            "statistics": 0.06,
            "qwen2.5-coder-0.5b": 0.08,
        }
        sources = {name: SourceCount(int(480 * share), int(240 * share)) for name, share in parts.items()}
        speedup = None if days_ago % 10 == 5 else 1.3 + 1.1 * learned
        measured_reply(
            store, user, days_ago, (CODER, SMALL)[days_ago % 4 == 3], speedup=speedup, sources=sources
        )
