"""The settings of a chat and its presets, in a real browser: kept with the chat, chosen, saved, renamed, deleted."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator, expect

from tests.testing.browser import Chat
from tests.testing.fake_service import FakeService

pytestmark = pytest.mark.browser


def opened(chat: Chat) -> Locator:
    """The panel."""
    panel = chat.page.get_by_role("region", name="Chat settings")
    if not panel.is_visible():
        chat.page.get_by_role("button", name="Chat settings").click()
    expect(panel).to_be_visible()
    return panel


def system(chat: Chat) -> Locator:
    return chat.page.get_by_label("System prompt")


def temperature(chat: Chat) -> Locator:
    return chat.page.get_by_label("number input for Temperature")


def set_to(chat: Chat, prompt: str, degrees: str) -> None:
    opened(chat)
    system(chat).fill(prompt)
    temperature(chat).fill(degrees)
    temperature(chat).blur()


def shows(chat: Chat, prompt: str, degrees: str, preset: str = "No preset") -> None:
    expect(system(chat)).to_have_value(prompt)
    expect(temperature(chat)).to_have_value(degrees)
    expect(chat.page.locator("#hc-preset input")).to_have_value(preset)


def choose(chat: Chat, preset: str) -> None:
    opened(chat)
    chat.page.locator("#hc-preset input").click()
    chat.page.get_by_role("option", name=preset).click()
    expect(chat.page.locator("#hc-preset input")).to_have_value(preset)


def named(chat: Chat, button: str, name: str) -> None:
    chat.page.get_by_role("button", name=button).click()
    chat.page.locator(".hc-dialog input").fill(name)
    chat.page.keyboard.press("Enter")


def test_settings_belong_to_their_chat_and_survive_a_reload(chat: Chat, service: FakeService) -> None:
    set_to(chat, "Be terse.", "0.7")
    chat.ask("First chat")
    assert service.asked[-1][1].temperature == 0.7
    chats, user = service.store.chats, service.user
    first = chats.find(user)[0].id
    assert (settings := chats.settings(user, first))
    assert settings.system_prompt == "Be terse."
    chat.page.locator("#hc-new").click()
    shows(chat, "", "0")
    chat.ask("Second chat")
    assert service.asked[-1][1].temperature == 0
    assert chats.settings(user, chats.find(user)[0].id) is None
    chat.press("First chat")
    shows(chat, "Be terse.", "0.7")
    system(chat).fill("Be very terse.")  # not sent: kept all the same
    chat.until(lambda: (kept := chats.settings(user, first)) and kept.system_prompt == "Be very terse.")
    chat.page.reload()
    opened(chat)
    shows(chat, "Be very terse.", "0.7")
    chat.press("Second chat")
    shows(chat, "", "0")
    # Another model brings its sampling only where nothing was set.
    for name, degrees in (("Qwen3 0.6B", "0.7"), ("SmolLM2 135M", "0.3")):
        chat.page.locator("#hc-model input").click()
        chat.page.get_by_role("option", name=name).click()
        chat.until(lambda name=name: service.slot.status.name == name)
        shows(chat, "", degrees)
        temperature(chat).fill("0.3")
        temperature(chat).blur()


def test_a_preset_is_saved_chosen_changed_renamed_and_deleted(chat: Chat, service: FakeService) -> None:
    set_to(chat, "Be terse.", "0.7")
    named(chat, "Save as a preset…", "Terse")
    expect(chat.page.locator("#hc-preset input")).to_have_value("Terse")
    save = chat.page.get_by_role("button", name="Save changes")
    expect(save).to_be_disabled()
    chat.page.locator("#hc-new").click()
    shows(chat, "", "0")
    choose(chat, "Terse")
    shows(chat, "Be terse.", "0.7", "Terse")
    chat.ask("With a preset")
    presets, user = service.store.presets, service.user
    settings = service.store.chats.settings(user, service.store.chats.find(user)[0].id)
    assert settings
    assert settings.preset_id == presets.all(user)[0].id
    system(chat).fill("Be kind.")
    expect(save).to_be_enabled()
    save.click()
    expect(save).to_be_disabled()
    assert presets.all(user)[0].settings.system_prompt == "Be kind."
    named(chat, "Rename…", "Kind")
    expect(chat.page.locator("#hc-preset input")).to_have_value("Kind")
    named(chat, "Save as…", "Kind")
    expect(chat.page.locator("#hc-live")).to_contain_text("There is a preset called “Kind” already.")
    named(chat, "Save as…", "Other")
    expect(chat.page.locator("#hc-preset input")).to_have_value("Other")
    expect(chat.page.locator("#hc-live")).to_have_text("")
    chat.page.reload()
    opened(chat)
    shows(chat, "Be kind.", "0.7", "Other")
    chat.page.get_by_role("button", name="Delete…").click()
    chat.page.get_by_role("button", name="Delete", exact=True).click()
    shows(chat, "Be kind.", "0.7")
    assert [preset.name for preset in presets.all(user)] == ["Kind"]
    choose(chat, "Kind")
    choose(chat, "No preset")
    shows(chat, "", "0")
