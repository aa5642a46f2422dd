"""The report: complete, and without a word of what is stored."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from hierchat.checks import doctor
from hierchat.checks.doctor import errors, versions
from hierchat.cli.main import main
from hierchat.engine.cpu.trial import trial_runner  # compiled for the cache of all tests
from hierchat.models.formats.layouts import LAYOUTS
from hierchat.store import Store
from hierchat.store.migrations import migrations
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


def test_a_healthy_machine(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of all block types three are tried; tests/engine/cpu/test_products.py has the others."""
    few = {name: LAYOUTS[name] for name in ("Q4_K", "Q8_0", "F16")}
    monkeypatch.setattr(doctor, "LAYOUTS", few)
    chat(home / "data" / "hierchat.db")
    code, said = report(capsys)
    assert "~/data/hierchat.db: well" in said
    assert migrations._migrations[-1].name in said
    assert "conversations 1, messages 1" in said
    assert "self-test of forwards: passed" in said
    assert said.count("the same bits at every height") == len(few)
    assert "smollm2-135m (the default)" in said
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


@pytest.mark.usefixtures("quick")
def test_models_that_cannot_run(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = home / "odd"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "no-such-kind", "hidden_size": 8}')
    config = home / "config"
    config.mkdir()
    yaml = config / "models.yaml"
    yaml.write_text(f"models:\n  odd:\n    source: {{folder: {{path: {folder}}}}}\n    licence: none\n")
    _, said = report(capsys)
    assert "odd: cannot run here" in said
    assert "smollm2-135m" in said
    yaml.write_text("default: nobody\n")
    code, said = report(capsys)
    assert code == 1
    assert "the catalogue cannot be read" in said


def test_the_log_gives_kinds_alone(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        f"2026-11-22 06:00:00,123 INFO hierchat.serve: serving {SECRET}\n"
        f"2026-11-22 06:00:01,123 ERROR hierchat.page.guard: {SECRET}\nsqlite3.OperationalError SQLITE_FULL\n"
        '  File "x.py", line 1, in f\n'
        f"2026-11-22 06:00:02,123 WARNING other: {SECRET}\n{SECRET}, it said\n"
    )
    assert [one.text for one in errors(log)] == [
        "2026-11-22 06:00:01 ERROR hierchat.page.guard: sqlite3.OperationalError SQLITE_FULL",
        "2026-11-22 06:00:02 WARNING other",
    ]
    assert "no error" in errors(tmp_path / "none")[0].text


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    known = doctor.version_of
    monkeypatch.setattr(doctor, "version_of", lambda name: None if name == "gradio" else known(name))
    (missing,) = [one for one in versions() if one.text.startswith("gradio: missing")]
    assert missing.advice.startswith("Install it")
