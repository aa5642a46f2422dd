"""import, export, backup and forget, as a user types them."""

import io
import json
import sys
from pathlib import Path

import pytest

from hierchat.cli.main import main
from hierchat.store import Store
from tests.testing.stores import new_store

from .files import gpt_chat, gpt_sums, saved, studio_chat


@pytest.fixture
def data(places: Path) -> Path:
    """The database of a hierchat of the test's own."""
    path = places / "DATA" / "hierchat.db"
    path.parent.mkdir()
    new_store(path).close()
    return path


def hierchat(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main([str(argument) for argument in arguments])
    out, error = capsys.readouterr()
    assert "did not expect" not in error
    return code, out, error


def test_there_and_back(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = saved(tmp_path / "1", [gpt_sums(), gpt_chat(current=None)])
    two = saved(tmp_path / "2", studio_chat())
    came = "2 chats new, 0 grown, 0 here before: 9 messages, 68 characters added."
    code, out, error = hierchat(capsys, "import", one, two)
    assert code == 0
    assert out.splitlines()[:2] == [came, "1 could not be read."]
    assert error == "not imported: 1, Sums: it holds no text.\n"
    assert "2 here before: 0 messages" in hierchat(capsys, "import", one, two)[1]
    whole = tmp_path / "all.json"
    assert hierchat(capsys, "export", whole)[:2] == (0, f"2 chats written to {whole}\n")
    assert len(json.loads(whole.read_text())) == 2
    code, out, _ = hierchat(capsys, "import", "--db", tmp_path / "new.db", whole)
    assert (code, out.splitlines()[0]) == (0, came)


def test_a_backup_and_its_restoration(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hierchat(capsys, "import", saved(tmp_path / "1", [gpt_sums()]))
    code, out, _ = hierchat(capsys, "backup", tmp_path / "copy.db")
    assert code == 0
    assert f"hierchat restore {tmp_path / 'copy.db'}" in out
    code, _, error = hierchat(capsys, "backup", tmp_path / "copy.db")
    assert (code, "already exists. Choose another name." in error) == (1, True)
    assert hierchat(capsys, "forget", "--yes")[0] == 0
    code, out, _ = hierchat(capsys, "restore", tmp_path / "copy.db")
    assert (code, f"Restored: {data} has 1 chat now." in out) == (0, True)
    assert len(list(data.parent.glob("*-replaced.db"))) == 1
    with Store.open(data) as store:
        assert [one.title for one in store.chats.find(store.users.ensure("local"))] == ["Sums"]
        copy = store.backups.make()
        code, _, error = hierchat(capsys, "restore", tmp_path / "copy.db")
        assert (code, "Close that program" in error) == (1, True)
    code, out, _ = hierchat(capsys, "restore")
    assert (code, f"{copy} " in out) == (0, True)
    (tmp_path / "copy.db").write_bytes(b"no database")
    code, _, error = hierchat(capsys, "restore", tmp_path / "copy.db")
    assert (code, "Choose another one." in error) == (1, True)


def test_forget(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = saved(tmp_path / "1", [gpt_sums(title="xylophone " * 500)])
    for name in ("ann", "bob"):
        hierchat(capsys, "import", "--user", name, file)
    code, _, error = hierchat(capsys, "forget", "--user", "ann")
    assert (code, "Say --yes" in error) == (1, True)
    code, out, _ = hierchat(capsys, "forget", "--user", "ann", "--yes")
    assert code == 0
    assert out.startswith("Deleted: 1 chat, 5 messages.")
    with Store.open(data) as store:
        assert list(store.users.ids()) == ["bob"]
        assert len(store.chats.find(store.users.ids()["bob"])) == 1
    again = hierchat(capsys, "forget", "--user", "ann", "--yes")
    assert again[:2] == (0, "Nothing is stored of a user 'ann'.\n")


def test_forget_asks(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = saved(tmp_path / "1", [gpt_sums()])
    for answers, gone in (
        ("\n", False),
        ("yes\n", False),
        (" forget \n", True),
    ):
        hierchat(capsys, "import", file)
        terminal = io.StringIO(answers)
        monkeypatch.setattr(terminal, "isatty", lambda: True)
        monkeypatch.setattr(sys, "stdin", terminal)
        code, out, _ = hierchat(capsys, "forget")
        assert "Delete 1 chat with 5 messages of 'local' for good? Type 'forget' to go on: " in out
        assert (code, "Nothing was deleted." in out) == ((0, False) if gone else (1, True))
        with Store.open(data) as store:
            assert bool(store.users.ids()) is not gone


REFUSED = [
    (["import", "gone.json"], "There is no gone.json. Name the file or folder that you were given."),
    (["import", "--db", "no/such.db", "chats"], "Make it, or name another file with --db."),
    (["import", "other.json"], "No chat was found. What can be read is ChatGPT's conversations.json"),
    (["import", "bad.json"], "not imported: bad.json, number 1: it is no JSON"),
    (["export", "--db", "gone.db", "out"], "gone.db. Name the database with --db."),
    (["export", "--user", "carol", "out"], "There is no user 'carol' in "),
    (["export", "chats"], "chats already exists. Choose another name."),
    (["backup", "no/out"], "out cannot be written (No such file or directory)"),
    (["backup", "--db", "chats", "out"], "chats cannot be read: it is damaged, or no database"),
]


def test_what_cannot_be_done_says_so(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    hierchat(capsys, "import", saved(tmp_path / "chats", [gpt_sums()]))
    saved(tmp_path / "other.json", [{"id": "user-1"}])
    (tmp_path / "bad.json").write_text("{bad}")
    for arguments, said in REFUSED:
        code, _, error = hierchat(capsys, *arguments)
        assert (code, said in error) == (1, True), error
        assert not (tmp_path / "out").exists()
    assert not (tmp_path / "gone.db").exists()
