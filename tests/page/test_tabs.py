"""What one tab does and another one sees, what a reload brings back, and what a finger can do: in a real browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

from tests.page.chats import stored_chat
from tests.page.test_chat_settings import named, opened, set_to, shows, system
from tests.testing import browser as driving
from tests.testing.browser import Chat
from tests.testing.fake_service import FakeService

pytestmark = pytest.mark.browser


@pytest.fixture(autouse=True)
def quick(service: FakeService) -> None:
    service.script.seconds = service.script.reading_seconds = 0
    for user in service.store.users.ids().values():
        for preset in service.store.presets.all(user):
            service.store.presets.delete(user, preset.id)


def test_settings_and_presets_of_one_tab_come_to_the_others(
    chat: Chat, chromium: Browser, service: FakeService
) -> None:
    number = stored_chat(service.store, "Story", 1)
    chat.open(f"?c={number}")
    with driving.visiting(chromium, chat.address) as other:
        other.open(f"?c={number}")
        opened(chat)
        opened(other)
        set_to(other, "Speak like a pirate.", "0.5")
        shows(chat, "Speak like a pirate.", "0.5")
        named(other, "Save as a preset…", "Pirate")
        shows(chat, "Speak like a pirate.", "0.5", "Pirate")
        named(other, "Rename…", "Corsair")
        shows(chat, "Speak like a pirate.", "0.5", "Corsair")
        system(chat).fill("Whisper.")
        system(chat).blur()
        shows(other, "Whisper.", "0.5", "Corsair")
        expect(other.page.get_by_role("button", name="Save changes")).to_be_enabled()
