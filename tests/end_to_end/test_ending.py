"""The program ends: killed, told to end once and twice. What it was asked, and what it must leave behind."""

from __future__ import annotations

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
from hierchat.store.connection import this_process
from tests.end_to_end.program import ROOT, Program
from tests.testing import browser as driving

pytestmark = pytest.mark.browser
SERVES = "hierchat is at"
ENDS = [signal.SIGTERM, signal.SIGHUP]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with driving.browser() as launched:
        yield launched


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    places = {f"HIERCHAT_{name}": str(tmp_path / name) for name in ("DATA", "CONFIG")}
    running = Program(
        tmp_path,
        [sys.executable, "-m", "tests.end_to_end.slow_program"],
        environment={**os.environ, **places, "PYTHONPATH": str(ROOT)},
    )
    yield running
    running.stop(signal.SIGKILL)


def never_loads(program: Program, never: bool) -> None:
    program._environment = {**program._environment, "NEVER_LOADS": "yes" if never else ""}


def held(program: Program) -> list[str]:
    with closing(sqlite3.connect(program.database)) as db:
        return [text for (text,) in db.execute("SELECT text FROM waiting ORDER BY id")]


def said(program: Program) -> list[list[tuple[str, str]]]:
    """Of each chat, the latest first, the role and state of its messages."""
    with Store.open(program.database) as store:
        assert store.notice == ""
        user = store.users.ensure("local")
        return [
            [(m.text if m.role == "user" else "", m.state) for m in store.messages.path(user, chat.id)]
            for chat in store.chats.find(user)
        ]


def files(program: Program) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in program.database.parent.glob("chat.db*")}


def test_what_waits_outlives_a_kill_and_an_end_in_order(chromium: Browser, program: Program) -> None:
    never_loads(program, True)
    program.start(SERVES)
    with driving.visiting(chromium, program.address) as chat:
        chat.open()
        chat.send("About an okapi")
        expect(chat.page.locator("#hc-stop")).to_be_visible()
        chat.until(lambda: held(program) == ["About an okapi"])
        program.stop(signal.SIGKILL)

        never_loads(program, False)
        program.start()
        chat.open()
        chat.page.locator("#hc-list .hc-title").get_by_text("About an okapi").click()
        question = chat.page.locator("#hc-thread .hc-turn").last
        expect(question).to_contain_text("Not answered")
        expect(question.locator(".hc-mine")).to_have_css("opacity", "1")
        chat.shot("not-answered")
        question.get_by_role("button", name="Answer", exact=True).click()
        expect(chat.words.last).not_to_be_empty()
        expect(chat.page.locator(".hc-unanswered")).to_have_count(0)
        chat.send("And its cousin")
        expect(chat.page.locator("#hc-tray")).to_contain_text("Will be sent next")
        assert held(program) == ["And its cousin"]
        program.stop(signal.SIGTERM)
    assert program.process
    assert program.process.returncode == 0
    assert list(files(program)) == ["chat.db"]
    assert said(program) == [
        [("About an okapi", "complete"), ("", "interrupted"), ("And its cousin", "complete")]
    ]


def test_a_comparison_that_waits_outlives_a_kill(chromium: Browser, program: Program) -> None:
    never_loads(program, True)
    program.start(SERVES)
    with driving.visiting(chromium, program.address) as chat:
        chat.open()
        chat.page.locator("#hc-compare input").check()
        chat.send("About an okapi")
        chat.until(lambda: held(program) == ["About an okapi"])
        program.stop(signal.SIGKILL)
    assert said(program) == [[("About an okapi", "complete")]]


@pytest.mark.parametrize("how", ENDS)
def test_an_end_in_order_leaves_nothing_of_an_incognito_chat(
    chromium: Browser, program: Program, how: signal.Signals
) -> None:
    program.start()
    with driving.visiting(chromium, program.address) as chat:
        chat.open()
        chat.page.locator("#hc-incognito .hc-switch").click()
        expect(chat.page.locator("#hc-incognito .hc-switch[aria-checked=true]")).to_be_visible()
        chat.send("About a pangolin")
        expect(chat.words.last).not_to_be_empty()
        chat.send("And its cousin")
        expect(chat.page.locator("#hc-tray")).to_contain_text("Will be sent next")
        assert held(program) == []
        assert any(b"pangolin" in content for content in files(program).values())
        program.stop(how)
    assert program.process
    assert program.process.returncode == 0
    assert list(files(program)) == ["chat.db"]
    assert b"pangolin" not in files(program)["chat.db"]
    assert said(program) == []


def test_the_second_signal_ends_at_once(chromium: Browser, program: Program) -> None:
    program.start()
    with driving.visiting(chromium, program.address) as chat:
        chat.open()
        chat.send("About an okapi")
        expect(chat.words.last).not_to_be_empty()
        assert program.process
        # The reply in progress keeps the end in order waiting.
        program.process.send_signal(signal.SIGTERM)
        chat.page.wait_for_timeout(500)
        program.stop(signal.SIGTERM)
        assert program.process.returncode == 128 + signal.SIGTERM
    assert said(program) == [[("About an okapi", "complete"), ("", "interrupted")]]


def test_files_on_their_way_go_at_the_end_and_at_the_next_start(program: Program, tmp_path: Path) -> None:
    never_loads(program, True)
    _, started = this_process()
    dead = f"{2**22 + 1}-{started}-abcd"  # beyond all process ids
    left = tmp_path / "DATA" / "transfer" / dead / "x" / "chats.json"
    half = tmp_path / "DATA" / "models" / f".{dead}.part"
    for file in (left, half):
        file.parent.mkdir(parents=True)
        file.write_text("half")
    program.start(SERVES)
    assert not left.exists()
    assert not half.exists()
    made = subprocess.run(
        ["curl", "-sf", "--data-binary", "{}", f"{program.address}/transfer/in?name=chats.json"],
        capture_output=True,
        text=True,
    )
    assert "ticket" in made.stdout
    assert list((tmp_path / "DATA" / "transfer").glob("*/*/chats.json"))
    program.stop(signal.SIGTERM)
    assert list((tmp_path / "DATA" / "transfer").iterdir()) == []


def test_a_signal_that_is_ignored_stays_so() -> None:
    """As nohup starts it."""
    script = (
        "import os, signal\n"
        "from hierchat import shutdown\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "with shutdown.in_order():\n"
        "    os.kill(os.getpid(), signal.SIGHUP)\n"
        "    print('goes on', flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("goes on\n", 128 + signal.SIGTERM)


def test_the_second_signal_takes_along_what_would_stay() -> None:
    """As vLLM, which is a process group of its own."""
    script = (
        "import os, signal, time\n"
        "from hierchat import shutdown\n"
        "shutdown.at_once.append(lambda: print('killed', flush=True))\n"
        "with shutdown.in_order():\n"
        "    try:\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "    finally:\n"
        "        print('closing', flush=True)\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        print('never said')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("closing\nkilled\n", 128 + signal.SIGTERM)
