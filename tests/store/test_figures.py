"""Figures by day and by model."""

from dataclasses import replace
from datetime import date, datetime, timedelta

from hierchat.store import Store, figures
from hierchat.store.records import DraftingFigures, NewTurn, SourceCount, TurnFigures
from tests.testing.deleting import delete_for_good
from tests.testing.stores import chat_of, replied


def write(
    store: Store, user: int, days_ago: int, figures: TurnFigures, tokens: int = 20, model_key: str = "k"
) -> int:
    turn = NewTurn("m", model_key, {}, 0, True)
    reply = replied(store, user, tokens=range(tokens), turn=turn, figures=figures)
    at = datetime.now() - timedelta(days=days_ago)
    with store.connection.write() as db:
        db.execute("UPDATE messages SET created_at = ? WHERE id = ?", [at.timestamp(), reply])
    return reply


def measured(speedup: float | None = 2.0, **changed: object) -> TurnFigures:
    sources = {"context": SourceCount(20, 8), "history": SourceCount(10, 2)}
    usual = TurnFigures(
        seconds=1.0, forwards=10, tokens_per_forward=2.0, proposed=30, accepted=10, sources=sources,
        baseline="measured", speedup=speedup, draft_ms=5.0,
    )  # fmt: skip
    return replace(usual, **changed)


def test_days_are_summed_in_order(store: Store, user: int) -> None:
    write(store, user, 0, measured(1.0, forwards=30, draft_ms=3.0), tokens=40)
    write(store, user, 0, measured(3.0, sources={"history": SourceCount(30, 10)}))
    write(store, user, 0, measured(1.5, baseline="estimated", draft_ms=None))
    write(store, user, 3, measured(None, draft_ms=None, proposed=0, accepted=0, sources={}))
    write(store, user, 0, TurnFigures())  # what was not measured does not count, nor what repeated itself
    write(store, user, 0, measured(9.0, finish="loop"))
    replied(store, user, state="writing")
    found = store.figures.over_time(user, 500)
    (first, old), (last, new) = found.days.items()
    assert (first, last) == (date.today() - timedelta(days=3), date.today())
    assert old == DraftingFigures(1, 20, 2.0, {}, None, 0, 0.0)
    assert new == DraftingFigures(
        replies=3,
        tokens=80,
        tokens_per_forward=80 / 50,
        sources={"context": SourceCount(40, 16), "history": SourceCount(50, 14)},
        speedup=2.0,
        compared=2,
        saved_seconds=2.0,
    )
    assert (found.whole.replies, found.whole.compared, found.whole.tokens) == (4, 2, 100)
    assert list(new.sources) == ["context", "history"]


def test_the_last_days_of_one_user(store: Store, user: int) -> None:
    for days_ago in (0, 1, 29, 30, 400):
        write(store, user, days_ago, measured())
    write(store, user, 1, measured(), model_key="other")
    write(store, store.users.ensure("bob"), 0, measured())

    def ago(days: int) -> list[int]:
        return [(date.today() - day).days for day in store.figures.over_time(user, days).days]

    assert ago(500) == [400, 30, 29, 1, 0]
    assert ago(30) == [29, 1, 0]
    assert ago(1) == [0]
    assert [day.replies for day in store.figures.over_time(user, 2).days.values()] == [2, 1]
    nothing = store.figures.over_time(store.users.ensure("carl"), 500)
    assert (nothing.whole.replies, nothing.whole.speedup, nothing.days) == (0, None, {})
    assert store.users.ids().keys() == {"ann", "bob", "carl"}


def test_many_replies_are_read_through_indices_alone(store: Store, user: int) -> None:
    """No row of messages, which hold texts, is read, and no table is scanned."""
    parameters = {"user": user, "since": 0.0}
    with store.connection.read() as db:
        plans = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {figures.MEASURED}", parameters)]
    assert not [line for line in plans if line.startswith("SCAN")], plans
    used = {line for line in plans if "messages USING" in line}
    assert used, plans
    assert all("USING COVERING INDEX messages_in_time (conversation_id=?" in line for line in used), plans


def test_tokens_a_second_of_the_last_replies_by_model(store: Store, user: int) -> None:
    def write_with(user: int, model: str, tokens: int, seconds: float) -> int:
        turn, figures = NewTurn(model, "key", {}, 0, True), TurnFigures(seconds=seconds, forwards=tokens)
        return chat_of(store, user, replied(store, user, tokens=range(tokens), turn=turn, figures=figures))

    assert store.figures.speeds(user) == {}
    write_with(store.users.ensure("another"), "model", 40, 1.0)
    delete_for_good(store, user, write_with(user, "model", 40, 1.0))
    assert store.figures.speeds(user) == {}
    write_with(user, "old", 1000, 1.0)
    for _ in range(20):
        write_with(user, "old", 40, 4.0)
    write_with(user, "new", 30, 1.0)
    write_with(user, "new", 50, 3.0)
    write_with(user, "short", 4, 0.1)
    found = store.figures.speeds(user)
    assert {name: (one.per_second, one.replies) for name, one in found.items()} == {
        "old": (10.0, 20),
        "new": (30.0, 2),
    }


def test_a_models_speed_is_the_best_of_its_last_replies(store: Store, user: int) -> None:
    write(store, user, 9, measured(seconds=0.1, finish="loop"))
    write(store, user, 8, measured(seconds=0.1), tokens=15)  # too short to tell
    write(store, user, 2, measured(seconds=5.0))
    write(store, user, 1, measured(seconds=4.0))
    write(store, user, 0, measured(seconds=10.0))
    found = store.figures.speeds(user)["m"]
    assert (found.per_second, found.replies) == (5.0, 3)
    assert date.fromtimestamp(found.at) == date.today() - timedelta(days=1)
    for _ in range(figures.LAST):
        write(store, user, 0, measured(seconds=10.0))
    assert store.figures.speeds(user)["m"].per_second == 2.0
    assert store.figures.speeds(store.users.ensure("bob")) == {}
    assert store.figures.writers() == {"m"}
