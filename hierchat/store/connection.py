"""Open one SQLite file, and run transactions on it whose failures are StoreErrors."""

import json
import logging
import os
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import psutil
from sqlite_utils import Database

from hierchat.store.migrations import is_foreign, is_newer, migrations

# What can go wrong with the database, each with a sentence that says what to do.
log = logging.getLogger(__name__)
_WHY = {
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_IOERR: "the disk reports an error",
    sqlite3.SQLITE_READONLY: "it is read-only",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened",
    sqlite3.SQLITE_PERM: "the system does not allow it",
    sqlite3.SQLITE_AUTH: "the system does not allow it",
}
"""What SQLite's codes mean to somebody who does not know SQLite."""


class StoreError(Exception):
    """Raised for any failure of the store; the message is fit to be shown to the user."""


class NotFound(StoreError):
    """Raised if a conversation or message does not exist, or belongs to another user."""


class DatabaseNewer(StoreError):
    """Raised if a newer hierchat wrote this file. It was not touched."""


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


# Which process writes a reply, and whether it still runs.
def this_process() -> tuple[int, float]:
    """Return this process's id and when it was started: together they name it, for ids are used again."""
    return os.getpid(), _began(psutil.Process())


def _began(process: psutil.Process) -> float:
    """Return when a process was started, by a clock that nobody sets: on Linux the boot and the ticks since
    then, else the Unix time."""
    try:
        ticks = int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19])
        boot = int(Path("/proc/sys/kernel/random/boot_id").read_text()[:5], 16)
    except (OSError, ValueError, IndexError):
        return process.create_time()
    return (boot + 10) * 1e9 + ticks


def is_running(pid: int, started: float) -> bool:
    """Return whether that process still runs. One that was killed but not yet reaped by its parent does not."""
    try:
        process = psutil.Process(pid)
        # Earlier versions noted the Unix time on Linux, too, which derives it from the clock.
        now = _began(process) if started > 1e10 else process.create_time()
        return abs(now - started) < 2 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True


class ChangeEvents:
    """Numbers each user's changes, so that a page learns from one number whether it shows the present. One count for
    all users would tell how busy others are. Of each conversation the number of the last change is known."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._messages: dict[tuple[int, int], int] = {}
        self._settings: dict[tuple[int, int], int] = {}
        self._lock = threading.Lock()

    def notify(self, user_id: int, conversation_id: int | None = None) -> None:
        """Note a change of the user's list of chats; with a conversation, of its messages, too."""
        with self._lock:
            number = self._counts[user_id] = self._counts.get(user_id, 0) + 1
            if conversation_id is not None:
                self._messages[user_id, conversation_id] = number

    def notify_settings(self, user_id: int, conversation_id: int | None = None) -> int:
        """Note a change of a conversation's settings; without one, of the user's presets. Returns its number."""
        with self._lock:
            number = self._counts[user_id] = self._counts.get(user_id, 0) + 1
            self._settings[user_id, conversation_id or 0] = number
            return number

    def count(self, user_id: int) -> int:
        """Return the number of the user's last change; 0 if nothing changed since the program began."""
        with self._lock:
            return self._counts.get(user_id, 0)

    def changed(self, user_id: int, conversation_id: int | None) -> int:
        """Return the number of the last change of that conversation's messages; 0 if there was none."""
        with self._lock:
            return self._messages.get((user_id, conversation_id or 0), 0)

    def settings_changed(self, user_id: int, conversation_id: int | None = None) -> int:
        """Return the number of the last change of that conversation's settings, or of the presets; 0 if none."""
        with self._lock:
            return self._settings.get((user_id, conversation_id or 0), 0)


SYNCHRONOUS = "NORMAL"
"""A crash of the program loses nothing acknowledged, a power cut may lose the last seconds but never the file, and no
fsync holds up the reply that is being written."""
CLOSE_SECONDS = 10.0
FOLD_SECONDS = 5.0
"""So long after a write, the log beside the file is written into the file."""
IDLE = 4
"""Connections that stay open while nobody uses them. Threads come and go with every reply: one for each would be opened
anew all the time, and SQLite keeps the file of one that is closed open as long as there is any other."""


class Connection:
    """Runs transactions on one SQLite file, each on a connection of its own. Usable from any thread."""

    def __init__(
        self, path: Path, busy_seconds: float, migrating: "Callable[[Connection, str], object]"
    ) -> None:
        """Open `path`, create it if missing, bring its schema up to date. `migrating` is called before that
        with the first step, if there are chats. Raises a StoreError."""
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
        self._opening_id = 0
        self.notice = ""
        """What the user should know of the file."""
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
            alone = None if log_of(self.path).exists() else time.time()
            if alone and _is_empty(self.path):
                raise DatabaseCorrupt(
                    f"{self.path} is empty: its chats stand in {self.path.name}-wal, which is not beside it. It was "
                    "left as it is. Put that file there, too, or restore a backup: `hierchat backup FILE` makes whole "
                    "copies. To begin anew, delete the file."
                )
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
        with self.write() as db:
            if _close_abandoned(db, alone):
                self.notice = (
                    f"{self.path} is a copy that was made while hierchat used the file, and {log_of(self.path).name} "
                    "was not copied with it: what was written last may be missing. `hierchat backup FILE` makes whole "
                    "copies."
                )
                log.warning(self.notice)
            pid, started = this_process()
            self._opening_id = add_row(db, "openings", pid=pid, started=started, opened_at=time.time())

    @contextmanager
    def _connected(self) -> Iterator[Database]:
        """Lend a connection that nobody else uses or closes meanwhile: Python's module crashes if one thread
        closes a connection within another's statement. Not to be nested: that would lend another one."""
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
                db = _connect(self.path, "rw", self._busy_seconds)
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
        """Commit all that is done inside, or nothing. The first transaction after the file could not be
        written marks the replies that ended meanwhile."""
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
        """Raise DatabaseUnwritable if the open file no longer has its name: SQLite would go on with it though
        another one, or none, is there by now, and what is written would be lost with the last connection."""
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
        """Write the log into the file and empty it; False if somebody reads or writes at this moment. Waits
        for nobody: what can be written is."""
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
            if self._folding is None and self._opening_id and not self.closed:  # not where opening it fails
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
        """Rewrite the file without what was deleted. False if a full disk or another program that reads or
        writes keeps bytes of it there."""
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
        """Write a copy of the whole database, all users', readable by its owner only. The chat can go on meanwhile.
        What is hidden or deleted, incognito chats and guests are not in it. Raises StoreError if `path` exists or the
        copy is damaged, DatabaseUnwritable if it cannot be written."""
        with new_file(path) as part, translated(path), self._connected() as db:
            db.execute("VACUUM INTO ?", [str(part)])  # in one step, whatever is written meanwhile
            with closing(Database(sqlite3.connect(part, isolation_level=None))) as copy:
                copy.execute("PRAGMA foreign_keys = ON")
                if sum([copy.execute(f"DELETE FROM {which}").rowcount for which in _left_out(copy)]):
                    drop_words(copy)
                    copy.execute("VACUUM")
                if copy["openings"].exists():
                    copy.execute("DELETE FROM openings")
                # A file that is carried elsewhere must need no others beside it.
                copy.execute("PRAGMA journal_mode = DELETE").fetchone()
                (verdict,) = copy.execute("PRAGMA integrity_check(1)").fetchone()
            if verdict != "ok":
                raise corrupt(self.path)

    def close(self) -> None:
        """Write the log into the file and close all connections, waiting for those in use."""
        if not self.closed:
            with suppress(StoreError):  # cannot be written: whoever opens it next knows who is gone
                with self.write() as db:
                    db.execute("DELETE FROM openings WHERE id = ?", [self._opening_id])
                    # Of one that was killed beside this one nothing is left out: the log goes into the file now.
                    _close_abandoned(db, None)
                self.fold()
        with self._pool:
            self.closed = True
            if self._folding is not None:
                self._folding.cancel()
            while self._idle:
                self._idle.pop().close()
            # One that is busy for longer closes when it is done; what it writes is whole or not there.
            self._pool.wait_for(lambda: not self._used, CLOSE_SECONDS)


class Repository:
    """Base of the classes that read and write one kind of thing."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._changes = connection.changes

    def _rows(self, query: str, values: Any = ()) -> list[Any]:
        with self._connection.read() as db:
            return db.execute(query, values).fetchall()

    def _run(self, statement: str, values: Any = ()) -> int:
        """Run a statement in a transaction of its own, and return how many rows it changed."""
        with self._connection.write() as db:
            return db.execute(statement, values).rowcount


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
    """Remove the words of deleted texts from the search index, as part of the transaction that deletes them;
    the file is to be rewritten, by the next start if this process dies first."""
    # Only a merge of the whole index drops the words of what was deleted.
    for index in ("messages_fts", "titles_fts", "attachments_fts", "passages_fts"):
        if db[index].exists():  # not in copies with an older schema
            db.execute(f"INSERT INTO {index} ({index}) VALUES ('optimize')")
    db.execute(f"PRAGMA user_version = {SOILED}")


def _left_out(db: Database) -> Iterator[str]:
    """Yield tables and conditions of all that no backup holds, as far as the schema has them."""
    for table in ("conversations", "projects"):
        if "hidden_by" in db[table].columns_dict:
            yield f"{table} WHERE hidden_by IS NOT NULL"
    if db["guests"].exists():
        yield "users WHERE name IN (SELECT name FROM guests)"


def _connect(path: Path, mode: str, busy_seconds: float) -> Database:
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


def _close_abandoned(db: Database, alone: float | None) -> bool:
    """Delete records of openings whose process is gone. `alone`: when no log stood beside the file, if there
    was none; returns whether somebody had opened it before."""
    rows = db.execute("SELECT id, pid, started, opened_at FROM openings").fetchall()
    early = {id for id, _, _, at in rows if alone is not None and at < alone}
    gone_ids = early | {id for id, pid, started, _ in rows if not is_running(pid, started)}
    db.conn.executemany("DELETE FROM openings WHERE id = ?", [[id] for id in gone_ids])
    return bool(early)


def _is_empty(path: Path) -> bool:
    """Return whether a file that no process has open was opened with a log, and has no table. Without SQLite,
    which would put a new log beside it."""
    with path.open("rb") as file:
        head = file.read(105)
    # Byte 18 tells the journal (2: a log). From byte 100 on stands the tree of tables: 13 a leaf, their number at 103.
    whole = len(head) == 105 and head.startswith(b"SQLite format 3\0")
    return whole and head[18] == 2 and head[100] == 13 and not any(head[103:105])


def _check(path: Path, busy_seconds: float) -> None:
    """Raise a StoreError if a file is damaged, foreign or newer, on a connection that cannot change it."""
    # But that of a program that died within a transaction without a log is undone first, and only who may write can.
    died = Path(f"{path.resolve()}-journal").exists()
    with closing(_connect(path, "rw" if died else "ro", busy_seconds)) as db:
        (verdict,) = db.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise corrupt(path)
        # SQLite takes a file of a few bytes for an empty database.
        if path.stat().st_size and not db.execute("PRAGMA page_count").fetchone()[0]:
            raise corrupt(path)
        if is_newer(db):
            raise DatabaseNewer(
                f"{path} was written by a newer hierchat and was left as it is. Update hierchat, or choose another "
                "file with --db."
            )
        if is_foreign(db):
            raise corrupt(path, "it is another program's database")


# How a database is, found out without changing it and without reading a word of what it holds.
TABLES = (
    "users", "conversations", "messages", "imports", "presets", "turns", "message_tokens", "suffix_runs", "self_texts",
    "learned", "latency", "comparisons", "accounts", "documents", "passages",
)  # fmt: skip
"""Whose rows are counted."""
BUSY_SECONDS = 2.0

State = Literal["well", "missing", "damaged", "newer", "foreign", "unreadable"]


@dataclass(frozen=True, slots=True)
class Health:
    """Result of examining a file; `schema`: last step of the schema, `detail`: a code of SQLite or the system."""

    state: State
    size: int = 0
    schema: str = ""
    rows: dict[str, int] = field(default_factory=dict)
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
        with closing(_connect(path.absolute(), "ro", BUSY_SECONDS)) as db:
            verdicts = db.execute("PRAGMA quick_check(10)").fetchall()
            if verdicts != [("ok",)]:
                return Health("damaged", size, detail=f"{len(verdicts)} findings or more")
            if size and not db.execute("PRAGMA page_count").fetchone()[0]:
                return Health("damaged", size, detail="no database")
            if is_newer(db):
                return Health("newer", size)
            if is_foreign(db):
                return Health("foreign", size)
            steps = [step.name for step in migrations.applied(db)]
            there = set(db.table_names())
            rows = {name: db[name].count for name in TABLES if name in there}
            return Health("well", size, steps[-1] if steps else "none", rows)
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorname", type(error).__name__)
        broken = getattr(error, "sqlite_errorcode", 0) & 0xFF in (
            sqlite3.SQLITE_CORRUPT,
            sqlite3.SQLITE_NOTADB,
        )
        return Health("damaged" if broken else "unreadable", path.stat().st_size, detail=code)
    except OSError as error:
        return Health("unreadable", detail=error.strerror or type(error).__name__)


# A file that is written whole or not at all, and replaces no other.
@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Create an empty file beside `path`, readable by its owner only, which gets that name when the block has ended.
    Raises StoreError where `path` exists, DatabaseUnwritable where it cannot be written."""
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


# Text on its way into the database.
TITLE_CHARACTERS = 60
NUMBER = re.compile(r" \(\d+\)$")
"""Behind the title of a fork."""
SEARCH_WORDS = 16
FOUND_BEGINS, FOUND_ENDS = "\x02", "\x03"
"""Around the words of a snippet that were searched for. A text may hold them itself: trust no pairing."""

_TAG = re.compile(r'(?<!\S)tag:(?:"([^"]*)"?|(\S+))', re.IGNORECASE)


def storable(text: str) -> str:
    """Return a text with lone surrogates, which UTF-8 cannot hold and a browser may send, replaced by "?"."""
    return text.encode("utf-8", "replace").decode("utf-8")


def title_of(text: str) -> str:
    """Return one line of a text for the list of conversations, cut between words if it can be."""
    line = " ".join(storable(text).split())
    if len(line) <= TITLE_CHARACTERS:
        return line
    cut = line[:TITLE_CHARACTERS]
    return (cut.rsplit(" ", 1)[0] if " " in cut else cut) + "…"


def match_expression(query: str) -> str:
    """Return an FTS5 expression for all words of `query`, the last one as a prefix; empty if it holds no word. Each
    word is quoted, so that nothing a user types is syntax; the index's own tokenizer splits it further."""
    words = storable(query).replace("\0", " ").split()
    words = [word for word in words if any(map(str.isalnum, word))][:SEARCH_WORDS]
    quoted = ['"' + word.replace('"', '""') + '"' for word in words]
    return " ".join(quoted) + "*" if quoted else ""


def split_tags(query: str) -> tuple[str, list[str]]:
    """Split a query into its words, and the names behind its tag:"""
    tags = [quoted or bare for quoted, bare in _TAG.findall(query)]
    return _TAG.sub(" ", query), tags


# The one place that decides whether a user may see a conversation or a message.
def require_user(db: Database, user_id: int) -> None:
    """Raise StoreError if the user was deleted."""
    if not db.execute("SELECT 1 FROM users WHERE id = ?", [user_id]).fetchone():
        raise StoreError("All chats of this user were deleted. Reload the page.")


def owned_conversation(db: Database, user_id: int, conversation_id: int) -> dict[str, Any]:
    """Return a conversation's row. Raises NotFound if it is missing, hidden or another user's, the same for all."""
    for row in db.query(
        "SELECT * FROM conversations WHERE id = ? AND user_id = ? AND (hidden_by IS NULL OR incognito)",
        [conversation_id, user_id],
    ):
        return row
    raise NotFound(f"There is no conversation {conversation_id}. It may have been deleted.")


def owned_message(db: Database, user_id: int, message_id: int) -> dict[str, Any]:
    """Return a message's row. Raises NotFound as owned_conversation does."""
    for row in db.query(
        "SELECT messages.* FROM messages JOIN conversations ON conversations.id = conversation_id"
        " WHERE messages.id = ? AND user_id = ? AND (hidden_by IS NULL OR incognito)",
        [message_id, user_id],
    ):
        return row
    raise NotFound(f"There is no message {message_id}. Its conversation may have been deleted.")
