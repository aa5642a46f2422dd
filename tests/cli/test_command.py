"""`hierchat chat` in scripts, over a scripted server."""

import io
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hierchat.cli.main import main
from hierchat.store import LOCAL_USER, Store
from hierchat.store.records import Message
from tests.testing.openai_server import Script

if sys.platform == "win32":
    pytest.skip("signals of Unix", allow_module_level=True)

from .terminal import COMMAND, SECONDS, configure
from .terminal import places as environment

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(url: str, places: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run it between pipes, over the server: exit code, standard output and standard error."""

    configure(places, url)

    def run(*arguments: str, given: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given.encode())))
        code = main(["chat", *arguments])
        return code, *capsys.readouterr()

    return run


def stored_chats(folder: Path) -> int:
    """How many chats there are in the database, with those that are in no list."""
    with sqlite3.connect(folder / "DATA" / "hierchat.db") as db:
        return int(db.execute("SELECT count(*) FROM conversations").fetchone()[0])


def stored(folder: Path) -> tuple[int, list[Message]]:
    """The only chat of the database, and its messages."""
    with Store.open(folder / "DATA" / "hierchat.db") as store:
        user = store.users.ids()[LOCAL_USER]
        (chat,) = store.chats.find(user)
        return chat.id, store.messages.path(user, chat.id)


def test_standard_output_holds_the_reply_alone(run: Run, script: Script, places: Path) -> None:
    code, out, notes = run("hello")
    assert (code, out) == (0, "Hello there.\n")
    assert "\x1b" not in notes
    script.pieces = ("**a** \x1b[1m", "b\n")
    assert run("--no-history", "hello")[1] == "**a** \x1b[1mb\n"
    script.pieces = ("Hello there.",)
    code, out, notes = run("--json", "--seed", "11", "--continue", "more")
    told = json.loads(out)
    assert (code, notes) == (0, "")
    assert (told["text"], told["model"], told["finish"]) == ("Hello there.", "scripted", "end")
    assert told["figures"]["speedup"] is None  # a server does not tell
    chat, messages = stored(places)
    assert (told["chat"], len(messages), len(script.asked[-1]["messages"])) == (chat, 4, 3)


def test_what_is_piped_in_is_the_message_or_goes_with_it(run: Run, script: Script, places: Path) -> None:
    run("--no-history", given="What is\nthis?\n")
    assert script.asked[0]["messages"] == [{"role": "user", "content": "What is\nthis?"}]
    assert stored_chats(places) == 0
    run("what", "is this?", given="some text\n")
    (message,) = script.asked[1]["messages"]
    assert message["content"] == "File: stdin\n```\nsome text\n```\n\nwhat is this?"
    question = stored(places)[1][0]
    assert (question.text, [file.name for file in question.attachments]) == ("what is this?", ["stdin"])


@pytest.mark.usefixtures("tiny_in_the_catalogue")
def test_its_answers_stand_with_the_chats_of_the_page(
    places: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(*arguments: str) -> str:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
        code = main(["chat", "--model", "tiny", "--max-new-tokens", "8", *arguments])
        out, notes = capsys.readouterr()
        assert code == 0, notes
        return out

    told = json.loads(answer("--json", "hello"))
    assert (told["model"], told["finish"], told["figures"]["tokens"]) == ("tiny", "length", 8)
    with Store.open(places / "DATA" / "hierchat.db") as store:  # another program holds it meanwhile
        user = store.users.ids()[LOCAL_USER]
        empty = store.chats.create(user)
        second = answer("--continue", "--system", "Be brief.", "more")
        store.chats.discard(user, empty)
        settings = store.chats.settings(user, told["chat"])
    chat, path = stored(places)
    assert [message.text for message in path] == ["hello", told["text"], "more", second.removesuffix("\n")]
    assert (chat, [message.state for message in path]) == (told["chat"], ["complete"] * 4)
    assert (settings.system_prompt, settings.sampling["max_new_tokens"]) == ("Be brief.", 8)


def test_nobody_reads_the_reply_any_more(url: str, script: Script, tmp_path: Path) -> None:
    script.pieces, script.endless = ("a line\n",), True
    configure(tmp_path, url)
    program = [*COMMAND, "go on"]
    none, pipe = subprocess.DEVNULL, subprocess.PIPE
    with subprocess.Popen(
        program, env=environment(tmp_path), stdin=none, stdout=pipe, stderr=pipe, text=True
    ) as process:
        assert process.stdout.readline() == "a line\n"
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(SECONDS) == 141
    assert script.hung_up.wait(SECONDS)


def test_ctrl_c_stops_the_one_reply(run: Run, script: Script, places: Path) -> None:
    script.pieces, script.endless = ("a line\n",), True

    def interrupt() -> None:
        assert script.arrived.wait(SECONDS)
        time.sleep(0.2)  # so that some of it has come
        os.kill(os.getpid(), signal.SIGINT)

    pressing = threading.Thread(target=interrupt)
    pressing.start()
    code, _, told = run("go on")
    pressing.join()
    assert (code, "stopped" in told, "Traceback" in told) == (130, True, False)
    assert script.hung_up.wait(SECONDS)
    assert stored(places)[1][-1].state == "stopped"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model", "nobody", "hello"], "No model is called 'nobody'"),
        (["--continue", "hello"], "There is no chat to go on with yet"),
        (["--continue", "--no-history", "hello"], "--continue needs what --no-history leaves out."),
        (["--project", "House", "--no-history", "hello"], "--project needs what --no-history leaves out."),
        (["--project", "House", "hello"], "There is no project 'House'. There are: none."),
        ([], "Nothing was asked"),
        (["--json"], "Nothing was asked"),
        (["--temperature=11", "hello"], "11.0 is not in the range"),
        (["--seed=-1", "hello"], "-1 is not in the range"),
        (["--max-new-tokens=0", "hello"], "0 is not in the range"),
    ],
)
def test_what_cannot_be_done_is_said(run: Run, arguments: list[str], said: str) -> None:
    code, out, notes = run(*arguments)
    assert (code, out) == (2 if "Invalid value" in notes else 1, "")
    assert said in notes
