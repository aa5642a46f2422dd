"""Open one SQLite file, update its schema, and run transactions on it whose failures are StoreErrors."""

import json
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Literal

from sqlite_utils import Database, Migrations

from hierchat.config import shipped
from hierchat.store.change_events import ChangeEvents
from hierchat.store.errors import DatabaseLocked, DatabaseUnwritable, StoreError, corrupt, translated

SYNCHRONOUS = "NORMAL"
"""A crash loses nothing acknowledged, a power cut at most the last seconds; no fsync delays a reply."""
CLOSE_SECONDS = 10.0
FOLD_SECONDS = 5.0
"""So long after a write, the log beside the file is written into the file."""
IDLE = 4
"""Connections that stay open unused, because threads come and go with every reply."""

_SCRIPTS = {
    path.stem: path.read_text(encoding="utf-8")
    for path in sorted((shipped("assets") / "schema").glob("*.sql"))
}
"""Steps of the schema, by the names that a database notes. One that has shipped is never changed: add the next one."""
migrations = Migrations("hierchat")
for _name, _script in _SCRIPTS.items():
    migrations(name=_name)(partial(Database.executescript, sql=_script))


class Connection:
    """Runs transactions on one SQLite file, each on a connection of its own. Usable from any thread."""

    def __init__(
        self, path: Path, busy_seconds: float, migrating: "Callable[[Connection, str], object]"
    ) -> None:
        """Open or create `path` and update its schema, after `migrating` with the first step. Raises a StoreError."""
        self.path = path.absolute()
        self.changes = ChangeEvents()
        self._busy_seconds = busy_seconds
        self._pool = threading.Condition()
        self._idle: list[Database] = []
        self._used = 0
        self._folding: threading.Timer | None = None
        self.closed = False
        self.before_rewriting: Callable[[], object] = lambda: None
        """Deletes what other files hold of deleted texts."""
        self._opened = False
        self.ended: set[int] = set()
        """Replies that ended while the file could not be written, which still says that they are being written."""
        if self.path.exists() and not self.path.is_file():
            raise DatabaseUnwritable(
                f"{self.path} is a folder or a device, not a file. Name a file with --db, such as "
                f"{self.path / 'hierchat.db'}."
            )
        with translated(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            # Never open a database that is there: closing it again would drop this process's locks on it. Only its
            # owner can read a new one; SQLite gives its side files the same mode.
            with suppress(FileExistsError):
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            _check(self.path, busy_seconds)
            self._file = self.path.stat()
        with self.read() as db:
            pending = migrations.pending(db) if migrations.applied(db) else []
        if pending:
            migrating(self, pending[0].name)
        # The schema before the log: so a file that has a log, or had one, is never empty itself.
        with self.write() as db:
            migrations.apply(db)
        with translated(self.path), self._connected() as db:
            db.enable_wal()
        self._opened = True

    @contextmanager
    def _connected(self) -> Iterator[Database]:
        """Lend a connection that nobody else uses or closes meanwhile. Not to be nested."""
        with self._pool:
            if self.closed:
                raise StoreError(f"{self.path} was closed. Open it again.")
            db = self._idle.pop() if self._idle else None
            self._used += 1
        reads_only = False
        try:
            if db is None:
                # Then it stays so, also when the rights are back.
                reads_only = not os.access(self.path, os.W_OK)
                db = connect(self.path, "rw", self._busy_seconds)
                db.execute("PRAGMA foreign_keys = ON")
                db.execute(f"PRAGMA synchronous = {SYNCHRONOUS}")
                db.execute("PRAGMA secure_delete = ON")
            yield db
        finally:
            with self._pool:
                self._used -= 1
                if db is not None:
                    if reads_only or self.closed or len(self._idle) >= IDLE or db.conn.in_transaction:
                        db.close()
                    else:
                        self._idle.append(db)
                self._pool.notify_all()

    def read(self) -> AbstractContextManager[Database]:
        """Run the queries inside on one snapshot of the database."""
        return self._transaction("BEGIN")

    @contextmanager
    def write(self) -> Iterator[Database]:
        """Commit all that is done inside, or nothing."""
        ended = set(self.ended)
        # IMMEDIATE: a reader that turns writer would not wait for the busy timeout.
        with self._transaction("BEGIN IMMEDIATE") as db:
            if ended:
                interrupt(db, ended)
            yield db
        self.ended -= ended
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
        """Raise DatabaseUnwritable if the open file was replaced or removed: SQLite would write into the void."""
        try:
            same = os.path.samestat(self._file, self.path.stat())
        except FileNotFoundError:
            same = False
        if not same and not self.closed:
            raise DatabaseUnwritable(
                f"{self.path} was moved, deleted or replaced while hierchat ran. End hierchat, put the file or a "
                "backup of it back in its place, and start hierchat again."
            )

    def fold(self) -> bool:
        """Write the log into the file and empty it, without waiting; False if others read or write."""
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
            if self._folding is None and self._opened and not self.closed:  # not where opening it fails
                self._folding = threading.Timer(FOLD_SECONDS, self._fold_now)
                self._folding.daemon = True
                self._folding.start()

    def _fold_now(self) -> None:
        with self._pool:
            self._folding = None
        if not self.fold():  # somebody reads for long
            self._fold_later()

    def rewrite_what_is_soiled(self) -> None:
        """Rewrite the file if deleted texts are left in it, since a process died or the file was busy."""
        with self.read() as db:
            (state,) = db.execute("PRAGMA user_version").fetchone()
        if state != CLEAN:
            self.rewrite()

    def rewrite(self) -> bool:
        """Rewrite the file without what was deleted; False if a full disk or another program prevents it."""
        self.before_rewriting()
        try:
            with translated(self.path), self._connected() as db:
                # secure_delete misses what moved between pages before (ran: one word in some thousands).
                db.execute("VACUUM")
                db.execute(f"PRAGMA user_version = {CLEAN}")
                (busy, *_) = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except (DatabaseLocked, DatabaseUnwritable):
            return False
        with self._pool:  # they hold pages of the file as it was
            while self._idle:
                self._idle.pop().close()
        if busy:
            self._fold_later()
        return not busy

    def backup(self, path: Path) -> None:
        """Write a copy of the database for its owner only, without hidden or deleted texts, incognito chats and guests.
        Raises StoreError if `path` exists or the copy is damaged, DatabaseUnwritable."""
        with new_file(path) as part, translated(path), self._connected() as db:
            db.execute("VACUUM INTO ?", [str(part)])  # in one step, whatever is written meanwhile
            with closing(Database(sqlite3.connect(part, isolation_level=None))) as copy:
                copy.execute("PRAGMA foreign_keys = ON")
                if sum([copy.execute(f"DELETE FROM {which}").rowcount for which in _left_out(copy)]):
                    drop_words(copy)
                    copy.execute("VACUUM")
                # A file that is carried elsewhere must need no others beside it.
                copy.execute("PRAGMA journal_mode = DELETE").fetchone()
                (verdict,) = copy.execute("PRAGMA integrity_check(1)").fetchone()
            if verdict != "ok":
                raise corrupt(self.path)

    def close(self) -> None:
        """Write the log into the file and close all connections, waiting for those in use."""
        if not self.closed:
            self.fold()
        with self._pool:
            self.closed = True
            if self._folding is not None:
                self._folding.cancel()
            while self._idle:
                self._idle.pop().close()
            # One that is busy for longer closes when it is done; what it writes is whole or not there.
            self._pool.wait_for(lambda: not self._used, CLOSE_SECONDS)


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Create a private file in the same folder, and rename it to `path` after the block, whole or not at all.
    Raises StoreError if `path` exists, DatabaseUnwritable."""
    path = path.absolute()
    part = path.with_name(path.name + ".part")
    _require_free(path)
    with translated(path):
        part.unlink(missing_ok=True)  # of one that was killed
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    try:
        yield part
        _require_free(path)
        with translated(path):
            part.rename(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _require_free(path: Path) -> None:
    if path.exists() or path.is_symlink():
        raise StoreError(f"{path} already exists. Choose another name.")


def add_row(db: Database, table: str, **values: object) -> int:
    """Insert a row, as part of a transaction, and return its id."""
    places = ", ".join("?" * len(values))
    added = db.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({places})", [*values.values()])
    return int(added.lastrowid)


def interrupt(db: Database, message_ids: Iterable[int]) -> None:
    """Mark these replies as interrupted, in a transaction."""
    # One statement even for no message: on opening, it is what finds out that a file is read-only.
    db.execute(
        "UPDATE messages SET state = 'interrupted' WHERE id IN (SELECT value FROM json_each(?))",
        [json.dumps(list(message_ids))],
    )


CLEAN, SOILED = 0, 1
"""What stands in `user_version`: whether bytes of what was deleted may be in the file until it is rewritten."""


def drop_words(db: Database) -> None:
    """Remove the words of deleted texts from the search index in their transaction; the file is to be rewritten."""
    # Only a merge of the whole index drops the words of what was deleted.
    for index in ("messages_fts", "titles_fts", "attachments_fts", "passages_fts"):
        if db[index].exists():  # not in copies with an older schema
            db.execute(f"INSERT INTO {index} ({index}) VALUES ('optimize')")
    db.execute(f"PRAGMA user_version = {SOILED}")


def _left_out(db: Database) -> Iterator[str]:
    for table in ("conversations", "projects"):
        if "hidden_by" in db[table].columns_dict:
            yield f"{table} WHERE hidden_by IS NOT NULL"
    if db["guests"].exists():
        yield "users WHERE name IN (SELECT name FROM guests)"


def connect(path: Path, mode: str, busy_seconds: float) -> Database:
    conn = sqlite3.connect(
        f"{path.as_uri()}?mode={mode}",
        uri=True,
        timeout=busy_seconds,
        isolation_level=None,  # transactions begin where we say so
        check_same_thread=False,  # one thread after the other uses it
    )
    return Database(conn)


def log_of(path: Path) -> Path:
    """Return the path of SQLite's write-ahead log, which exists while a connection is open, or was not closed."""
    path = path.resolve()
    return path.with_name(f"{path.name}-wal")


def state_of(path: Path, db: Database) -> Literal["well", "damaged", "newer", "foreign"]:
    """Return whether an open file is a whole database of ours, without changing it."""
    if db.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
        return "damaged"
    # SQLite takes a file of a few bytes for an empty database.
    if path.stat().st_size and not db.execute("PRAGMA page_count").fetchone()[0]:
        return "damaged"
    steps = migrations.applied(db)
    if any(step.name not in _SCRIPTS for step in steps):
        return "newer"
    return "foreign" if db.table_names() and not steps else "well"


def _check(path: Path, busy_seconds: float) -> None:
    # A transaction of a program that died without a log is undone first, and only who may write can do that.
    died = Path(f"{path.resolve()}-journal").exists()
    with closing(connect(path, "rw" if died else "ro", busy_seconds)) as db:
        state = state_of(path, db)
    if state == "newer":
        raise StoreError(
            f"{path} was written by a newer hierchat and was left as it is. Update hierchat, or choose another file "
            "with --db."
        )
    if state == "foreign":
        raise corrupt(path, "it is another program's database")
    if state == "damaged":
        raise corrupt(path)
