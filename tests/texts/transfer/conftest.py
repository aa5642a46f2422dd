from __future__ import annotations

import pytest

from hierchat.store import Store
from tests.store.conftest import path, store

__all__ = ["path", "store"]


@pytest.fixture
def user(store: Store) -> int:
    return store.users.ensure("local")
