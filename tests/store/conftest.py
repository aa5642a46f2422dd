from __future__ import annotations

import os
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
    with Store.open(tmp_path_factory.mktemp("shared") / "history.db") as store:
        yield store


@pytest.fixture
def powerless(tmp_path: Path) -> Iterator[None]:
    """Permissions mean nothing to root: be nobody for the length of the test."""
    if os.geteuid() != 0:
        yield
        return
    opened = [folder for folder in (tmp_path, *tmp_path.parents) if folder.stat().st_uid == 0]
    modes = {folder: folder.stat().st_mode for folder in opened if not folder.stat().st_mode & 0o001}
    for folder, mode in modes.items():
        folder.chmod(mode | 0o011)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
        for folder, mode in modes.items():
            folder.chmod(mode)
