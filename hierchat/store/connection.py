"""Opens one SQLite file, and runs transactions on it whose failures are StoreErrors."""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from sqlite_utils import Database

from hierchat.store.errors import StoreError, corrupt, gone, newer, no_file, translated, without_log
from hierchat.store.migrations import is_foreign, is_newer, migrations
from hierchat.store.writers import is_running, this_process

log = logging.getLogger(__name__)
CLOSE_SECONDS = 10.0
FOLD_SECONDS = 5.0
"""So long after a write, the log beside the file is written into the file."""
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
        self._folding: threading.Timer | None = None
        self._closed = False
        self.notice = ""
        """What the user should know of the file."""
        if self.path.exists() and not self.path.is_file():
            raise no_file(self.path)
        with translated(self.path):
            _create(self.path)
            alone = None if _log_of(self.path).exists() else time.time()
            if alone and _is_empty(self.path):
                raise without_log(self.path)
            _check(self.path, busy_seconds)
            self._file = self.path.stat()
        # The schema before the log: so a file that has a log, or had one, is never empty itself.
        with self._write() as db:
            migrations.apply(db)
        with translated(self.path), self._connected() as db:
            db.enable_wal()
        with self._write() as db:
            if _close_abandoned(db, alone):
                self.notice = (
                    f"{self.path} is a copy that was made while hierchat used the file, and {_log_of(self.path).name} "
                    "was not copied with it: what was written last may be missing. `hierchat backup FILE` makes whole "
                    "copies."
                )
                log.warning(self.notice)
            self._opening_id = _note_opening(db)

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
        self._fold_later()

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

    def fold(self) -> bool:
        """Write the log into the file and empty it; False where somebody reads or writes at this moment. Waits for
        nobody: what can be written is."""
        try:
            with translated(self.path), self._connected() as db:
                db.execute("PRAGMA busy_timeout = 0")
                try:
                    (busy, *_) = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                finally:
                    db.execute(f"PRAGMA busy_timeout = {round(self._busy_seconds * 1000)}")
        except StoreError:
            return False
        return not busy

    def _fold_later(self) -> None:
        with self._pool:
            if self._folding is None and not self._closed:
                self._folding = threading.Timer(FOLD_SECONDS, self._fold_now)
                self._folding.daemon = True
                self._folding.start()

    def _fold_now(self) -> None:
        with self._pool:
            self._folding = None
        if not self.fold():  # somebody reads for long
            self._fold_later()

    def close(self) -> None:
        """Write the log into the file, and close the connections; those in use are waited for."""
        if not self._closed:
            with suppress(StoreError):  # cannot be written: whoever opens it next knows who is gone
                with self._write() as db:
                    db.execute("DELETE FROM openings WHERE id = ?", [self._opening_id])
                self.fold()
        with self._pool:
            self._closed = True
            if self._folding is not None:
                self._folding.cancel()
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


def _log_of(path: Path) -> Path:
    """SQLite's write-ahead log, which stands beside the file for as long as a connection is open, or was not closed."""
    path = path.resolve()
    return path.with_name(f"{path.name}-wal")


def _note_opening(db: Database) -> int:
    pid, started = this_process()
    row: int = db.execute(
        "INSERT INTO openings (pid, started, opened_at) VALUES (?, ?, ?)", [pid, started, time.time()]
    ).lastrowid
    return row


def _close_abandoned(db: Database, alone: float | None) -> bool:
    """Forget openings whose process is gone. `alone`: when no log stood beside the file, if there was none; whether
    somebody had opened it before."""
    rows = db.execute("SELECT id, pid, started, opened_at FROM openings").fetchall()
    early = {id for id, _, _, at in rows if alone is not None and at < alone}
    gone_ids = early | {id for id, pid, started, _ in rows if not is_running(pid, started)}
    db.conn.executemany("DELETE FROM openings WHERE id = ?", [[id] for id in gone_ids])
    return bool(early)


def _is_empty(path: Path) -> bool:
    """Whether a file that no process has open was opened with a log, and has no table. Without SQLite, which would put
    a new log beside it."""
    with path.open("rb") as file:
        head = file.read(105)
    # Byte 18 tells the journal (2: a log). From byte 100 on stands the tree of tables: 13 a leaf, their number at 103.
    whole = len(head) == 105 and head.startswith(b"SQLite format 3\0")
    return whole and head[18] == 2 and head[100] == 13 and not any(head[103:105])


def _check(path: Path, busy_seconds: float) -> None:
    """Refuse a file that is damaged, foreign or newer, through a connection that cannot change it."""
    with closing(_connect(path, "ro", busy_seconds)) as db:
        (verdict,) = db.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise corrupt(path)
        # SQLite takes a file of a few bytes for an empty database.
        if path.stat().st_size and not db.execute("PRAGMA page_count").fetchone()[0]:
            raise corrupt(path)
        if is_newer(db):
            raise newer(path)
        if is_foreign(db):
            raise corrupt(path, "it is another program's database")
