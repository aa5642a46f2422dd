"""The program as a user runs it: `python app.py`, the default model, a real browser, a real SIGKILL."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from playwright.sync_api import expect

from hierchat.store import Store
from tests import browser as driving

pytestmark = [pytest.mark.slow, pytest.mark.browser]
ROOT = Path(__file__).parents[2]
START_SECONDS = 400  # the first start fetches and converts the model
REPLY_MS = 240_000


class Program:
    """app.py over one database; can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.database = folder / "chat.db"
        self.log = folder / "log"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [sys.executable, "app.py", "--port", str(self.port), "--db", str(self.database)]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
        give_up = time.monotonic() + START_SECONDS
        while "is ready" not in self.log.read_text(errors="replace"):
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < give_up, self.log.read_text()
            time.sleep(0.2)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self.process and self.process.poll() is None:
            self.process.send_signal(how)
            self.process.wait(30)


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    running = Program(tmp_path)
    running.start()
    yield running
    running.stop(signal.SIGKILL)


def test_a_conversation_survives_kill_and_restart(program: Program) -> None:
    with driving.browser() as browser, driving.visiting(browser, program.address) as chat:
        chat.page.set_default_timeout(REPLY_MS)
        chat.open()

        first = chat.ask("Write a Python function that adds two numbers.", REPLY_MS)
        assert "def" in first
        expect(chat.replies.last).to_contain_text(re.compile(r"tok/s.*\d+ tokens", re.S))
        chat.ask("Repeat the function, word for word.", REPLY_MS)
        expect(chat.replies.last).to_contain_text("context")  # a copy is drafted from the conversation
        expect(chat.replies.last).to_contain_text(re.compile(r"\d\.\d+×"))  # noqa: RUF001  measured, not estimated
        chat.shot("program")

        chat.replies.last.get_by_text("Again").click()
        expect(chat.page.locator("#hc-stop")).to_be_visible(timeout=REPLY_MS)
        chat.idle(REPLY_MS)
        expect(chat.replies).to_have_count(2)

        chat.page.locator("#hc-compare input").check()
        chat.send("What is the capital of France? Answer in one word.")
        expect(chat.page.locator("#hc-verdict")).to_contain_text("Identical", timeout=REPLY_MS)
        chat.shot("program-compared")
        chat.idle(REPLY_MS)
        chat.page.locator("#hc-back").click()
        chat.page.locator("#hc-compare input").uncheck()

        chat.send("Write a very long story about a lighthouse keeper.")
        expect(chat.words.last).to_contain_text(re.compile(r"\w{3,}.*" * 8, re.S), timeout=REPLY_MS)
        chat.page.locator("#hc-stop").click()
        chat.idle(5_000)

        chat.send("Write another long story, about a whale.")
        _wait_until_stored(program, "writing")
        resident = psutil.Process(program.process.pid).memory_info().rss if program.process else 0
        assert resident < 2.5 * 2**30
        program.stop(signal.SIGKILL)

        program.start()
        chat.open()
        chat.page.locator("#hc-list nav").get_by_text("Write a Python function").first.click()
        expect(chat.words.first).to_contain_text("def", timeout=REPLY_MS)
        chat.shot("program-restarted")
        chat.ask("Thank you. Say goodbye.", REPLY_MS)
        assert not chat.foreign

    states = _states(program)
    assert "interrupted" in states
    assert "stopped" in states
    assert "writing" not in states


def _wait_until_stored(program: Program, state: str) -> None:
    give_up = time.monotonic() + 60
    while True:
        with Store.open(program.database) as store:
            found = [m for m in _messages(store) if m.state == state and len(m.text) > 20]
        if found:
            return
        assert time.monotonic() < give_up
        time.sleep(0.2)


def _states(program: Program) -> list[str]:
    with Store.open(program.database) as store:
        return [message.state for message in _messages(store)]


def _messages(store: Store) -> list:
    user = store.ensure_user("local")
    return [m for c in store.conversations(user) for m in store.messages(user, c.id)]
