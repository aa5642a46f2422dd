"""The program as a user runs it: `python app.py`, the default model, a real browser, a real SIGKILL."""

import re
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from playwright.sync_api import Browser, expect

from hierchat.chat.reply_stream import WRITE_SECONDS
from hierchat.store import Store
from tests.end_to_end.program import REPLY_MS, Program
from tests.testing import browser as driving

pytestmark = [pytest.mark.slow, pytest.mark.browser]


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    running = Program(tmp_path)
    running.start()
    yield running
    running.stop(signal.SIGKILL)


def last_reply(program: Program) -> tuple[int, str, int]:
    """Number, state and length of the newest reply on the disk."""
    with closing(sqlite3.connect(f"file:{program.database}?mode=ro", uri=True)) as db:
        replies = "SELECT id, state, length(text) FROM messages WHERE role = 'assistant' ORDER BY id DESC"
        return db.execute(replies).fetchone()


def killed_in_mid_reply(program: Program, before: int) -> bool:
    """Kill the program while the reply behind `before` grows; False if that ended first. The program stands still
    during each look at the disk, so that the reply cannot end between look and kill; long enough for the clock by
    which it stores a growing reply, so that a short and quick one is stored before its end, too."""
    while True:
        program.process.send_signal(signal.SIGSTOP)
        number, state, length = last_reply(program)
        if number > before and state == "writing" and length > 20:
            program.stop(signal.SIGKILL)
            return True
        if number > before and state == "writing":
            time.sleep(1.2 * WRITE_SECONDS)
        program.process.send_signal(signal.SIGCONT)
        if number > before and state != "writing":
            return False
        time.sleep(0.02)


def test_a_conversation_survives_kill_and_restart(program: Program, chromium: Browser) -> None:
    with driving.visiting(chromium, program.address) as chat:
        chat.page.set_default_timeout(REPLY_MS)
        chat.open()
        chat.press("Chat settings")
        chat.page.get_by_label("Longest reply").fill("96")
        chat.press("Close the settings")
        first = chat.ask("Write a Python function that adds two numbers.", REPLY_MS)
        assert "def" in first
        expect(chat.details()).to_contain_text("Runs of the model")
        chat.ask("Repeat the function, word for word.", REPLY_MS)
        # A copy is drafted from the conversation: the details say so
        expect(chat.details()).to_contain_text(re.compile("this chat", re.IGNORECASE))
        chat.replies.last.get_by_role("button", name="Again", exact=True).click()
        expect(chat.replies.last).to_contain_text("2/2", timeout=REPLY_MS)
        chat.idle(REPLY_MS)
        expect(chat.replies).to_have_count(2)
        chat.compare()
        chat.send("What is the capital of France? Answer in one word.")
        expect(chat.page.locator("#hc-verdict")).to_contain_text("Word for word the same", timeout=REPLY_MS)
        chat.idle(REPLY_MS)
        chat.page.locator("#hc-back").click()
        chat.compare(False)

        assert psutil.Process(program.process.pid).memory_info().rss < 2.5 * 2**30
        for _ in range(5):  # of a small model's long stories some are short
            before, *_ = last_reply(program)
            chat.send("Write a very long story about a lighthouse keeper.")
            if killed_in_mid_reply(program, before):
                break
            chat.idle(REPLY_MS)
        else:
            pytest.fail("no story was long enough")

        chat.page.goto("about:blank")  # else it may come back by itself just while it is opened
        program.start()
        chat.open()
        chat.titles.first.click()  # the model may have named it by now
        expect(chat.words.first).to_contain_text("def", timeout=REPLY_MS)
        expect(chat.replies.last).to_contain_text("interrupted")
        chat.ask("Thank you. Say goodbye.", REPLY_MS)
        assert not chat.foreign
    with Store.open(program.database) as store:
        user = store.users.ensure("local")
        states = [m.state for one in store.chats.find(user) for m in store.messages.path(user, one.id)]
    assert "interrupted" in states
    assert "writing" not in states
