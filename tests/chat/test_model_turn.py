"""A reply's turn at the model: its place, a model that is being loaded or exchanged, stopping while it waits."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from typing import Any

import pytest

from hierchat.chat.completions import ModelTurn, NoModel
from hierchat.engine.scheduler import QueueFull, Scheduler
from hierchat.models.progress import ModelError
from hierchat.runtime.model_slot import ModelSlot
from tests.testing.tiny_chat import catalogue, settle


class Loaded:
    """Stands for a model; nothing is computed."""

    def __init__(self, name: str) -> None:
        self.name, self.note, self.drafts, self.is_local = name, "", True, False
        self.engine = type("Exact", (), {"exact": True, "places": 1})()


def slot(load: Any = None) -> ModelSlot:
    return ModelSlot(catalogue("a", "b"), load=load or (lambda name, report: Loaded(name)))


def ready() -> ModelSlot:
    one = slot()
    one.start("a")
    return settle(one)


def got(turn: ModelTurn) -> Any:
    """Wait for the turn; the model."""
    for _ in turn.waiting():
        pass
    return turn.model


def test_first_come_first_served_and_a_stop_leaves_the_queue() -> None:
    one, stop = ready(), threading.Event()
    with ModelTurn(one, stop) as first:
        assert got(first) is one.model
        with ModelTurn(one, stop) as second:
            places = second.waiting()
            assert [next(places), next(places)] == [1, 1]
            stop.set()
            assert list(places) == []
            assert second.model is None
    with ModelTurn(one, threading.Event()) as third:
        assert next(third.waiting()) == 0


def test_the_queue_is_bounded() -> None:
    one = ready()
    one.scheduler = Scheduler(most=1)
    with (
        ModelTurn(one, threading.Event()),
        pytest.raises(QueueFull, match="try again"),
        ModelTurn(one, threading.Event()),
    ):
        pass


def test_a_turn_comes_when_the_model_is_loaded() -> None:
    may = threading.Event()

    def load(name: str, report: Any) -> Any:
        assert may.wait(60)
        return Loaded(name)

    one = slot(load)
    one.status = type(one.status)("a", "loading")  # it is known what comes, but nothing loads yet
    with ModelTurn(one, threading.Event()) as turn:
        places = turn.waiting()
        assert [next(places), next(places), next(places)] == [0, 0, 0]
        one.start("a")
        assert [next(places), next(places)] == [0, 0]
        may.set()
        list(places)
        assert turn.model is one.model is not None


def test_a_model_is_exchanged_between_two_replies_ahead_of_those_that_wait() -> None:
    one = ready()
    with ExitStack() as rest:
        with ModelTurn(one, threading.Event()) as first:
            assert got(first).name == "a"
            second = rest.enter_context(ModelTurn(one, threading.Event()))
            places = second.waiting()
            assert next(places) == 1
            one.start("b")
            while not one.scheduler.firsts():
                time.sleep(0.005)
            assert next(places) == 1  # loading is no reply
        list(places)
        assert second.model is not None
        assert second.model.name == "b"


@pytest.mark.parametrize("failing", [True, False])
def test_without_a_model_it_is_said_at_once(failing: bool) -> None:
    def load(name: str, report: Any) -> Any:
        raise ModelError("No room.")

    one = slot(load)
    if failing:
        one.start("a")
        settle(one)
    with (
        ModelTurn(one, threading.Event()) as turn,
        pytest.raises(NoModel, match="No room" if failing else "Choose"),
    ):
        got(turn)


def test_many_replies_and_exchanges_never_overlap() -> None:
    one, within, seen = ready(), list[str](), list[str]()

    def reply() -> None:
        for _ in range(20):
            with ModelTurn(one, threading.Event()) as turn:
                model = got(turn)
                within.append(model.name)
                assert len(within) == 1
                assert one.model is model
                seen.append(within.pop())

    threads = [threading.Thread(target=reply) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        for name in ("b", "a"):
            one.start(name)
            time.sleep(0.01)
    for thread in threads:
        thread.join()
    assert len(seen) == 80
