"""The program as a user runs it: `python app.py`, the default model, a real browser, a real SIGKILL."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from playwright.sync_api import TimeoutError, expect

from hierchat.store import Store
from tests.end_to_end.program import REPLY_MS, Program
from tests.testing import browser as driving

TRIES = 5
"""Of a small model's long stories some are short."""
pytestmark = [pytest.mark.slow, pytest.mark.browser]


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    running = Program(tmp_path)
    running.start()
    yield running
    running.stop(signal.SIGKILL)


@pytest.mark.unsteady(seen="the reply ended between the look at the disk and the kill: none was interrupted")
def test_a_conversation_survives_kill_and_restart(program: Program) -> None:
    with driving.browser() as browser, driving.visiting(browser, program.address) as chat:
        chat.page.set_default_timeout(REPLY_MS)
        chat.open()

        first = chat.ask("Write a Python function that adds two numbers.", REPLY_MS)
        assert "def" in first
        expect(chat.replies.last).to_contain_text(re.compile(r"\d+ tokens"))
        chat.ask("Repeat the function, word for word.", REPLY_MS)
        expect(chat.replies.last).to_contain_text("this chat")  # a copy is drafted from the conversation
        chat.shot("program")

        chat.replies.last.get_by_role("button", name="Again", exact=True).click()
        expect(chat.replies.last).to_contain_text(
            "2/2", timeout=REPLY_MS
        )  # it may be too quick for Stop to be seen
        chat.idle(REPLY_MS)
        expect(chat.replies).to_have_count(2)

        chat.page.locator("#hc-compare input").check()
        chat.send("What is the capital of France? Answer in one word.")
        expect(chat.page.locator("#hc-verdict")).to_contain_text("Word for word the same", timeout=REPLY_MS)
        chat.shot("program-compared")
        chat.idle(REPLY_MS)
        chat.page.locator("#hc-back").click()
        chat.page.locator("#hc-compare input").uncheck()

        for _ in range(TRIES):
            chat.send("Write a very long story about a lighthouse keeper.")
            expect(chat.words.last).to_contain_text(re.compile(r"\w{3,}.*" * 8, re.S), timeout=REPLY_MS)
            with suppress(TimeoutError):  # it has ended by itself
                chat.page.locator("#hc-stop").click(timeout=2000)
                break
        chat.idle()

        for _ in range(TRIES):
            chat.idle(REPLY_MS)
            chat.send("Write another long story, about a whale.")
            if _is_being_written(program):
                break
        resident = psutil.Process(program.process.pid).memory_info().rss if program.process else 0
        assert resident < 2.5 * 2**30
        program.stop(signal.SIGKILL)

        program.start()
        chat.open()
        chat.page.locator("#hc-list .hc-title").first.click()  # the model may have named it by now
        expect(chat.words.first).to_contain_text("def", timeout=REPLY_MS)
        chat.shot("program-restarted")
        chat.ask("Thank you. Say goodbye.", REPLY_MS)
        assert not chat.foreign

    states = _states(program)
    assert "interrupted" in states
    assert "stopped" in states
    assert "writing" not in states


def _is_being_written(program: Program) -> bool:
    """Whether the last question's reply is found on the disk while it grows."""
    give_up = time.monotonic() + 20
    while time.monotonic() < give_up:
        with Store.open(program.database) as store:
            if any(m.state == "writing" and len(m.text) > 20 for m in _messages(store)):
                return True
        time.sleep(0.2)
    return False


def _states(program: Program) -> list[str]:
    with Store.open(program.database) as store:
        return [message.state for message in _messages(store)]


def _messages(store: Store) -> list:
    user = store.users.ensure("local")
    return [m for c in store.chats.find(user) for m in store.messages.path(user, c.id)]
