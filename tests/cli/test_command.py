"""`hierchat chat` in scripts, over a scripted server."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hierchat.cli import answering
from hierchat.cli.chat import KEY_VARIABLE, ChatFlags
from hierchat.cli.main import main
from hierchat.store import LOCAL_USER, Store
from tests.testing.openai_server import Script

if sys.platform == "win32":
    pytest.skip("signals of Unix", allow_module_level=True)

from .terminal import COMMAND, SECONDS, piped, places, with_kernels


def test_standard_output_holds_the_reply_alone(url: str, tmp_path: Path) -> None:
    done = piped(tmp_path, "--url", url, "hello")
    assert (done.returncode, done.stdout) == (0, "Hello there.\n")
    assert "2.0\N{MULTIPLICATION SIGN} faster than without drafts" in done.stderr
    assert "\x1b" not in done.stderr


def test_control_characters_go_through_a_pipe(url: str, script: Script, tmp_path: Path) -> None:
    script.pieces = ("**a** \x1b[1m", "b\n")
    assert piped(tmp_path, "--url", url, "hello").stdout == "**a** \x1b[1mb\n"


def test_what_is_piped_in_is_the_message(url: str, script: Script, tmp_path: Path) -> None:
    piped(tmp_path, "--url", url, given="What is\nthis?\n")
    assert script.asked[0]["messages"] == [{"role": "user", "content": "What is\nthis?"}]


def test_what_is_piped_in_goes_with_the_message(url: str, script: Script, tmp_path: Path) -> None:
    piped(tmp_path, "--url", url, "what", "is this?", given="some text\n")
    (message,) = script.asked[0]["messages"]
    assert message["content"] == "File: stdin\n```\nsome text\n```\n\nwhat is this?"
    with Store.open(tmp_path / "DATA" / "hierchat.db") as store:
        user = store.users.ids()[LOCAL_USER]
        (chat,) = store.chats.find(user)
        question = store.messages.path(user, chat.id)[0]
    assert (question.text, [file.name for file in question.attachments]) == ("what is this?", ["stdin"])


def test_json(url: str, tmp_path: Path) -> None:
    done = piped(tmp_path, "--url", url, "--json", "--seed", "11", "hello")
    told = json.loads(done.stdout)
    assert (told["text"], told["model"], told["finish"]) == ("Hello there.", "scripted", "end")
    with Store.open(tmp_path / "DATA" / "hierchat.db") as store:
        assert [chat.id for chat in store.chats.find(store.users.ids()[LOCAL_USER])] == [told["chat"]]
    assert told["figures"]["speedup"] == 2.0
    assert told["figures"]["sources"] == {"context": 0.25, "target": 0.75}
    assert done.stderr == ""
    refused = piped(tmp_path, "--url", url, "--json")
    assert refused.returncode == 1
    assert "Nothing was asked" in refused.stderr


def test_continue_goes_on_with_the_last_chat(url: str, script: Script, tmp_path: Path) -> None:
    none = piped(tmp_path, "--url", url, "--continue", "hello")
    assert (none.returncode, none.stdout) == (1, "")
    assert "There is no chat to go on with yet" in none.stderr
    for more in ([], ["--continue"]):
        assert piped(tmp_path, "--url", url, *more, "hello").returncode == 0
    assert [len(asked["messages"]) for asked in script.asked] == [1, 3]


def test_no_history_makes_no_database(url: str, tmp_path: Path) -> None:
    assert piped(tmp_path, "--url", url, "--no-history", "hello").stdout == "Hello there.\n"
    assert not list(tmp_path.rglob("*.db"))


def test_who_reads_no_more_ends_it(url: str, script: Script, tmp_path: Path) -> None:
    script.pieces, script.endless = ("a line\n",), True
    process = subprocess.Popen(
        [*COMMAND, "--url", url, "go on"],
        env=places(tmp_path),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert process.stderr
    assert process.stdout.readline() == "a line\n"
    process.stdout.close()
    assert process.wait(SECONDS) == 141
    assert script.hung_up.wait(SECONDS)
    assert process.stderr.read() == ""


def test_an_interrupt_stops_the_one_reply(url: str, script: Script, tmp_path: Path) -> None:
    script.pieces, script.endless = ("a line\n",), True
    process = subprocess.Popen(
        [*COMMAND, "--url", url, "go on"],
        env=places(tmp_path),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert process.stdout.readline() == "a line\n"
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert "stopped" in told
    assert "Traceback" not in told
    with Store.open(tmp_path / "DATA" / "hierchat.db") as store:
        user = store.users.ids()[LOCAL_USER]
        (chat,) = store.chats.find(user)
        assert store.messages.path(user, chat.id)[-1].state == "stopped"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model", "nobody", "hello"], "No model is called 'nobody'. There are: other, scripted."),
        (["--continue", "--no-history", "hello"], "--continue needs what --no-history leaves out."),
        (["--alone", "hello"], "--alone and --url are opposites."),
        (["--url", "ftp://x", "hello"], "'ftp://x' is no address."),
        ([], "Nothing was asked"),
    ],
)
def test_what_cannot_be_done_is_said(url: str, tmp_path: Path, arguments: list[str], said: str) -> None:
    done = piped(tmp_path, "--url", url, *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"hierchat: {said}")


def test_a_server_without_a_model(url: str, script: Script, tmp_path: Path) -> None:
    script.models = []
    done = piped(tmp_path, "--url", url, "hello")
    assert done.returncode == 1
    assert f"There is no model at {url}." in done.stderr


def test_an_unknown_model_of_this_machine(tmp_path: Path) -> None:
    done = piped(tmp_path, "--alone", "--model", "nobody", "hello")
    assert done.returncode == 1
    assert "No model is called 'nobody'. There are: smollm2-135m" in done.stderr


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    with_kernels(tmp_path)
    (tmp_path / "CONFIG").mkdir()
    (tmp_path / "CONFIG" / "models.yaml").write_text(
        "models:\n  gone:\n    source: {folder: {path: /no/where}}\n    licence: none\n"
    )
    done = piped(tmp_path, "--alone", "--model", "gone", "hello")
    assert (done.returncode, done.stdout) == (1, "")
    assert "/no/where" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("flag", "value"),
    [("--temperature", "11"), ("--temperature", "nan"), ("--seed", "-1"), ("--max-new-tokens", "0")],
)
def test_numbers_out_of_bounds_are_refused(flag: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", f"{flag}={value}", "hello"]) == 2
    assert f"not '{value}'" in capsys.readouterr().err


def found(**flags: Any) -> str | None:
    """The address of the server that would answer, without being named."""
    server = answering.find_server(ChatFlags(**flags))
    return server.url if server else None


def test_a_hierchat_that_runs_here_answers(url: str, script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "USUAL_URL", url)
    assert found() == url
    assert found(model="other") == url
    assert found(model="not-there") is None
    assert found(alone=True) is None
    assert found(backend="float32") is None
    script.key = "secret"
    assert found() is None
    monkeypatch.setenv(KEY_VARIABLE, "secret")
    assert found() == url
    script.models[0]["owned_by"] = script.models[1]["owned_by"] = "somebody"
    assert found() is None
