"""What is recorded of errors, and that no text of a conversation is among it."""

import logging
import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hierchat import logs
from hierchat.cli.main import main
from hierchat.config import GenerationSettings
from hierchat.models.progress import FetchError
from hierchat.runtime.prompt import PromptMessage

SECRET = "the diary of Ann"


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder of each test's own, and logging as the program sets it up."""
    monkeypatch.setenv("HIERCHAT_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("HIERCHAT_CACHE", str(tmp_path / "cache"))
    logs.set_up()
    return tmp_path / "data"


def recorded() -> str:
    return logs.log_path().read_text(encoding="utf-8")


def invalid_settings() -> None:
    GenerationSettings(**{"stop": SECRET, SECRET: 1})  # type: ignore[arg-type]


def unknown_column() -> None:
    with sqlite3.connect(":memory:") as db:
        db.execute(f"SELECT [{SECRET}]")


def chained() -> None:
    try:
        raise KeyError(SECRET)
    except KeyError as error:
        raise ValueError(f"{SECRET} is no number") from error


def in_a_group() -> None:
    raise ExceptionGroup(SECRET, [ValueError(SECRET), OSError(28, SECRET, SECRET)])


def noted() -> None:
    error = RuntimeError(PromptMessage("user", SECRET))
    error.add_note(SECRET)
    raise error


def code_of_text() -> None:
    exec(SECRET)


def caught(function: Callable[[], None]) -> BaseException:
    with pytest.raises(BaseException) as found:  # noqa: PT011
        function()
    return found.value


@pytest.mark.parametrize(
    ("function", "kinds"),
    [
        (invalid_settings, ["pydantic"]),
        (unknown_column, ["sqlite3.OperationalError SQLITE_ERROR\n"]),
        (chained, ["ValueError\n", "because of KeyError\n"]),
        (in_a_group, ["among them OSError ENOSPC\n"]),
        (noted, ["RuntimeError\n"]),
        (code_of_text, ["SyntaxError\n"]),
    ],
)
def test_an_unexpected_error_leaves_its_place_and_none_of_its_text(
    function: Callable[[], None], kinds: list[str]
) -> None:
    error = caught(function)
    assert SECRET in f"{error} {error!r} {error.__cause__}"
    assert logs.error_message(error) == (
        "Something went wrong that hierchat did not expect. The log says where, without any text of yours."
    )
    assert SECRET not in recorded()
    for told in (*kinds, f"in {function.__name__}", Path(__file__).name):
        assert told in recorded()


def test_errors_of_our_own_say_what_to_do_and_are_not_recorded() -> None:
    assert logs.error_message(FetchError("Connect to the network.")) == "Connect to the network."
    assert "Memory ran out" in logs.error_message(MemoryError())
    assert not logs.log_path().exists()


def test_a_loop_of_errors_ends() -> None:
    first, second = ValueError(), KeyError()
    first.__cause__, second.__cause__ = second, first
    assert logs.trace(first) == "ValueError\nbecause of KeyError"


def test_other_libraries_records_keep_their_place_alone() -> None:
    theirs = logging.getLogger("gradio.queueing")
    theirs.warning(f"could not send {SECRET}")
    theirs.error("%s failed", SECRET, exc_info=caught(chained))
    theirs.info("never written")
    assert SECRET not in recorded()
    assert "WARNING gradio.queueing: test_logs.py, line " in recorded()
    assert "in chained" in recorded()
    assert "INFO" not in recorded()


def test_our_own_records_are_written_but_for_exceptions() -> None:
    ours = logging.getLogger("hierchat.texts.corpora")
    ours.info("read in %d ms", 7)
    ours.warning("The pack %s is not used: %s", "x.xz", ValueError(SECRET))
    assert "INFO hierchat.texts.corpora: read in 7 ms\n" in recorded()
    assert "WARNING hierchat.texts.corpora: The pack x.xz is not used: ValueError\n" in recorded()
    assert SECRET not in recorded()


def test_it_does_not_grow_without_end_and_only_its_owner_can_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_MAX_BYTES", 2_000)
    logs.set_up()
    for _ in range(100):
        logs.error_message(caught(chained))
    folder = logs.log_path().parent
    files = sorted(folder.iterdir())
    assert [file.name for file in files] == ["hierchat.log", "hierchat.log.1", "hierchat.log.2"]
    assert sum(file.stat().st_size for file in files) < 10_000
    if os.name != "nt":
        assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_nothing_is_made_where_nothing_goes_wrong(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "list"]) == 0
    assert not data.exists()
    assert "INFO" not in capfd.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is always full")
def test_a_full_disk_or_none_breaks_nothing(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data.write_text("a file in its place")
    logs.error_message(caught(chained))
    data.unlink()  # once there is room again, it goes on
    logs.error_message(caught(chained))
    assert "in chained" in recorded()
    logs.log_path().unlink()
    logs.log_path().symlink_to("/dev/full")
    logs.set_up()
    for _ in range(3):
        logs.error_message(caught(chained))
    logs.set_up()
    assert not capfd.readouterr().err


def test_verbose_shows_all_in_the_terminal_and_records_no_more(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up(verbose=True)
    logs.error_message(caught(chained))
    logging.getLogger("gradio").info("listening")
    assert "Traceback" in (shown := capsys.readouterr().err)
    assert SECRET in shown
    assert "listening" in shown
    assert SECRET not in recorded()
    assert "gradio" not in recorded()


def test_a_library_with_handlers_of_its_own_is_taken_over(capsys: pytest.CaptureFixture[str]) -> None:
    server = logging.getLogger("uvicorn-like")
    server.propagate = False
    server.addHandler(logging.StreamHandler())
    logs.take_over("uvicorn-like")
    logging.getLogger("uvicorn-like.error").error("failed", exc_info=caught(chained))
    assert not capsys.readouterr().err
    assert "in chained" in recorded()


def test_a_command_that_fails_unexpectedly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("hierchat.cli.options.require_folders", chained)
    assert main(["models", "list"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("hierchat: Something went wrong")
    assert str(logs.log_path()) in said
    assert SECRET not in said + recorded()
    assert "in chained" in recorded()


@pytest.mark.parametrize("where", ["thread", "main"])
def test_what_nobody_catches_is_recorded(where: str, data: Path) -> None:
    """In a process of its own, since pytest catches all."""
    script = f"""
import sys, threading
from hierchat import logs
logs.set_up()
def fail(): raise ValueError({SECRET!r})
thread = threading.Thread(target=fail, name="load tiny")
{"thread.start(); thread.join()" if where == "thread" else "fail()"}
print("goes on")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=Path(__file__).parents[1]
    )
    assert ("goes on" in done.stdout) == (where == "thread")
    assert done.stderr == (
        "hierchat: Something went wrong that hierchat did not expect. "
        f"{logs.log_path()} says where, without any text of yours.\n"
    )
    assert f"uncaught in thread {'load tiny' if where == 'thread' else 'main'}\nValueError" in recorded()
    assert SECRET not in recorded()
