"""`hierchat users`, as a user types it."""

import getpass
import io
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hierchat.access import login_sessions
from hierchat.access.login_sessions import LEAST, MOST, hashed, matches
from hierchat.cli.main import main
from hierchat.store import LOCAL_USER, Store


@pytest.fixture
def data(places: Path) -> Path:
    """The database of a hierchat of the test's own."""
    return places / "DATA" / "hierchat.db"


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What is typed at a terminal, in order."""
    answers: list[str] = []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr(getpass, "getpass", lambda prompt: answers.pop(0))
    yield answers
    assert answers == []


def users(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["users", *arguments])
    out, error = capsys.readouterr()
    assert "did not expect" not in error
    return code, out, error


def from_stdin(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))


def test_add_list_passwd_and_remove(data: Path, capsys: pytest.CaptureFixture[str], typed: list[str]) -> None:
    code, out, _ = users(capsys, "list")
    assert (code, "There are no accounts" in out) == (0, True)
    typed += ["correct horse"] * 2
    code, out, _ = users(capsys, "add", "ann")
    assert (code, out.splitlines()[0]) == (0, "ann can log in now, and is the owner.")
    typed += ["battery staple"] * 2
    assert users(capsys, "add", "ben")[1].splitlines()[0] == "ben can log in now."
    with Store.open(data) as store:
        assert (account := store.accounts.find("ben")) is not None
        assert matches("battery staple", account.password)
        assert not matches("battery stapler", account.password)
        assert "battery" not in account.password
        store.chats.create(store.users.ensure("ben"))
    today = time.strftime("%Y-%m-%d")
    listed = [line.split() for line in users(capsys, "list")[1].splitlines()]
    assert listed == [["name", "since", "chats"], ["ann", "owner", today, "0"], ["ben", today, "1"]]
    typed += ["another one"] * 2
    assert users(capsys, "passwd", "BEN")[0] == 0
    with Store.open(data) as store:
        assert (account := store.accounts.find("ben"))
        assert matches("another one", account.password)
    code, out, _ = users(capsys, "remove", "ben")
    assert "1 chat stay in the database. To delete them: hierchat forget --user ben" in out.replace(
        "stays", "stay"
    )
    assert [line.split()[0] for line in users(capsys, "list")[1].splitlines()] == ["name", "ann"]


def test_chats_that_are_there_are_told(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data.parent.mkdir()
    with Store.open(data) as store:
        for name in ("me", LOCAL_USER):
            store.chats.create(store.users.ensure(name))
    from_stdin(monkeypatch, "correct horse\n")
    assert "Chats of a user 'me' are there already: 1 chat." in users(capsys, "add", "me")[1]
    from_stdin(monkeypatch, "correct horse\n")
    out = users(capsys, "add", LOCAL_USER)[1]
    assert "local can log in now, and is the owner." in out
    assert "Chats of a user 'local' are there already" in out


@pytest.mark.parametrize(
    ("arguments", "given", "sentence"),
    [
        (("add", "a b"), ["x"], "cannot be a name"),
        (("add", ""), ["x"], "cannot be a name"),
        (("add", "key:1"), ["x"], "cannot be a name"),
        (("add", "Guest-1"), ["x"], "cannot be a name"),
        (("add", "a" * 41), ["x"], "cannot be a name"),
        (("add", "ben"), ["short"] * 2, f"A password has {LEAST} to"),
        (("add", "ben"), ["x" * (MOST + 1)] * 2, f"A password has {LEAST} to"),
        (("add", "ben"), [" " * 20] * 2, f"A password has {LEAST} to"),
        (("add", "ben"), ["correct horse", "correct house"], "are not the same"),
        (("add", "ANN"), ["correct horse"] * 2, "There is an account 'ann' already"),
        (("passwd", "ben"), [], "There is no account 'ben'"),
        (("remove", "ben"), [], "There is no account 'ben'"),
    ],
)
def test_what_cannot_be_is_said_and_changes_nothing(
    data: Path, capsys: pytest.CaptureFixture[str], typed: list[str], arguments: tuple[str, ...],
    given: list[str], sentence: str,
) -> None:  # fmt: skip
    data.parent.mkdir()
    with Store.open(data) as store:
        before = store.accounts.add("ann", "hash")
    typed += [] if "cannot be a name" in sentence else given
    code, _, error = users(capsys, *arguments)
    assert code == 1
    assert sentence in error
    with Store.open(data) as store:
        assert store.accounts.all() == [before]


def test_a_database_elsewhere(tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "There is no folder" in users(capsys, "list", "--db", str(tmp_path / "no" / "x.db"))[2]
    assert users(capsys, "list", "--db", str(tmp_path / "x.db"))[0] == 0
    assert not data.exists()


def test_passwords_are_the_same_however_a_device_spells_them() -> None:
    stored = hashed("cafe\N{COMBINING ACUTE ACCENT} creme ")
    assert stored.startswith("$argon2id$")
    assert matches("caf\N{LATIN SMALL LETTER E WITH ACUTE} creme", stored)
    assert not matches("cafe creme", stored)
    assert hashed("caf\N{LATIN SMALL LETTER E WITH ACUTE} creme") != stored  # salted
    assert not matches("anything", "no hash")


def test_where_there_is_no_account_a_password_is_still_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the time that it takes would tell which names there are."""
    verified: list[str] = []

    class Counting:
        def verify(self, stored: str, password: str) -> bool:
            verified.append(password)
            return True  # the very password of nobody

        def hash(self, password: str) -> str:
            return "nobody"

    login_sessions._nobody.cache_clear()
    monkeypatch.setattr(login_sessions, "_HASHER", Counting())
    assert not matches("guessed", None)
    assert verified == ["guessed"]
    login_sessions._nobody.cache_clear()
