"""The file: opened, refused, locked, full, copied, folded, closed; each failure is a sentence that says what to do."""

import lzma
import os
import resource
import shutil
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
from sqlite_utils import Database

from hierchat import logs
from hierchat.config import shipped
from hierchat.store import Store, StoreError, connection, repository
from hierchat.store.backups import backups_of
from hierchat.store.connection import IDLE, migrations
from hierchat.store.errors import DatabaseCorrupt, DatabaseLocked, DatabaseUnwritable, translated
from hierchat.store.records import NewMessage, TurnFigures
from tests.testing.stores import child, drafting, killed, new_store, replied


@contextmanager
def refused(path: Path, error: type[StoreError], advice: str) -> Iterator[None]:
    before = path.read_bytes()
    with pytest.raises(error, match=advice) as caught:
        yield
    assert str(path) in str(caught.value)
    assert path.read_bytes() == before


def fill(path: Path) -> None:
    with new_store(path) as store:
        user = store.users.ensure("ann")
        for number in range(30):
            conversation = store.chats.create(user)
            store.messages.add(user, conversation, NewMessage(None, f"question {number} " * 100))


def test_a_new_file_and_its_folder_are_private(tmp_path: Path) -> None:
    path = tmp_path / "one" / "two" / "history.db"
    with Store.open(path) as store:
        store.users.ensure("ann")
        files = sorted(path.parent.iterdir())
        assert [file.name for file in files] == ["history.db", "history.db-shm", "history.db-wal"]
        assert all(file.stat().st_mode & 0o077 == 0 for file in [*files, path.parent])


@pytest.mark.parametrize(
    ("change", "error", "advice"),
    [
        (
            "INSERT INTO _sqlite_migrations (migration_set, name, applied_at) VALUES ('hierchat', 'm9999_future', '')",
            StoreError,
            "Update hierchat",
        ),
        ("DROP TABLE _sqlite_migrations", DatabaseCorrupt, "another program's"),
    ],
)
def test_a_newer_or_another_program_s_database_is_left_alone(
    path: Path, change: str, error: type[StoreError], advice: str
) -> None:
    fill(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(change)
    with refused(path, error, advice):
        Store.open(path)


UNCHANGED = {
    "messages": "id <= 3", "turns": "1", "spans": "1", "token_log": "1", "message_tokens": "1", "attachments": "id = 1",
    "presets": "1", "chat_settings": "1",
    "accounts": "1", "keys": "1", "users": "1", "_sqlite_migrations": "1",
}  # fmt: skip
"""Rows of the fixture that opening must leave alone, by table."""
GONE = {"learns", "learns_after", "learns_most", "compacts", "loading_ms"}
"""Columns of these tables that left since."""


def test_a_database_of_the_revision_before_opens_unchanged(path: Path) -> None:
    """before.db.xz: what tests/isolation's `fill` wrote with the store of revision 5a1e80d."""
    path.write_bytes(lzma.decompress((Path(__file__).parent / "before.db.xz").read_bytes()))

    def rows() -> dict[str, list[dict[str, object]]]:
        with closing(sqlite3.connect(path)) as db:
            db.row_factory = sqlite3.Row
            return {
                table: list(map(dict, db.execute(f"SELECT * FROM {table} WHERE {which} ORDER BY 1, 2")))
                for table, which in UNCHANGED.items()
            }

    before = rows()
    with Store.open(path) as store:
        user = store.users.ids()["ann"]
        (chat,) = store.chats.find(user, "plays xylophonist")
        assert [message.text for message in store.messages.path(user, chat.id, 2)] == [
            "Who is the xylophonist?",
            "The xylophonist plays.",
        ]
        assert store.replies.tokens(user, 2) == [7, 8]
        assert store.chats.settings(user, chat.id).system_prompt == "You are a xylophonist"
    assert {name: len(found) for name, found in before.items() if not found} == {}
    now = rows()
    for name, found in before.items():  # later migrations add columns and a row of their own, behind these
        kept = found[0].keys() - GONE
        for row, was in zip(now[name], found, strict=False):
            assert {column: row[column] for column in kept} == {column: was[column] for column in kept}, name
        assert len(now[name]) >= len(found)


def test_a_database_of_version_0_1_0(path: Path) -> None:
    """version_0_1_0.db.xz: what the store of that version wrote, killed while it wrote its second reply."""
    path.write_bytes(lzma.decompress((Path(__file__).parent / "version_0_1_0.db.xz").read_bytes()))
    with Store.open(path) as store:
        user = store.users.ids()["local"]
        (chat,) = store.chats.find(user, "plays xylophonist")
        (cut,) = store.chats.find(user, "glockenspielist")
        assert [message.text for message in store.messages.path(user, chat.id)][1] == "The xylophonist plays."
        assert store.messages.path(user, cut.id)[1].state == "interrupted"
        assert drafting(store, user) == [2, 4]
        assert (store.replies.tokens(user, 2), store.replies.tokens(user, 4)) == ([7, 8, 9], [7, 8, 10])
        turn = store.replies.turn(user, 2)
        assert (turn.begun.seed, turn.figures.seconds, turn.figures.accepted) == (4711, 1.5, 1)
        assert store.learned.get(user, "k", "acceptance") == b"what was learned"
    (before,) = backups_of(path)
    assert "before-m0005" in before.name
    with Store.open(before) as store:
        assert len(store.chats.find(store.users.ids()["local"], "glockenspielist")) == 1


STEPS = [path.stem for path in sorted((shipped("assets") / "schema").glob("*.sql"))]


@pytest.mark.parametrize("last", STEPS[1:])
def test_a_database_of_every_schema_opens(path: Path, last: str) -> None:
    """With a user and a question of before."""
    with closing(Database(path)) as db:
        migrations.apply(db, stop_before=[*STEPS, "none"][STEPS.index(last) + 1])
        db.execute("INSERT INTO users (id, name, created_at) VALUES (1, 'ann', 1)")
        db.execute(
            "INSERT INTO conversations (id, user_id, title, created_at, updated_at) VALUES (1, 1, 'Old', 1, 1)"
        )
        db.execute(
            "INSERT INTO messages (id, conversation_id, role, text, state, created_at)"
            " VALUES (1, 1, 'user', 'who plays', 'complete', 1)"
        )
        db.conn.commit()
    with Store.open(path) as store:
        assert [one.title for one in store.chats.find(1, "plays")] == ["Old"]
        with store.connection.read() as db:
            assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert db.execute("PRAGMA foreign_key_check").fetchall() == []
            assert [step.name for step in migrations.applied(db)] == STEPS


@pytest.mark.parametrize(
    ("keep", "written", "advice"),
    [
        *((keep, b"", "restore a backup") for keep in (1, 99, 100, 512, 4096, 40_000)),
        (40_960, b"\xa5" * 4096, "restore a backup"),  # a page in the middle
        *((0, other, "--db") for other in (b"Dear diary,\n" * 100, b"x", b"\0" * 4096)),
    ],
)
def test_what_is_no_whole_database_is_left_alone(path: Path, keep: int, written: bytes, advice: str) -> None:
    fill(path)
    whole = path.read_bytes()
    behind = whole[keep + len(written) :] if keep and written else b""
    path.write_bytes(whole[:keep] + written + behind)
    with refused(path, DatabaseCorrupt, advice):
        Store.open(path)


@pytest.mark.parametrize("mode", ["NORMAL", "EXCLUSIVE"])
def test_a_locked_database(path: Path, mode: str) -> None:
    fill(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute(f"PRAGMA locking_mode = {mode}")
        other.execute("BEGIN EXCLUSIVE")
        with refused(path, DatabaseLocked, "Close that program"):
            Store.open(path, busy_seconds=0.05)
    Store.open(path).close()


@pytest.mark.parametrize("closed", ["file", "folder", "both"])
def test_a_read_only_file_or_folder(open_folder: Path, closed: str, request: pytest.FixtureRequest) -> None:
    path = open_folder / "history.db"
    fill(path)
    path.chmod(0o444 if closed != "folder" else 0o666)
    path.parent.chmod(0o555 if closed != "file" else 0o777)
    request.getfixturevalue("powerless")
    before = set(threading.enumerate())
    with refused(path, DatabaseUnwritable, "folder writable"):
        Store.open(path)
    # Nobody tries for ever to write the log of what was never opened.
    assert not set(threading.enumerate()) - before


def test_a_folder_that_cannot_be_made(open_folder: Path, request: pytest.FixtureRequest) -> None:
    (open_folder / "file").write_text("in the way")
    with pytest.raises(DatabaseUnwritable, match="choose another place"):
        Store.open(open_folder / "file" / "history.db")
    open_folder.chmod(0o555)
    request.getfixturevalue("powerless")
    with pytest.raises(DatabaseUnwritable, match="choose another place"):
        Store.open(open_folder / "folder" / "history.db")


def test_a_full_disk_undoes_the_write_and_no_more(store: Store, user: int) -> None:
    conversation = store.chats.create(user)
    reply = replied(store, user, conversation, "short", state="writing")
    db = store.connection._idle[-1]
    pages = db.execute("PRAGMA page_count").fetchone()[0]
    db.execute(f"PRAGMA max_page_count = {pages}")
    for write in (
        lambda: store.replies.append(reply, "long " * 10_000, [2] * 10_000, ["target"] * 10_000),
        lambda: store.replies.finish(reply, "long " * 10_000, "complete", TurnFigures()),
        lambda: store.messages.add(user, conversation, NewMessage(reply, "long " * 10_000)),
        lambda: store.chats.rename(user, conversation, "long " * 10_000),
    ):
        with pytest.raises(DatabaseUnwritable, match="Free some disk space"):
            write()
    assert (store.messages.get(user, reply).text, store.replies.tokens(user, reply)) == ("short", [1])
    db.execute("PRAGMA max_page_count = 1000000")
    store.replies.append(reply, "short again", [2], ["target"])
    store.replies.finish(reply, "short again", "complete", TurnFigures())
    assert store.replies.tokens(user, reply) == [1, 2]


@pytest.mark.parametrize("how", ["deleted", "moved", "replaced"])
def test_a_file_that_goes_while_in_use(store: Store, user: int, path: Path, tmp_path: Path, how: str) -> None:
    conversation = store.chats.create(user)
    elsewhere = tmp_path / "elsewhere.db"
    if how == "replaced":
        store.connection.backup(elsewhere)
        elsewhere.replace(path)
    elif how == "moved":
        path.rename(elsewhere)
    else:
        path.unlink()
    told: list[str] = []

    def use() -> None:
        for action in (
            lambda: store.messages.add(user, conversation, NewMessage(None, "lost")),
            lambda: store.chats.find(user),
        ):
            with pytest.raises(DatabaseUnwritable, match="start hierchat again") as caught:
                action()
            told.append(str(caught.value))

    use()
    thread = threading.Thread(target=use)  # whose connection would be its first
    thread.start()
    thread.join()
    assert len(told) == 4
    if how == "moved":  # and back
        elsewhere.rename(path)
        assert [one.id for one in store.chats.find(user)] == [conversation]


def test_a_backup_is_a_whole_database_or_none(store: Store, user: int, path: Path, tmp_path: Path) -> None:
    """Also while a reply is written; where there is something already, no folder, or no room, nothing is left."""
    long = store.messages.add(
        user, store.chats.create(user), NewMessage(None, "remember me" + " long" * 100_000)
    )
    copy = tmp_path / "copy.db"
    with Store.open(path) as other:
        reply = replied(other, user, text="so far", state="writing")
        store.connection.backup(copy)
        other.replies.append(reply, "so far, so good", [2], ["target"])
    assert copy.stat().st_mode & 0o077 == 0
    with closing(sqlite3.connect(copy)) as db:
        found = db.execute("SELECT text, state FROM messages WHERE id = ?", [reply]).fetchone()
        assert found == ("so far", "writing")
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert db.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    with Store.open(copy) as other:
        assert [c.message_id for c in other.chats.find(user, "remember")] == [long]
    before = copy.read_bytes()
    with pytest.raises(StoreError, match="already exists"):
        store.connection.backup(copy)
    assert copy.read_bytes() == before
    copy.unlink()
    with pytest.raises(DatabaseUnwritable, match="cannot be written"):
        store.connection.backup(tmp_path / "no folder" / "copy.db")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(DatabaseUnwritable, match="Free some disk space"):
            store.connection.backup(copy)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.glob("copy*")) == []


def test_threads_share_a_few_connections(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread is begun for each reply. One connection each stayed open until the garbage collector came, and SQLite
    kept their files open even then: 120 of them after some hundred replies."""
    connect, opened = connection.connect, list[Database]()
    monkeypatch.setattr(connection, "connect", lambda *args: opened.append(connect(*args)) or opened[-1])
    with Store.open(path) as store:
        opened.clear()
        for _ in range(20):
            in_threads(store.users.ids)
        assert len(opened) == 0
        together = threading.Barrier(2 * IDLE)

        def reads() -> None:
            with store.connection.read():
                together.wait()

        for _ in range(3):
            in_threads(*[reads] * (2 * IDLE))
            assert len(store.connection._idle) == IDLE
        assert len(opened) == 2 * IDLE - 1 + 2 * (2 * IDLE - IDLE)
        with pytest.raises(ZeroDivisionError), store.connection.write():
            raise ZeroDivisionError
        assert len(store.connection._idle) == IDLE
        assert not any(db.conn.in_transaction for db in store.connection._idle)
    for db in opened:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            db.execute("SELECT 1")


def test_closing_waits_for_who_uses_a_connection(path: Path) -> None:
    store = Store.open(path)
    began = threading.Event()

    def writes() -> None:
        with store.connection.write() as db:
            began.set()
            while not store.connection.closed:
                time.sleep(0.001)
            db.execute("INSERT INTO users (name, created_at) VALUES ('ann', 0)")

    writer = threading.Thread(target=writes)
    writer.start()
    began.wait()
    store.close()
    assert store.connection._used == 0
    writer.join()
    with Store.open(path) as store:
        assert "ann" in store.users.ids()


def in_threads(*actions: Callable[[], object]) -> None:
    threads = [threading.Thread(target=action) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_closed_while_other_threads_write(tmp_path: Path) -> None:
    """In a process of its own: Python's SQLite crashes where a connection is closed within another thread's
    statement."""

    def works(store: Store, in_new_threads: bool) -> None:
        def once() -> None:
            with suppress(StoreError):
                store.users.ensure("ann")

        while not store.connection.closed:
            in_threads(once) if in_new_threads else once()

    def closes(say: Callable[..., None]) -> None:
        failed: list[object] = []
        threading.excepthook = failed.append
        for number in range(10):
            store = new_store(tmp_path / f"{number}.db")
            threads = [threading.Thread(target=works, args=(store, new)) for new in (True, False) * 3]
            for thread in threads:
                thread.start()
            time.sleep(0.03)
            store.close()
            for thread in threads:
                thread.join()
        say(failed)

    with child(closes) as process:
        assert process.said.readline() == "[]\n"


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


@pytest.mark.parametrize(
    "act",
    [
        lambda store, user, empty, chat: store.chats.discard(user, empty),
        lambda store, user, empty, chat: store.messages.add(user, chat, NewMessage(None, "malt")),
        lambda store, user, empty, chat: store.chats.rename(user, chat, "yeast"),
        lambda store, user, empty, chat: store.chats.find(user, "malt"),
        lambda store, user, empty, chat: store.chats.hide(user, chat),
        lambda store, user, empty, chat: store.users.forget(user),
    ],
    ids=["discard", "add", "rename", "search", "hide", "forget"],
)
def test_the_first_use_after_another_connection_rewrote_the_file(
    store: Store, user: int, path: Path, act: Callable[..., object]
) -> None:
    """A trigger opens its full-text table within the statement that fires it. If that finds another cookie, SQLite
    3.40 drops the schema under the outer statement: "no such table"."""
    empty, chat = store.chats.create(user), store.chats.create(user, "malt")
    store.connection.rewrite()  # this connection begins without open full-text tables
    with Store.open(path) as other:
        other.connection.rewrite()
    act(store, user, empty, chat)


def ask(path: Path, number: int) -> Store:
    store = Store.open(path)
    user = store.users.ensure("ann")
    store.messages.add(user, store.chats.create(user), NewMessage(None, f"question {number}"))
    return store


def titles(path: Path) -> list[str]:
    with Store.open(path) as store:
        return sorted(c.title for c in store.chats.find(store.users.ensure("ann")))


@pytest.mark.parametrize("number", [0, 4, -1])
def test_a_start_that_is_killed_while_the_schema_changes(path: Path, number: int) -> None:
    """Each step or none of them is there, and the next start goes on."""

    def dies(say: Callable[..., None]) -> None:
        step = migrations._migrations[number]
        before = step.fn
        step.fn = lambda db: (before(db), say("there"), os.kill(os.getpid(), signal.SIGKILL))
        Store.open(path)

    with child(dies) as process:
        assert process.said.read() == "there\n"
    assert titles(path) == []
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def copy_of(path: Path) -> Path:
    """The one file, as somebody copies it who knows of no other."""
    copy = path.with_name("copy.db")
    shutil.copyfile(path, copy)
    return copy


def test_after_kills_the_file_has_all_but_the_last_run(path: Path) -> None:
    for number in range(3):
        killed(partial(ask, path, number))
    assert path.with_name(path.name + "-wal").stat().st_size
    assert titles(copy_of(path)) == ["question 0", "question 1"]
    assert titles(path) == ["question 0", "question 1", "question 2"]
    assert titles(copy_of(path)) == ["question 0", "question 1", "question 2"]


def test_what_a_program_that_died_changed_without_a_log_is_undone(path: Path, tmp_path: Path) -> None:
    """As at the first start with a backup, while its schema is brought up to date."""
    fill(path)
    with Store.open(path) as store:
        store.connection.backup(copy := tmp_path / "copy.db")
    before = copy.read_bytes()

    def changes() -> sqlite3.Connection:
        db = sqlite3.connect(copy, isolation_level=None)
        db.execute("PRAGMA cache_size = 1")
        db.execute("BEGIN")
        db.execute("UPDATE messages SET text = text || ' half a step'")
        return db

    killed(changes)
    assert copy.with_name("copy.db-journal").exists()
    assert copy.read_bytes() != before
    assert titles(copy) == titles(path)
    assert b"half a step" not in copy.read_bytes()


def test_some_seconds_after_a_write_it_is_in_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "FOLD_SECONDS", 0.01)
    log = path.with_name(path.name + "-wal")
    with Store.open(path) as store, closing(sqlite3.connect(path)) as reader:
        user = store.users.ensure("ann")
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM users").fetchone()  # somebody reads for long
        store.messages.add(user, store.chats.create(user), NewMessage(None, "question"))
        assert not store.connection.fold()
        assert log.stat().st_size
        reader.rollback()
        for _ in range(2_000):
            if not log.stat().st_size:
                break
            time.sleep(0.01)
        assert log.stat().st_size == 0
        assert titles(copy_of(path)) == ["question"]


def test_closing_folds_it_in_beside_another_process(path: Path) -> None:
    with Store.open(path), Store.open(path) as store:
        user = store.users.ensure("ann")
        store.messages.add(user, store.chats.create(user), NewMessage(None, "question"))
        store.close()
        assert titles(copy_of(path)) == ["question"]


def test_a_clock_that_is_set_makes_no_running_process_a_dead_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a second instance deletes the guests and incognito chats of the first, and calls its replies interrupted."""
    before = repository.this_process()
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: 1e9)
    assert repository.is_running(*before)
    assert repository.this_process() == before
    assert not repository.is_running(before[0], before[1] + 3)
    assert not repository.is_running(before[0], 1e9)  # as earlier versions noted it, of another process
