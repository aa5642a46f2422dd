from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hierchat.store import Store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with Store.open(path, busy_seconds=0.05) as store:
        yield store


@pytest.fixture
def user(store: Store) -> int:
    return store.ensure_user("local")
