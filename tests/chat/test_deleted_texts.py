"""Freed memory is overwritten several times after a deletion, until the program ends."""

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from hierchat.chat import deleted_texts
from hierchat.chat.deleted_texts import DeletedTexts
from hierchat.engine.scheduler import Scheduler
from tests.testing.waiting import until

USER = 1


@pytest.fixture
def overwritten(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happened, in order; the times between are short."""
    happened: list[str] = []
    monkeypatch.setattr(deleted_texts, "overwrite_freed_memory", lambda: happened.append("overwritten"))
    monkeypatch.setattr(deleted_texts.template, "renew_process", lambda: None)
    monkeypatch.setattr(deleted_texts, "OVERWRITE_SECONDS", 0.01)
    monkeypatch.setattr(deleted_texts, "OVERWRITE_AGAIN", (0.3, 0.3))
    monkeypatch.setattr(deleted_texts, "REST", 0.0)
    monkeypatch.setattr(deleted_texts, "BUSY_SECONDS", 0.01)
    return happened


@pytest.fixture
def texts(overwritten: list[str]) -> DeletedTexts:
    nothing: Any = SimpleNamespace(model=None, forget=lambda user: None, follow=lambda user: None)
    nothing.scheduler = Scheduler()
    made = DeletedTexts(nothing, nothing, nothing)
    made.caches.append(lambda: overwritten.append("emptied"))
    return made


def test_what_a_thread_frees_late_is_overwritten_too(texts: DeletedTexts, overwritten: list[str]) -> None:
    texts.clear(USER)
    texts.wait(3)
    assert overwritten == ["emptied", "overwritten"] * 2 + ["overwritten"]  # caches fill again: not each time


def test_pages_of_those_who_deleted_are_drawn_anew(texts: DeletedTexts) -> None:
    drawn: list[set[int]] = []
    texts.screens.append(drawn.append)
    texts.clear(USER)
    texts.clear(USER + 1)
    texts.wait(3)
    assert set.union(*drawn) == {USER, USER + 1}
    texts.clear(USER)
    texts.wait(3)
    assert drawn[-1] == {USER}


def test_all_times_but_the_first_wait_while_a_reply_is_written(
    texts: DeletedTexts, overwritten: list[str]
) -> None:
    with texts._slot.scheduler.turn():
        texts.clear(USER)
        until(lambda: len(overwritten) == 2)
        time.sleep(0.5)
        assert overwritten == ["emptied", "overwritten"]
    texts.wait(3)
    assert overwritten[2:4] == ["emptied", "overwritten"]


def test_deletions_one_after_the_other_are_overwritten_by_one_thread(
    texts: DeletedTexts, overwritten: list[str]
) -> None:
    beside, at_once = threading.Lock(), list[bool]()

    def overwrite() -> None:
        at_once.append(not beside.acquire(blocking=False))
        time.sleep(0.02)
        beside.release()

    texts.overwrites.append(overwrite)
    for _ in range(20):
        texts.clear(USER)
        time.sleep(0.005)
    last = len(overwritten)
    texts.wait(3)
    assert not any(at_once)
    assert len(at_once) < 20  # several deletions share a time
    assert "emptied" in overwritten[last:]  # and the last has its own


def test_nothing_is_overwritten_once_the_program_ends(texts: DeletedTexts, overwritten: list[str]) -> None:
    texts.caches.insert(0, texts.close)
    texts.clear(USER)
    texts.wait(3)
    texts._thread.wait()
    assert overwritten == ["emptied", "overwritten"]
