"""Files on their way in and out: private, for one use by one user, and gone afterwards."""

import os
from pathlib import Path

import pytest

from hierchat.access import files as door
from hierchat.access.files import FileNotKept, Files, TicketExpired
from hierchat.logs import error_message


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path / "transfer")


def written(files: Files, name: str = "chats.json") -> Path:
    path = files.place(name)
    path.write_text("[]")
    return path


def test_a_ticket_is_good_once_and_for_its_owner(files: Files) -> None:
    path = written(files)
    ticket = files.hold(path, "local")
    for wrong in ((ticket, "me"), (ticket[:-1], "local"), ("", "local")):
        with pytest.raises(TicketExpired, match="not here any more"):
            files.take(*wrong)
    assert files.take(ticket, "local") == path
    with pytest.raises(TicketExpired):
        files.take(ticket, "local")
    files.remove(path)
    assert not path.parent.exists()


def test_nobody_else_can_read_it(files: Files, tmp_path: Path) -> None:
    folder = written(files).parent
    while folder != tmp_path:
        assert folder.stat().st_mode & 0o077 == 0
        folder = folder.parent


def test_a_name_is_a_name(files: Files) -> None:
    names = {
        "../../etc/passwd": "passwd", "C:\\Users\\me\\chats.json": "chats.json", "a<b>\n'\"\0.zip": "a b .zip",
        "Samtale på norsk.json": "Samtale på norsk.json", "..": "file", "": "file",
        "x" * 300 + ".json": "x" * 75 + ".json",
    }  # fmt: skip
    assert {given: files.place(given).name for given in names} == names


def test_it_goes_after_some_time(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "LIFE_SECONDS", 0.01)
    path = written(files)
    files.hold(path, "local")
    for timer in [held.timer for held in files._held.values()]:
        timer.join()
    assert not path.parent.exists()


def test_it_goes_with_the_program_or_with_the_next_one(tmp_path: Path) -> None:
    left = tmp_path / "transfer" / "1-1.0-0000" / "word"
    left.mkdir(parents=True)
    (left / "chats.json").write_text("[]")
    first, second = Files(tmp_path / "transfer"), Files(tmp_path / "transfer")
    first.sweep()  # as at the start
    path = written(first)
    assert not left.exists()  # of a process that died
    written(second)
    assert path.exists()  # of one that runs
    first.hold(path, "local")
    first.close()
    second.close()
    assert os.listdir(tmp_path / "transfer") == []


def test_a_folder_that_cannot_be_written_is_told_and_may_come_back(tmp_path: Path) -> None:
    """As where the disk is full, or the folder is read-only."""
    files, way = Files(tmp_path / "data" / "transfer"), tmp_path / "data"
    way.write_text("in the way")
    for _ in range(2):
        with pytest.raises(FileNotKept) as told:
            files.place("chats.json")
        assert error_message(told.value) == "The file could not be kept. Is the disk full?"
    way.unlink()
    assert written(files).read_text() == "[]"
