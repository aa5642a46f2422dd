"""One contract for every part of the store: what its methods do with a file that is closed, in use or read-only."""

import inspect
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hierchat.store import Store, StoreError
from hierchat.store.errors import DatabaseLocked, DatabaseUnwritable
from hierchat.store.repository import Repository
from tests.isolation.test_store import METHODS, PARTS, calls, part_of
from tests.testing.secrets import Secrets, fill, rows_of

READS = {
    "Accounts": ("all",), "Chats": ("untitled",), "Keys": ("all",), "Users": ("ids",),
}  # fmt: skip
"""Methods without a user, by class."""


@pytest.fixture
def filled(store: Store) -> Secrets:
    return fill(store, "ann")


def named_part(store: Store, name: str) -> Any:
    return part_of(store, next(kind for kind in PARTS if kind.__name__ == name.split(".")[0]))


def uses(store: Store, filled: Secrets, name: str) -> Iterator[Callable[[], object]]:
    """Calls of a method by the user to whom all of it belongs."""
    for call in calls(name, METHODS[name], filled.user, filled.ids):
        yield lambda call=call: METHODS[name](named_part(store, name), **call)  # type: ignore[misc]


def test_a_closed_store_says_so(store: Store, filled: Secrets) -> None:
    store.close()
    for name in METHODS.keys() - {"Chats.delete_hidden"}:
        for use in uses(store, filled, name):
            with pytest.raises(StoreError, match="Open it again"):
                use()
    for kind, names in READS.items():
        for name in names:
            method = getattr(named_part(store, kind), name)
            with pytest.raises(StoreError, match="Open it again"):
                method(*["m", 0.0][: len(inspect.signature(method).parameters)])


@pytest.mark.parametrize("kind", PARTS, ids=lambda kind: kind.__name__)
def test_a_file_in_use_changes_nothing(
    store: Store, filled: Secrets, path: Path, kind: type[Repository]
) -> None:
    """Reading goes on while another program writes; writing is refused as a whole, and works afterwards."""
    before = rows_of(store, filled.user)
    refused = []
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        for name in METHODS:
            for use in uses(store, filled, name) if name.split(".")[0] == kind.__name__ else ():
                try:
                    use()
                except DatabaseLocked as error:
                    refused.append((name, use, str(error)))
                except StoreError:
                    pass  # it is not there
                assert rows_of(store, filled.user) == before, name
    assert [name for name, _, message in refused if "Close that program" not in message] == []
    for name, use, _ in refused:
        try:
            use()
        except (DatabaseLocked, DatabaseUnwritable) as error:
            pytest.fail(f"{name}: {error}")
        except StoreError:
            pass
