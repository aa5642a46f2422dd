"""When it writes, for whom, and how it gives way: by the order of what is done, not by a clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from itertools import count, pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from hierchat.chat import spare_time as machines
from hierchat.chat.idle_generation import IdleState
from hierchat.chat.in_progress import Question
from hierchat.chat.service import ChatService
from hierchat.chat.spare_time import BUSY, ON_BATTERY, Machine
from hierchat.config import GenerationSettings
from hierchat.engine.cpu.runner import CpuRunner
from hierchat.engine.cpu.sequence import CpuSequence
from hierchat.store import IdleSettings, Store
from tests.testing.tiny_chat import END

from .conftest import ASKED, Writing, slot

AT_ONCE = IdleSettings(True, 0.0, 500_000)
DONE = {one.key: len(one.turns) for one in ASKED if one.key != "k3"}  # the long one does not fit


@pytest.fixture(autouse=True)
def _no_titles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hierchat.chat.titles.IDLE_SECONDS", float("inf"))


@pytest.fixture
def service(store: Store) -> Iterator[ChatService]:
    made = ChatService(store, slot())
    yield made
    made.close()


def until(true: Callable[[], Any]) -> None:
    while not true():
        time.sleep(0.002)


def written(service: ChatService, user: int) -> dict[str, int]:
    return service.store.generated.replies(user, "key of tiny")


def ask(service: ChatService, user: int, text: str = "Where does it end?", **settings: Any) -> Any:
    chat = service.store.chats.create(user)
    usual = {"max_new_tokens": 12, "logit_bias": {END: -100.0}}
    asked = service.send(
        user, Question(chat, None, text), GenerationSettings(**{**usual, **settings}), threading.Event()
    )
    return chat, list(asked)[-1]


def test_off_until_it_is_allowed(service: ChatService, store: Store) -> None:
    user = store.users.ensure("ann")
    assert service.idle.state(user).phase == "off"
    assert written(service, user) == {}
    service.idle.choose(user, IdleSettings(True, 60.0, 500_000))
    assert service.idle.state(user).phase == "waiting"
    service.idle.choose(user, AT_ONCE)
    until(lambda: written(service, user) == DONE)
    assert store.chats.find(user) == []
    service.idle.choose(user, IdleSettings(False))
    assert service.idle.state(user) == IdleState(
        "off", IdleSettings(False), store.generated.size(user).tokens
    )


def test_it_drafts_for_that_user_and_says_so(service: ChatService, store: Store) -> None:
    """The same question gives the same greedy reply, which was written before: nearly all of it is drafted."""
    ann, ben = store.users.ensure("ann"), store.users.ensure("ben")
    service.idle.choose(ann, AT_ONCE)
    until(lambda: written(service, ann) == DONE)
    service.idle.choose(ann, IdleSettings(False))
    mine, last = ask(service, ann, "Why?", max_new_tokens=20, logit_bias={})
    _, others = ask(service, ben, "Why?", max_new_tokens=20, logit_bias={})
    assert last.text == others.text
    spans = store.replies.spans(ann, last.message_id)
    found = sum(span.length for span in spans if span.origin.slot == "self")
    assert found > 0
    assert not [span for span in store.replies.spans(ben, others.message_id) if span.origin.slot == "self"]
    assert store.generated.drafted(ann).found == found
    assert store.generated.drafted(ben).found == 0
    runs = service.runs(ann, last.message_id)
    assert "self" in {run.origin.slot for run in runs}
    store.users.set_drafts_from(ann, "chat")
    _, alone = ask(service, ann, "Why?", max_new_tokens=20, logit_bias={})
    assert alone.text == last.text
    assert not [span for span in store.replies.spans(ann, alone.message_id) if span.origin.slot == "self"]
    assert mine


def test_questions_of_the_user_are_asked_again(service: ChatService, store: Store) -> None:
    user = store.users.ensure("ann")
    chat, _ = ask(service, user, "Where does the river end?")
    service.idle.choose(user, AT_ONCE)
    until(lambda: len(written(service, user)) > len(DONE) + 3)
    service.idle.choose(user, IdleSettings(False))
    assert set(DONE) <= set(written(service, user))
    store.chats.hide(user, chat)
    store.chats.delete_hidden()
    assert set(written(service, user)) == set(DONE)
    _, last = ask(service, user, "Why?", max_new_tokens=20)  # and the index knows
    assert last.finish


class Order:
    """What is computed, in order: by whom each forward and each reading of a prompt is begun."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.began: list[str] = []
        self.before: Callable[[], None] = lambda: None
        """Called when the learning begins to compute something."""
        inside = threading.local()

        def watched(kind: type, name: str) -> None:
            original = getattr(kind, name)

            def computing(*args: Any, **named: Any) -> Any:
                if getattr(inside, "deep", False):  # a reading is made of forwards
                    return original(*args, **named)
                inside.deep = True
                try:
                    mine = threading.current_thread().name == "learning"
                    self.began.append("learning" if mine else "person")
                    if mine:
                        self.before()
                    return original(*args, **named)
                finally:
                    inside.deep = False

            monkeypatch.setattr(kind, name, computing)

        watched(CpuRunner, "forward")
        watched(CpuSequence, "forward")
        watched(CpuSequence, "read")


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> Order:
    return Order(monkeypatch)


@pytest.mark.parametrize("at", [2, 9, 30])
def test_who_asks_has_the_next_forward(service: ChatService, store: Store, order: Order, at: int) -> None:
    """Whether it is reading prompts or writing: after the step that is under way nothing of it is computed, and its
    sequences are free. Later it goes on with what was half there."""
    user, other = store.users.ensure("ann"), store.users.ensure("ben")
    before = len(order.began)
    person = threading.Thread(target=lambda: ask(service, other))
    asked_at: list[int] = []

    def joining() -> None:
        if len(order.began) - before == at and not asked_at:
            person.start()
            until(lambda: service.slot.scheduler.waiting)
            # It does not begin anew before the reply is there.
            service.idle._touched = time.monotonic() + 3600
            asked_at.append(len(order.began))

    order.before = joining
    service.idle.choose(user, AT_ONCE)
    until(lambda: asked_at)
    person.join()
    (joined,) = asked_at
    assert order.began[before:joined] == ["learning"] * at
    assert set(order.began[joined:]) == {"person"}
    assert service.idle.state(user).phase == "waiting"
    until(lambda: store.generated.size(user).tokens > 0 or at < 9)  # kept once the model is given back
    order.before = lambda: None
    service.idle._touched = 0.0
    until(lambda: written(service, user) == DONE)
    service.idle.choose(user, IdleSettings(False))
    with Store.open(store.path.with_name("plain.db")) as another:
        whole = Writing(another, service.slot.model)
        whole.write(ASKED)
        mine = Writing(store, service.slot.model)
        assert mine.texts() == whole.texts()


def test_typing_stops_it(service: ChatService, store: Store, order: Order) -> None:
    user = store.users.ensure("ann")
    typed_at: list[int] = []

    def typing() -> None:
        writer = service.idle._writer
        if writer and writer.tokens and not typed_at:
            typed_at.append(len(order.began))
            service.idle.touched()
            service.idle._touched += 3600

    order.before = typing
    service.idle.choose(user, AT_ONCE)
    until(lambda: typed_at and service.idle.state(user).phase == "waiting")
    assert order.began[typed_at[0] :] == []
    until(lambda: store.generated.size(user).tokens > 0)  # kept once the model is given back


def test_a_busy_machine_stops_it(service: ChatService, store: Store, order: Order) -> None:
    user = store.users.ensure("ann")
    spare: Any = service.idle._spare
    wrote = lambda: service.idle._writer and service.idle._writer.tokens  # noqa: E731
    order.before = lambda: setattr(spare, "said", BUSY if wrote() else "")
    service.idle.choose(user, AT_ONCE)
    until(lambda: service.idle.state(user).phase == "not now")
    assert service.idle.state(user).reason == BUSY
    until(lambda: store.generated.size(user).tokens > 0)  # kept once the model is given back
    assert written(service, user) != DONE
    order.before = lambda: None
    spare.said = ""
    until(lambda: written(service, user) == DONE)


def test_it_ends_at_the_limit(service: ChatService, store: Store) -> None:
    user = store.users.ensure("ann")
    service.idle.choose(user, IdleSettings(True, 0.0, 30))
    until(lambda: service.idle.state(user).phase == "full")
    assert 30 <= store.generated.size(user).tokens < 40


@pytest.mark.parametrize("what", ["delete", "forget"])
def test_deleted_while_it_writes(service: ChatService, store: Store, order: Order, what: str) -> None:
    user = store.users.ensure("ann")
    enough = threading.Event()
    order.before = lambda: enough.set() if len(order.began) > 12 else None
    service.idle.choose(user, AT_ONCE)
    enough.wait()
    if what == "delete":
        assert service.idle.delete(user)
        service.idle.choose(user, IdleSettings(False))
    else:
        assert service.forget_user(user)
        assert service.idle.state(user).phase == "off"
    until(lambda: service.idle._writer is None)
    service.idle.delete(user)
    assert store.generated.size(user).texts == 0


def test_users_take_turns(service: ChatService, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = count()
    monkeypatch.setattr(
        "hierchat.chat.idle_generation.time", SimpleNamespace(monotonic=lambda: float(next(steps)))
    )
    monkeypatch.setattr("hierchat.chat.idle_generation.TURN_SECONDS", 25.0)
    users = [store.users.ensure(name) for name in ("ann", "ben")]
    seen: list[int] = []
    keep = store.generated.keep
    monkeypatch.setattr(
        store.generated, "keep", lambda user, *a, **n: seen.append(user) or keep(user, *a, **n)
    )
    for user in users:
        store.users.set_idle_settings(user, AT_ONCE)
    service.idle.wake()
    until(lambda: all(written(service, user) == DONE for user in users))
    changes = sum(one != other for one, other in pairwise(seen))
    assert changes > 2


@pytest.mark.parametrize(
    ("battery", "others", "said"),
    [
        (None, 0.0, ""),
        (None, 0.9, BUSY),
        (True, 0.0, ""),
        (False, 0.0, ON_BATTERY),
        ("unknown", 0.0, ON_BATTERY),
    ],
)
def test_when_a_machine_has_time_to_spare(
    monkeypatch: pytest.MonkeyPatch, battery: Any, others: float, said: str
) -> None:
    """Of its own use it takes no notice."""
    now = {"seconds": 100.0, "mine": 0.0, "others": 0.0}

    class Times(tuple):
        idle, iowait, guest, guest_nice = 0.0, 0.0, 1.0, 0.0

    class Process:
        def cpu_times(self) -> Any:
            return type("Mine", (), {"user": now["mine"], "system": 0.0})

    plugged = {"unknown": None}.get(battery, battery)
    found = None if battery is None else type("Battery", (), {"power_plugged": plugged})
    monkeypatch.setattr(machines.time, "monotonic", lambda: now["seconds"])
    monkeypatch.setattr(machines.psutil, "Process", Process)
    monkeypatch.setattr(machines.psutil, "cpu_count", lambda: 2)
    monkeypatch.setattr(machines.psutil, "cpu_times", lambda: Times((now["mine"] + now["others"], 1.0)))
    monkeypatch.setattr(machines.psutil, "sensors_battery", lambda: found, raising=False)
    machine = Machine()
    for _ in range(3):
        now["seconds"] += 5.0
        now["mine"] += 10.0
        now["others"] += 5.0 * others
        assert machine.trouble() == said
    now["others"] += 100.0
    assert machine.trouble() == said  # looked at once a second
