"""A chat that outgrows the context, summarised in a browser."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from hierchat.chat.service import ChatService
from hierchat.store import Store
from tests.chat.test_compaction import ANSWER, SUMMARY, Summarising
from tests.testing import browser as driving
from tests.testing.scripted_engine import served
from tests.testing.tiny_chat import ready_slot

pytestmark = pytest.mark.browser
QUESTION = "Question {}: where does the longest river of this country end, and why?"


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ChatService]:
    monkeypatch.setattr("hierchat.chat.summaries.IDLE_SECONDS", float("inf"))
    made = served(Summarising(ANSWER))
    with (
        Store.open(tmp_path / "chat.db") as store,
        closing(ChatService(store, ready_slot(lambda name, report: made))) as service,
    ):
        yield service


def test_a_long_chat_is_summarised_edited_and_as_it_was(chromium: Browser, service: ChatService) -> None:
    with driving.serving(service) as address, driving.visiting(chromium, address) as chat:
        chat.open()
        summary = chat.page.locator(".hc-summary")
        number = 0
        while not chat.page.get_by_role("button", name="Summarise", exact=True).count():
            chat.ask(QUESTION.format(number))
            number += 1
        expect(chat.live).to_contain_text("This chat nearly fills the context window")
        chat.press("Summarise")
        expect(summary.locator(".hc-text")).to_have_text(SUMMARY)
        chat.idle()
        expect(chat.questions).to_have_count(number)
        expect(chat.live).not_to_contain_text("nearly fills")
        summary.get_by_role("button", name="Edit").click()
        summary.get_by_role("textbox", name="Edit the summary").fill("They asked of lakes.")
        chat.press("Save the summary")
        expect(summary.locator(".hc-text")).to_have_text("They asked of lakes.")
        chat.page.reload()
        expect(summary.locator(".hc-text")).to_have_text("They asked of lakes.")
        chat.ask("And then?")
        assert service.slot.model
        prompt = service.slot.model.engine.prompts[-1]  # type: ignore[attr-defined]
        assert "They asked of lakes." in prompt
        assert QUESTION.format(0) not in prompt
        summary.get_by_role("button", name="Undo").click()
        expect(summary).to_have_count(0)
