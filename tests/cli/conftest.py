from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hierchat.store import LOCAL_USER, Store
from tests.testing.threads import one_thread

from .standin import Script, serving


@pytest.fixture(autouse=True)
def _no_titles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hierchat.chat.titles.IDLE_SECONDS", float("inf"))


@pytest.fixture(autouse=True, scope="package")
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "chat.db") as store:
        yield store


@pytest.fixture
def user(store: Store) -> int:
    return store.users.ensure(LOCAL_USER)


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def url(script: Script) -> Iterator[str]:
    with serving(script) as url:
        yield url
