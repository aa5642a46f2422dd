"""The page over an engine elsewhere: it shows what it knows, and says what was not measured."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

from hierchat.chat.service import ChatService
from hierchat.store import Store
from tests.testing import browser as driving
from tests.testing.scripted_engine import load
from tests.testing.tiny_chat import ready_slot


@pytest.mark.browser
def test_a_conversation_with_an_engine_elsewhere(chromium: Browser, tmp_path) -> None:
    with Store.open(tmp_path / "remote.db") as store:
        service = ChatService(store, ready_slot(load))
        with driving.serving(service) as address, driving.visiting(chromium, address) as chat:
            chat.open()
            assert "longest river" in chat.ask("Hello")
            expect(chat.page.locator(".hc-speedup")).to_have_count(0)
            expect(chat.replies.last).to_contain_text("tokens in")
            chat.replies.last.locator("summary").first.click()
            expect(chat.replies.last).to_contain_text("Speed-up\u2013")
            expect(chat.page.locator(".hc-proof")).to_have_count(0)
            chat.page.get_by_label("Compare").check()
            chat.send("Both")
            said = chat.page.get_by_text("drafts by itself or not at all")
            expect(said).to_be_visible(timeout=driving.PATIENCE_MS)
            expect(chat.page.locator("#hc-box textarea")).to_have_value("Both")
            chat.shot("elsewhere")
        service.close()
