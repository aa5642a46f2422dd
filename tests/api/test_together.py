"""Two pages and two programs at once, over one model."""

# mypy: ignore-errors
from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.api.scripted import make_slot, serving
from tests.api.test_openai import client
from tests.testing import browser as driving

pytestmark = pytest.mark.browser


def test_two_pages_and_two_programs_get_the_replies_that_each_gets_alone(tmp_path: Path) -> None:
    def ask(question: str) -> str:
        stream = client(served).chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": question}], stream=True
        )
        return "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    with serving(tmp_path, make_slot()) as served, driving.browser() as chromium:
        alone = [ask(question) for question in ("hello", "the river")]
        with (
            driving.visiting(chromium, served.address) as one,
            driving.visiting(chromium, served.address) as two,
            ThreadPoolExecutor(2) as programs,
        ):
            for page, question in ((one, "from one page"), (two, "from another")):
                page.open()
                page.send(question)
            together = list(programs.map(ask, ("hello", "the river")))
            for page in (one, two):
                expect(page.replies).to_have_count(1, timeout=driving.PATIENCE_MS)
        assert together == alone
        person = served.store.users.ensure("local")
        titles = {chat.title for chat in served.store.chats.find(person)}
        assert titles == {"from one page", "from another"}  # and nothing that a program asked
        for chat in served.store.chats.find(person):
            question, reply = served.store.messages.path(person, chat.id)
            assert reply.state == "complete"
            assert len(reply.text) > 0
