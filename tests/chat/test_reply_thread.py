"""Running ahead of the reader."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator

import pytest

from hierchat.chat.in_progress import in_reply_thread


def counting(stop: threading.Event, seen: list[int], last: int = 10**9) -> Generator[int, None, None]:
    for number in range(last + 1):
        seen.append(number)
        yield number
        if stop.is_set():
            return


def test_the_last_value_always_arrives_in_order() -> None:
    stop = threading.Event()
    values = list(in_reply_thread(lambda: counting(stop, [], 500), stop))
    assert values[-1] == 500
    assert values == sorted(set(values))


def test_a_slow_reader_gets_the_latest() -> None:
    stop, seen = threading.Event(), list[int]()
    values = []
    for value in in_reply_thread(lambda: counting(stop, seen, 2000), stop):
        values.append(value)
        time.sleep(0.02)
    assert seen == list(range(2001))
    assert values[-1] == 2000
    assert len(values) < 2001


def test_a_reader_that_leaves_stops_the_work() -> None:
    stop = threading.Event()
    values = in_reply_thread(lambda: counting(stop, []), stop)
    next(values)
    values.close()
    assert stop.is_set()
    assert not [thread for thread in threading.enumerate() if thread.name == "reply"]


def test_exceptions_pass_through() -> None:
    def failing() -> Generator[int, None, None]:
        yield 1
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        list(in_reply_thread(failing, threading.Event()))


def test_it_all_runs_in_one_other_thread() -> None:
    def naming() -> Generator[str, None, None]:
        for _ in range(3):
            yield threading.current_thread().name

    assert set(in_reply_thread(naming, threading.Event())) == {"reply"}
