"""The report: complete, and without a word of what is stored."""

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from hierchat.checks import doctor
from hierchat.cli.main import main
from hierchat.engine.cpu.runner import trial_runner  # compiled for the cache of all tests
from hierchat.store import Store
from hierchat.store.connection import migrations
from hierchat.store.records import NewMessage

SECRET = "the purple giraffe"
assert trial_runner


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder with everything in it."""
    home = tmp_path / "home" / "annabel"
    for name in ("CACHE", "CONFIG", "DATA"):
        monkeypatch.setenv(f"HIERCHAT_{name}", str(home / name.lower()))
    (home / "data").mkdir(parents=True)
    monkeypatch.setattr(Path, "home", lambda: home)
    return home


def chat(path: Path) -> Path:
    """A database with a conversation."""
    with Store.open(path) as store:
        user = store.users.ensure("annabel")
        conversation = store.chats.create(user, f"About {SECRET}")
        store.messages.add(user, conversation, NewMessage(None, f"Where is {SECRET}?"))
    return path


def report(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(["doctor", *arguments])
    said = capsys.readouterr().out
    assert "giraffe" not in said
    assert "annabel" not in said
    assert "Traceback" not in said
    assert all(re.match(r"(- \*\*|  - )", line) for line in said.splitlines())
    return code, said


def test_a_healthy_machine(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chat(home / "data" / "hierchat.db")
    code, said = report(capsys)
    assert "~/data/hierchat.db: well" in said
    assert migrations._migrations[-1].name in said
    assert "self-test of forwards: passed" in said
    assert "numba" in said
    wrong = said.split("What to do")[1] if "What to do" in said else ""
    assert "hierchat.db" not in wrong
    assert code == (1 if wrong else 0)  # this machine may be short of something


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without trying the kernels again."""
    monkeypatch.setattr(doctor, "kernels", list)


@pytest.mark.usefixtures("quick")
def test_no_database(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, said = report(capsys)
    assert "hierchat.db: not there yet" in said
    code, said = report(capsys, "--db", str(home / "other.db"))
    assert code == 1
    assert "~/other.db: missing" in said
    assert "Name the database with --db" in said
    assert not (home / "other.db").exists()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("how", ["overwritten", "text", "newer", "foreign", "folder"])
def test_a_database_that_cannot_be_used(how: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = home / "data" / "hierchat.db"
    if how == "folder":
        path.mkdir()
    elif how == "text":
        path.write_text(f"{SECRET}\n" * 100)
    elif how == "foreign":
        with closing(sqlite3.connect(path)) as other:
            other.executescript("CREATE TABLE giraffes (name TEXT)")
    else:
        chat(path)
        with closing(sqlite3.connect(path)) as db, db:
            db.execute("PRAGMA journal_mode = DELETE")
            if how == "newer":
                db.execute("UPDATE _sqlite_migrations SET name = 'm9999_later' WHERE name LIKE 'm0004%'")
        if how == "overwritten":
            data = bytearray(path.read_bytes())
            data[4096:20000] = b"\xff" * (20000 - 4096)
            path.write_bytes(data)
    before = path.read_bytes() if path.is_file() else b""
    code, said = report(capsys)
    assert code == 1
    state = {"overwritten": "damaged", "text": "damaged", "folder": "unreadable"}.get(how, how)
    assert f"hierchat.db: {state}" in said
    assert "What to do" in said
    assert before == (path.read_bytes() if path.is_file() else b"")
