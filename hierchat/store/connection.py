"""Opens one SQLite file, and runs transactions on it whose failures are StoreErrors."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from sqlite_utils import Database

from hierchat.store.errors import StoreError, corrupt, gone, newer, no_file, translated
from hierchat.store.migrations import is_foreign, is_newer, migrations

CLOSE_SECONDS = 10.0
IDLE = 4
"""Connections that stay open while nobody uses them. Threads come and go with every reply: one for each would be opened
anew all the time, and SQLite keeps the file of one that is closed open as long as there is any other."""


class Connected:
    """What every part of the store is built on: transactions, each on a connection of its own."""

    def __init__(self, path: Path, busy_seconds: float) -> None:
        """Open `path`, create it if missing, bring its schema up to date. Raises the errors of errors.py."""
        self.path = path.absolute()
        self._busy_seconds = busy_seconds
        self._pool = threading.Condition()
        self._idle: list[Database] = []
        self._used = 0
        self._closed = False
        if self.path.exists() and not self.path.is_file():
            raise no_file(self.path)
        with translated(self.path):
            _create(self.path)
            _check(self.path, busy_seconds)
            self._file = self.path.stat()
            with self._connected() as db:
                db.enable_wal()
        with self._write() as db:
            migrations.apply(db)

    @contextmanager
    def _connected(self) -> Iterator[Database]:
        """A connection that nobody else uses or closes meanwhile: Python's module crashes where one thread closes a
        connection within another's statement. Not to be asked for within itself: that would be another one."""
        with self._pool:
            if self._closed:
                raise StoreError(f"{self.path} was closed. Open it again.")
            db = self._idle.pop() if self._idle else None
            self._used += 1
        try:
            db = db or self._opened()
            yield db
        finally:
            with self._pool:
                self._used -= 1
                if db is not None:
                    if self._closed or len(self._idle) >= IDLE or db.conn.in_transaction:
                        db.close()
                    else:
                        self._idle.append(db)
                self._pool.notify_all()

    def _opened(self) -> Database:
        db = _connect(self.path, "rw", self._busy_seconds)
        db.execute("PRAGMA foreign_keys = ON")
        # NORMAL: a crash of the program loses nothing acknowledged, a power cut may lose the last seconds
        # but never the file, and no fsync holds up the reply that is being written.
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("PRAGMA secure_delete = ON")
        return db

    @contextmanager
    def _read(self) -> Iterator[Database]:
        """All queries inside see one moment of the database."""
        with self._transaction("BEGIN") as db:
            yield db

    @contextmanager
    def _write(self) -> Iterator[Database]:
        """All or nothing. IMMEDIATE: a reader that turns writer would not wait for the busy timeout."""
        with self._transaction("BEGIN IMMEDIATE") as db:
            yield db

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[Database]:
        with translated(self.path):
            self._require_file()
            with self._connected() as db:
                db.execute(begin)
                try:
                    # Another connection may have rewritten the file. Then the schema is read anew here: within a
                    # statement whose trigger opens a full-text table, SQLite 3.40 loses it: "no such table".
                    db.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
                    yield db
                    db.commit()
                except BaseException:
                    db.rollback()
                    raise

    def _require_file(self) -> None:
        """A connection goes on with the file that it opened, though another one, or none, has its name by now: what is
        written would be lost with the last connection. Raises DatabaseUnwritable."""
        try:
            same = os.path.samestat(self._file, self.path.stat())
        except FileNotFoundError:
            same = False
        if not same and not self._closed:
            raise gone(self.path)

    def close(self) -> None:
        """Close the connections: those in use by whoever uses them, for which it waits."""
        with self._pool:
            self._closed = True
            while self._idle:
                self._idle.pop().close()
            # One that is busy for longer closes when it is done; what it writes is whole or not there.
            self._pool.wait_for(lambda: not self._used, CLOSE_SECONDS)


def _connect(path: Path, mode: str, busy_seconds: float) -> Database:
    conn = sqlite3.connect(
        f"{path.as_uri()}?mode={mode}",
        uri=True,
        timeout=busy_seconds,
        isolation_level=None,  # transactions begin where we say so
        check_same_thread=False,  # one thread after the other uses it
    )
    return Database(conn)


def _create(path: Path) -> None:
    """An empty file that only its owner can read; SQLite gives its side files the same mode."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # Never open a database that is there: closing it again would drop this process's locks on it.
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))


def _check(path: Path, busy_seconds: float) -> None:
    """Refuse a file that is damaged, foreign or newer, through a connection that cannot change it."""
    with closing(_connect(path, "ro", busy_seconds)) as db:
        (verdict,) = db.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise corrupt(path, verdict)
        # SQLite takes a file of a few bytes for an empty database.
        if path.stat().st_size and not db.execute("PRAGMA page_count").fetchone()[0]:
            raise corrupt(path, "file is not a database")
        if is_newer(db):
            raise newer(path)
        if is_foreign(db):
            raise corrupt(path, "another program's database")
