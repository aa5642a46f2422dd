"""Copy the database each day and before its schema changes, examine one, and restore a backup in its place."""

import logging
import os
import re
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Set
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sqlite_utils import Database

from hierchat.store.chats import delete_conversation
from hierchat.store.connection import Connection, connect, drop_words, log_of, migrations, state_of
from hierchat.store.errors import StoreError, corrupt, translated

KEPT = 7
SPARE_BYTES, SPARE_SHARE = 1 << 30, 0.05
"""What stays free of a disk, as bytes and as a share of it: else no copy is made that nobody asked for."""
STALE_SECONDS = 3600.0
"""A copy that is half made for so long is nobody's."""
Identity = tuple[int, float]
"""Id of a conversation or project, and when it was created: a restored database may give an id again."""
_log = logging.getLogger(__name__)


class Backups:
    """Makes and keeps the latest KEPT automatic copies of one database in the folder `backups`, numbered by age."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.folder = _folder(connection.path)
        self._lock = threading.Lock()

    def all(self) -> list[Path]:
        """Return the automatic copies, the latest first."""
        return backups_of(self._connection.path)

    def due(self) -> bool:
        return not any(time.strftime("%Y-%m-%d") in path.name for path in self.all()[:1])

    def make(self, before: str = "") -> Path | None:
        """Make a copy, delete old ones; None if the disk is nearly full. `before`: schema step. Raises StoreError."""
        with self._lock:
            there, path = self.all(), self._connection.path
            number = _number(path, there[0]) + 1 if there else 1
            name = f"{path.stem}-{number:05d}-{time.strftime('%Y-%m-%d')}{before and f'-before-{before}'}.db"
            copy = self.folder / name
            with translated(copy):
                self.folder.mkdir(exist_ok=True, mode=0o700)
                part, disk = copy.with_name(f"{name}.part"), shutil.disk_usage(self.folder)
                if part.exists() and time.time() - part.stat().st_mtime < STALE_SECONDS:
                    return None  # another process is at it
                size = sum(file.stat().st_size for file in (path, log_of(path)) if file.exists())
            if disk.free - size < max(SPARE_BYTES, SPARE_SHARE * disk.total):
                _log.warning("No backup was made: the disk is nearly full.")
                return None
            self._connection.backup(copy)
            for old in self.all()[KEPT:]:
                old.unlink(missing_ok=True)
            return copy

    def forget(self, user: str) -> bool:
        """Delete a user from all automatic copies; False if one could not be written. Those made by hand are kept."""
        return self._rewrite(lambda db: bool(db.execute("DELETE FROM users WHERE name = ?", [user]).rowcount))

    def identities(self, table: str, user_id: int) -> set[Identity]:
        """Return the identities of a user's rows in `conversations` or `projects` of the database."""
        with self._connection.read() as db:
            return _identities(db, table, user_id)

    def forget_chats(self, user: str, chats: Set[Identity], projects: Set[Identity] = frozenset()) -> bool:
        """Delete these chats, and projects without other chats, from all automatic copies; return as `forget`."""

        def delete(db: Database) -> bool:
            found = db.execute("SELECT id FROM users WHERE name = ?", [user]).fetchone()
            gone = _identities(db, "conversations", found[0]) & chats if found else set()
            empty = _identities(db, "projects", found[0]) & projects if found else set()
            for id, _ in gone:
                delete_conversation(db, found[0], id)
            for id, _ in empty:
                db.execute("DELETE FROM projects WHERE id = ?", [id])
            return bool(gone or empty)

        return self._rewrite(delete)

    def forget_missing(self, user: str, user_id: int) -> bool:
        """Delete from all automatic copies the chats and projects of a user that the database has no more."""
        held: list[Set[Identity]] = []
        for table in ("conversations", "projects"):
            there, copied = self.identities(table, user_id), set[Identity]()
            for copy in self.all():
                with suppress(StoreError), translated(copy), closing(_opened(copy)) as db:
                    if found := db.execute("SELECT id FROM users WHERE name = ?", [user]).fetchone():
                        copied |= _identities(db, table, found[0])
            held.append(copied - there)
        return self.forget_chats(user, *held)

    def _rewrite(self, delete: Callable[[Database], bool]) -> bool:
        whole = True
        with self._lock:  # none is being made of the database as it was
            for copy in self.all():
                try:
                    with translated(copy), closing(_opened(copy)) as db:
                        db.execute("PRAGMA foreign_keys = ON")
                        db.execute("BEGIN IMMEDIATE")
                        deleted = delete(db)
                        if deleted:
                            drop_words(db)
                        db.conn.commit()
                        if deleted:
                            db.execute("VACUUM")
                except StoreError as error:
                    _log.warning("A backup could not be rewritten: %s", error)
                    whole = False
        return whole


_FOLD_IN = "PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE; COMMIT; PRAGMA journal_mode = DELETE"
"""Puts a database's log into it, while nobody else has it open."""


def _opened(copy: Path) -> Database:
    return Database(sqlite3.connect(copy, isolation_level=None))


def _identities(db: Database, table: str, user_id: int) -> set[Identity]:
    if not db[table].exists():  # a copy with an older schema
        return set()
    return set(db.execute(f"SELECT id, created_at FROM {table} WHERE user_id = ?", [user_id]).fetchall())


def backups_of(database: Path) -> list[Path]:
    """Return the automatic copies of a database, the latest first; the database itself may be missing."""
    found = {copy: _number(database, copy) for copy in _folder(database).glob("*.db")}
    return sorted(filter(found.get, found), key=lambda copy: found[copy], reverse=True)


def _folder(database: Path) -> Path:
    return database.parent / "backups"


def _number(database: Path, copy: Path) -> int:
    name = re.escape(database.stem) + r"-(\d{5,})-\d{4}-\d\d-\d\d(-before-\w+)?\.db"
    match = re.fullmatch(name, copy.name)
    return int(match[1]) if match else 0


_BUSY_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Health:
    """Result of examining a file; `schema`: last step of the schema, `detail`: a word of SQLite or the system."""

    state: Literal["well", "missing", "damaged", "newer", "foreign", "unreadable"]
    size: int = 0
    schema: str = ""
    chats: int = 0
    detail: str = ""


def examine(path: Path) -> Health:
    """Examine a database file without changing it. Never raises."""
    if not path.exists():
        return Health("missing")
    try:
        if not path.is_file():
            return Health("unreadable", detail="no file")
        sides = [path, *(path.with_name(path.name + end) for end in ("-wal", "-shm"))]
        size = sum(side.stat().st_size for side in sides if side.exists())
        with closing(connect(path.absolute(), "ro", _BUSY_SECONDS)) as db:
            if (state := state_of(path, db)) != "well":
                return Health(state, size, detail="quick_check" if state == "damaged" else "")
            steps = [step.name for step in migrations.applied(db)]
            chats = db["conversations"].count if "conversations" in db.table_names() else 0
            return Health("well", size, steps[-1] if steps else "none", chats)
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorname", type(error).__name__)
        kind = getattr(error, "sqlite_errorcode", 0) & 0xFF
        broken = kind in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
        return Health("damaged" if broken else "unreadable", path.stat().st_size, detail=code)
    except OSError as error:
        return Health("unreadable", detail=error.strerror or type(error).__name__)


def require_whole(backup: Path) -> None:
    """Read all of a backup, and raise a StoreError that says why it cannot be restored, if so."""
    health = examine(backup)
    if health.state == "newer":
        raise StoreError(
            f"{backup} was written by a newer hierchat. Update hierchat, or choose another backup."
        )
    if health.state != "well":
        raise StoreError(
            f"{backup} is no backup that can be restored ({health.detail or health.state}). Choose another one."
        )
    with translated(backup), closing(sqlite3.connect(f"{backup.as_uri()}?mode=ro", uri=True)) as db:
        if db.execute("PRAGMA integrity_check(1)").fetchone() != ("ok",):
            raise corrupt(backup)


def restore(backup: Path, path: Path) -> Path | None:
    """Put a whole backup (`require_whole`) in the database's place; return where the database is now.
    Raises DatabaseLocked while anybody has the database open."""
    aside = path.with_name(f"{path.stem}-{time.strftime('%Y-%m-%d-%H%M%S')}-replaced{path.suffix}")
    part = path.with_name(f"{path.name}.part")
    with translated(path):
        part.unlink(missing_ok=True)
        shutil.copyfile(backup, part)
        part.chmod(0o600)
        with part.open("rb") as file:
            os.fsync(file.fileno())
        if not path.exists():
            part.replace(path)
            return None
        # A damaged database keeps its log, which SQLite would delete, and which must not be taken for the backup's.
        if examine(path).state in ("well", "newer"):
            with closing(sqlite3.connect(path, timeout=1.0, isolation_level=None)) as db:
                db.executescript(_FOLD_IN)
        for end in ("-wal", "-shm", "-journal"):
            if (side := path.with_name(path.name + end)).exists():
                side.replace(aside.with_name(aside.name + end))
        try:
            os.link(path, aside)  # there is a file of that name at any moment
        except OSError:
            path.replace(aside)
        part.replace(path)
    return aside
