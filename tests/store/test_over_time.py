"""Figures by day."""

from __future__ import annotations

import time
from contextlib import closing
from datetime import date, datetime, timedelta
from pathlib import Path

import pytest
from sqlite_utils import Database

from hierchat.store import DayFigures, NewTurn, SourceCount, Store, TurnFigures


def write(
    store: Store,
    user: int,
    days_ago: int,
    figures: TurnFigures,
    *,
    tokens: int = 20,
    model_key: str = "k",
) -> int:
    conversation = store.create_conversation(user)
    question = store.add_message(user, conversation, None, "user", "question")
    reply = store.begin_reply(user, conversation, question, NewTurn("m", model_key, {}, 0, True))
    store.append_reply(reply, "answer", list(range(tokens)), ["target"] * tokens)
    store.finish_reply(reply, "answer", "complete", figures)
    at = datetime.now() - timedelta(days=days_ago)
    with store._write() as db:
        db.execute("UPDATE messages SET created_at = ? WHERE id = ?", [at.timestamp(), reply])
    return reply


def measured(speedup: float | None = 2.0, **changed: object) -> TurnFigures:
    usual = {
        "seconds": 1.0,
        "forwards": 10,
        "tokens_per_forward": 2.0,
        "proposed": 30,
        "accepted": 10,
        "sources": {"context": SourceCount(20, 8), "history": SourceCount(10, 2)},
        "baseline": "measured",
        "speedup": speedup,
        "draft_ms": 5.0,
    }
    return TurnFigures(**{**usual, **changed})


def today() -> date:
    return date.fromtimestamp(time.time())


def test_days_are_summed_in_order(store: Store, user: int) -> None:
    write(store, user, 0, measured(1.0, forwards=30, draft_ms=3.0), tokens=40)
    write(store, user, 0, measured(3.0, sources={"history": SourceCount(30, 10)}))
    write(store, user, 0, measured(1.5, baseline="estimated", draft_ms=None))
    write(store, user, 3, measured(None, draft_ms=None, proposed=0, accepted=0, sources={}))
    old, new = store.figures_over_time(user)
    assert old == DayFigures(today() - timedelta(days=3), 1, 20, 2.0, 0, 0, {}, None, None)
    assert new == DayFigures(
        day=today(),
        replies=3,
        tokens=80,
        tokens_per_forward=80 / 50,
        proposed=90,
        accepted=30,
        sources={"context": SourceCount(40, 16), "history": SourceCount(50, 14)},
        speedup=2.0,
        draft_ms=8.0 / 40,
    )
    assert list(new.sources) == ["context", "history"]


def test_the_last_days_of_one_user_and_model(store: Store, user: int) -> None:
    for days_ago in (0, 1, 29, 30, 400):
        write(store, user, days_ago, measured())
    write(store, user, 1, measured(), model_key="other")
    write(store, store.ensure_user("bob"), 0, measured())

    def ago(figures: list[DayFigures]) -> list[int]:
        return [(today() - day.day).days for day in figures]

    assert ago(store.figures_over_time(user)) == [29, 1, 0]
    assert ago(store.figures_over_time(user, days=1)) == [0]
    assert ago(store.figures_over_time(user, days=500)) == [400, 30, 29, 1, 0]
    assert [day.replies for day in store.figures_over_time(user, days=2)] == [2, 1]
    assert [day.replies for day in store.figures_over_time(user, "k", days=2)] == [1, 1]
    assert ago(store.figures_over_time(user, "other")) == [1]
    assert store.figures_over_time(store.ensure_user("carl")) == []
    assert store.users().keys() == {"ann", "bob", "carl"}


def test_what_was_not_measured_does_not_count(store: Store, user: int) -> None:
    write(store, user, 0, TurnFigures())
    conversation = store.create_conversation(user)
    question = store.add_message(user, conversation, None, "user", "question")
    store.begin_reply(user, conversation, question, NewTurn("m", "k", {}, 0, True))
    assert store.figures_over_time(user) == []


def test_draft_time_comes_back_and_is_unknown_of_earlier_versions(
    store: Store, user: int, path: Path
) -> None:
    reply = write(store, user, 0, measured(draft_ms=1.25))
    turn = store.turn(user, reply)
    assert turn
    assert turn.figures == measured(draft_ms=1.25)
    with closing(Database(path)) as db:
        db.execute("UPDATE turns SET draft_ms = NULL")
        db.conn.commit()
    turn = store.turn(user, reply)
    assert turn
    assert turn.figures == measured(draft_ms=None)


@pytest.mark.parametrize("gone", [True, False])
def test_a_deleted_conversation_counts_no_more(store: Store, user: int, gone: bool) -> None:
    reply = write(store, user, 0, measured())
    if gone:
        store.delete_conversation(user, store.message(user, reply).conversation_id)
    assert len(store.figures_over_time(user)) == (not gone)
