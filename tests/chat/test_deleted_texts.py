"""Freed memory is overwritten several times after a deletion, until the program ends."""

from types import SimpleNamespace
from typing import Any

import pytest

from hierchat.chat import deleted_texts
from hierchat.chat.deleted_texts import DeletedTexts
from tests.testing.waiting import until

USER = 1


@pytest.fixture
def overwritten(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happened, in order; the times between are short."""
    happened: list[str] = []
    monkeypatch.setattr(deleted_texts, "overwrite_freed_memory", lambda: happened.append("overwritten"))
    monkeypatch.setattr(deleted_texts.template, "end_process", lambda: None)
    monkeypatch.setattr(deleted_texts, "OVERWRITE_SECONDS", 0.01)
    monkeypatch.setattr(deleted_texts, "OVERWRITE_AGAIN", (0.01, 0.01))
    return happened


@pytest.fixture
def texts(overwritten: list[str]) -> DeletedTexts:
    nothing: Any = SimpleNamespace(model=None, forget=lambda user: None, follow=lambda user: None)
    made = DeletedTexts(nothing, nothing, nothing)
    made.caches.append(lambda: overwritten.append("emptied"))
    return made


def test_what_a_thread_frees_late_is_overwritten_too(texts: DeletedTexts, overwritten: list[str]) -> None:
    texts.clear(USER)
    until(lambda: len(overwritten) >= 6)
    assert overwritten == ["emptied", "overwritten"] * 3


def test_nothing_is_overwritten_once_the_program_ends(texts: DeletedTexts, overwritten: list[str]) -> None:
    texts.caches.insert(0, texts.close)
    texts.clear(USER)
    until(lambda: len(overwritten) >= 2)
    texts._timer.join()
    assert overwritten == ["emptied", "overwritten"]
