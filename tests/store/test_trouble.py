"""What SQLite says of a file that cannot be used never reaches a user, and stands in the log by its code alone."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from hierchat import logs
from hierchat.store import DatabaseCorrupt, DatabaseLocked, DatabaseUnwritable, NewMessage, Store, StoreError
from hierchat.store.connection import translated

WORDS = ("btreeInitPage", "malformed", "disk I/O", "not a database", "SQLITE", "sqlite", "error code", "***")
"""SQLite's own."""


def raised(code: int, words: str) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError(words)
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    ("code", "words", "kind", "advice"),
    [
        (sqlite3.SQLITE_CORRUPT, "database disk image is malformed", DatabaseCorrupt, "restore a backup"),
        (sqlite3.SQLITE_NOTADB, "file is not a database", DatabaseCorrupt, "restore a backup"),
        (sqlite3.SQLITE_IOERR, "disk I/O error", DatabaseUnwritable, "the disk reports an error"),
        (sqlite3.SQLITE_IOERR_READ, "disk I/O error", DatabaseUnwritable, "the disk reports an error"),
        (sqlite3.SQLITE_FULL, "database or disk is full", DatabaseUnwritable, "the disk is full"),
        (sqlite3.SQLITE_READONLY, "attempt to write a readonly database", DatabaseUnwritable, "read-only"),
        (sqlite3.SQLITE_CANTOPEN, "unable to open database file", DatabaseUnwritable, "cannot be opened"),
        (sqlite3.SQLITE_BUSY, "database is locked", DatabaseLocked, "try again"),
    ],
)
def test_each_is_a_sentence_that_says_what_to_do(
    code: int, words: str, kind: type[StoreError], advice: str
) -> None:
    with pytest.raises(kind, match=advice) as caught, translated(Path("chat.db")):
        raise raised(code, words)
    said = logs.error_message(caught.value)
    assert said == str(caught.value)
    assert words not in said
    assert [word for word in WORDS if word in said] == []


def test_a_file_with_broken_pages_is_refused_in_our_words(tmp_path: Path) -> None:
    """As it is found when it is opened, and when it breaks while it is open."""
    path = tmp_path / "chat.db"
    with Store.open(path) as store:
        user = store.users.ensure("me")
        for number in range(200):
            store.messages.add(user, store.chats.create(user), NewMessage(None, f"number {number} " * 20))
        store.connection.backup(tmp_path / "whole.db")
    whole = (tmp_path / "whole.db").read_bytes()
    seen = set()
    for page in range(1, len(whole) // 4096, 7):
        broken = bytearray(whole)
        broken[page * 4096 : page * 4096 + 400] = b"\x07" * 400
        file = tmp_path / f"{page}.db"
        file.write_bytes(broken)
        try:
            with Store.open(file) as store:
                store.connection.backup(tmp_path / f"{page}.copy")
        except StoreError as error:
            said = logs.error_message(error)
            seen.add(type(error))
            assert [word for word in WORDS if word in said] == [], said
            assert "restore a backup" in said
    assert seen == {DatabaseCorrupt}
