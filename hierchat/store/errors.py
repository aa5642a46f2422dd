"""Define what can go wrong with the database, each error with a sentence that says what to do."""

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

log = logging.getLogger(__name__)
_WHY = {
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_IOERR: "the disk reports an error",
    sqlite3.SQLITE_READONLY: "it is read-only",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened",
    sqlite3.SQLITE_PERM: "the system does not allow it",
    sqlite3.SQLITE_AUTH: "the system does not allow it",
}
"""SQLite's error codes, in words for people who do not know SQLite."""


class StoreError(Exception):
    """Raised for any failure of the store; the message is fit to be shown to the user."""


class NotFound(StoreError):
    """Raised if a conversation or message does not exist, or belongs to another user."""


class DatabaseLocked(StoreError):
    """Raised if another program held the file for longer than the busy timeout."""


class DatabaseCorrupt(StoreError):
    """Raised if the file is damaged or no hierchat database. It was not touched by opening it."""


class DatabaseUnwritable(StoreError):
    """Raised if the file or its folder cannot be written: permissions, a read-only disk, a full disk."""


def corrupt(path: Path, what: str = "it is damaged, or no database") -> DatabaseCorrupt:
    return DatabaseCorrupt(
        f"{path} cannot be read: {what}. It was left as it is: restore a backup, or choose another file with --db."
    )


def unwritable(path: Path, what: object) -> DatabaseUnwritable:
    return DatabaseUnwritable(
        f"{path} cannot be written ({what}). Free some disk space or make the file and its folder writable, "
        "or choose another place with --db."
    )


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn errors of SQLite about the file, and of the file system, into StoreErrors; let bugs through."""
    try:
        yield
    except OSError as error:
        raise unwritable(path, error.strerror or error) from error
    except sqlite3.Error as error:
        # The low byte is the primary code; the rest tells e.g. the kinds of SQLITE_IOERR apart.
        match getattr(error, "sqlite_errorcode", 0) & 0xFF:
            case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
                raise DatabaseLocked(
                    f"{path} is locked by another program. Close that program, then try again."
                ) from error
            case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
                log.error("the database is damaged", exc_info=error)
                raise corrupt(path) from error
            case code if code in _WHY:
                log.error("the database cannot be written", exc_info=error)
                raise unwritable(path, _WHY[code]) from error
        raise
