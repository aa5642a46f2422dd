"""`hierchat chat` on a real terminal, over a scripted server."""

import re
import signal
import sys
from pathlib import Path

import pytest

from hierchat.store import LOCAL_USER, Store
from tests.testing.openai_server import Script

if sys.platform == "win32":
    pytest.skip("needs a terminal of Unix", allow_module_level=True)

from .terminal import CTRL_C, CTRL_D, SECONDS, configure, terminal

PROMPT = r"> $"


def stored(folder: Path) -> list[tuple[str, str]]:
    """Text and state of the messages of the last chat."""
    with Store.open(folder / "DATA" / "hierchat.db") as store:
        user = store.users.ids()[LOCAL_USER]
        chat = store.chats.find(user)[0]
        return [(message.text, message.state) for message in store.messages.path(user, chat.id)]


COMMANDS = {
    "/help": r"/new begins another chat",
    "/sing": r"/new begins another chat",
}


def test_a_chat_and_its_commands(url: str, script: Script, tmp_path: Path) -> None:
    script.pieces = (
        "# Title\n\nSome **bold",
        " text** and <i>more</i>.\n\n- one\n",
        "- two\x1b[2J\n\n```\ncode\n```\n",
    )
    flags = ("--model", "other", "--system", "You are [bold]", "--temperature", "0.5", "--seed", "7")
    configure(tmp_path, url)
    with terminal(tmp_path, *flags) as chat:
        assert f"other at {url}" in chat.until(PROMPT)
        for typed, answer in COMMANDS.items():
            chat.type(f"{typed}\n", rf"{answer}.*{PROMPT}")
        assert not script.asked
        drawn = chat.type("/etc/hosts is what?\n", rf"tokens.*{PROMPT}")
        assert "\x1b[2J" not in chat.raw  # a reply cannot clear the screen
        for whole in ("# Title", "Some **bold text** and <i>more</i>.", "- one", "- two[2J", "code"):
            assert whole in drawn
        figures = " ".join(drawn.split())
        assert re.search(r"\d+ tokens in [\d.]+ s", figures)
        asked = script.asked[0]
        assert (asked["model"], asked["temperature"], asked["seed"]) == ("other", 0.5, 7)
        assert asked["messages"][0]["content"] == "You are [bold]"
        chat.type("again\n", rf"tokens.*{PROMPT}")
        assert [one["role"] for one in script.asked[1]["messages"]] == ["system", "user", "assistant", "user"]
        chat.type("/new\n", rf"A new chat\..*{PROMPT}")
        chat.type("third\n", rf"tokens.*{PROMPT}")
        assert [one["content"] for one in script.asked[2]["messages"]] == ["You are [bold]", "third"]
        chat.type("/exit\n", "")
        assert chat.ended() == 0
    # Nothing is kept but in the database
    files = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert {name.removesuffix("-wal").removesuffix("-shm") for name in files} == {
        "hierchat.db",
        "models.yaml",
    }


def test_ctrl_c_and_a_server_that_goes_away(url: str, script: Script, tmp_path: Path) -> None:
    configure(tmp_path, url)
    with terminal(tmp_path) as chat:
        chat.until(PROMPT)
        chat.type("taken back", r"taken back$")
        chat.interrupt(PROMPT)
        chat.type("one\\\n", r"\. $")
        chat.type("two\n", rf"tokens.*{PROMPT}")
        assert [one["messages"][-1]["content"] for one in script.asked] == ["one\ntwo"]
        script.refuses = (503, "No model is loaded.")
        chat.type("hello\n", rf"No model is loaded\..*{PROMPT}")
        script.refuses, script.silent = None, True
        script.arrived.clear()
        chat.type("hello\n", "hello")
        assert script.arrived.wait(SECONDS)
        chat.type(CTRL_C, rf"stopped\s+{PROMPT}")
        assert script.hung_up.wait(SECONDS)
        script.silent, script.breaks = False, True
        chat.type("hello\n", rf"broke\s+off\s+in\s+mid-reply.*{PROMPT}")
        script.breaks, script.endless = False, True
        script.hung_up.clear()
        chat.type("go on\n", r"there\.there\.")
        drawn = chat.type(CTRL_C, rf"stopped.*{PROMPT}")
        assert "Traceback" not in drawn
        assert script.hung_up.wait(SECONDS)
        chat.type(CTRL_D, "")
        assert chat.ended() == 0
    replies = stored(tmp_path)[1::2]
    assert [state for _, state in replies] == ["complete", "interrupted", "stopped", "interrupted", "stopped"]
    assert replies[4][0].startswith("Hello there.")


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_what_there_is_is_kept_where_it_is_ended(
    url: str, script: Script, tmp_path: Path, how: signal.Signals
) -> None:
    """In mid-reply; before its first word."""
    writing = how == signal.SIGTERM
    script.endless, script.silent = writing, not writing
    configure(tmp_path, url)
    with terminal(tmp_path) as chat:
        chat.until(PROMPT)
        chat.type("hello\n", r"there\.there\." if writing else "hello")
        assert script.arrived.wait(SECONDS)
        chat.process.send_signal(how)
        assert chat.ended() == (128 + how if writing else -how)
    question, *replies = stored(tmp_path)
    assert question == ("hello", "complete")
    if writing:
        assert script.hung_up.wait(SECONDS)
        ((text, state),) = replies
        assert text.startswith("Hello there.")
        assert state == "stopped"
        assert [file.name for file in (tmp_path / "DATA").glob("hierchat.db*")] == ["hierchat.db"]
    else:
        assert replies == [("", "interrupted")]
