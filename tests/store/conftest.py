from collections.abc import Iterator
from pathlib import Path

import pytest

from hierchat.store import Store
from tests.testing.stores import new_store


@pytest.fixture(autouse=True)
def _no_folding_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests look at the connections that are there: on a slow machine the thread that folds would hold one."""
    monkeypatch.setattr("hierchat.store.connection.FOLD_SECONDS", 3600.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with new_store(path, busy_seconds=0.05) as store:
        yield store


@pytest.fixture
def user(store: Store) -> int:
    return store.users.ensure("ann")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """One store for all examples of a property, each in its own conversation or of its own user."""
    with new_store(tmp_path_factory.mktemp("shared") / "history.db") as store:
        yield store
