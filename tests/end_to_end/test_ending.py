"""The program ends: killed, told to end once and twice. What it was asked, and what it must leave behind."""

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from hierchat.store import Store
from hierchat.store.repository import this_process
from tests.end_to_end.program import ROOT, Program
from tests.testing import browser as driving

pytestmark = pytest.mark.browser
SERVES = "hierchat is at"


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    places = {f"HIERCHAT_{name}": str(tmp_path / name) for name in ("DATA", "CONFIG")}
    command = [sys.executable, "-m", "tests.end_to_end.slow_program"]
    running = Program(tmp_path, command, environment={**os.environ, **places, "PYTHONPATH": str(ROOT)})
    yield running
    running.stop(signal.SIGKILL)


def held(program: Program) -> list[str]:
    with closing(sqlite3.connect(program.database)) as db:
        return [text for (text,) in db.execute("SELECT text FROM waiting ORDER BY id")]


def said(program: Program) -> list[list[tuple[str, str]]]:
    """Of each chat, the latest first, the role and state of its messages."""
    with Store.open(program.database) as store:
        user = store.users.ensure("local")
        return [
            [(m.text if m.role == "user" else "", m.state) for m in store.messages.path(user, chat.id)]
            for chat in store.chats.find(user)
        ]


def files(program: Program) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in program.database.parent.glob("chat.db*")}


def test_what_waits_and_what_is_written_outlives_a_kill_and_an_end_in_order(
    chromium: Browser, program: Program, tmp_path: Path
) -> None:
    """And of an incognito chat neither leaves anything."""
    _, started = this_process()
    dead = f"{2**22 + 1}-{started}-abcd"  # beyond all process ids
    transfer = tmp_path / "DATA" / "transfer"
    left = [transfer / dead / "x" / "chats.json", tmp_path / "DATA" / "models" / f".{dead}.part"]
    for file in left:
        file.parent.mkdir(parents=True)
        file.write_text("half")
    program.environment["NEVER_LOADS"] = "yes"
    program.start(SERVES)
    assert not any(file.exists() for file in left)  # files on their way go at the next start
    with driving.visiting(chromium, program.address) as chat:
        chat.open()
        chat.send("About an okapi")
        expect(chat.stop).to_be_visible()
        chat.until(lambda: held(program) == ["About an okapi"])
        chat.new()
        chat.compare()
        chat.send("Its cousins")
        chat.until(lambda: held(program) == ["About an okapi", "Its cousins"])
        program.stop(signal.SIGKILL)
        assert said(program) == [[("Its cousins", "complete")], [("About an okapi", "complete")]]

        del program.environment["NEVER_LOADS"]
        chat.page.goto("about:blank")  # else it may come back by itself just while it is opened
        program.start()
        chat.open()
        chat.titles.get_by_text("About an okapi").click()
        question = chat.page.locator("#hc-thread .hc-turn").last
        expect(question).to_contain_text("Not answered")
        expect(question.locator(".hc-mine")).to_have_css("opacity", "1")
        question.get_by_role("button", name="Answer", exact=True).click()
        expect(chat.words.last).not_to_be_empty()
        expect(chat.page.locator(".hc-unanswered")).to_have_count(0)
        chat.stop.click()
        chat.idle()
        chat.begin("Tell more")
        chat.send("And more")
        expect(chat.page.locator("#hc-tray")).to_contain_text("Will be sent next")
        assert held(program) == ["And more"]
        sent = chat.page.request.post(f"{program.address}/transfer/in?name=chats.json", data="{}")
        assert "ticket" in sent.text()
        assert list(transfer.glob("*/*/chats.json"))
        with driving.visiting(chromium, program.address) as other:
            other.open()
            other.page.locator("#hc-incognito .hc-switch").click()
            expect(other.page.locator("#hc-incognito .hc-switch[aria-checked=true]")).to_be_visible()
            other.begin("About a pangolin")
            other.send("And its cousin")
            expect(other.page.locator("#hc-tray")).to_contain_text("Will be sent next")
            assert held(program) == ["And more"]
            assert any(b"pangolin" in content for content in files(program).values())
            program.stop(signal.SIGTERM)
    assert program.process.returncode == 0
    assert list(files(program)) == ["chat.db"]
    assert b"pangolin" not in files(program)["chat.db"]
    assert list(transfer.iterdir()) == []  # and at the end
    assert said(program) == [
        [
            ("About an okapi", "complete"), ("", "stopped"),
            ("Tell more", "complete"), ("", "interrupted"), ("And more", "complete"),
        ],
        [("Its cousins", "complete")],
    ]  # fmt: skip


IGNORED = """
import os, signal
from hierchat import shutdown
signal.signal(signal.SIGHUP, signal.SIG_IGN)
with shutdown.in_order():
    os.kill(os.getpid(), signal.SIGHUP)
    print('goes on', flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
"""
TWICE = """
import os, signal, time
from hierchat import shutdown
with shutdown.in_order():
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        print('closing', flush=True)
        os.kill(os.getpid(), signal.SIGTERM)
        print('never said')
"""


@pytest.mark.parametrize(("script", "printed"), [(IGNORED, "goes on\n"), (TWICE, "closing\n")])
def test_an_ignored_signal_stays_so_and_a_second_one_ends_at_once(script: str, printed: str) -> None:
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == (printed, 128 + signal.SIGTERM)
