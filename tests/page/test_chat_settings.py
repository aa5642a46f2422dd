"""The settings of a chat and its presets: kept with the chat, chosen, saved, renamed, deleted."""

import pytest
from playwright.sync_api import expect

from tests.page.stored import stored_chat
from tests.testing.browser import Chat
from tests.testing.fake_service import FakeService
from tests.testing.visitor import Visitor


def set_to(page: Visitor, prompt: str, degrees: float) -> None:
    page.give("hc-system", prompt)
    page.give("Temperature", degrees)
    page.press("hc_keep")


def shows(page: Visitor, prompt: str, degrees: float, preset: str = "No preset") -> None:
    shown = page.value("hc-system"), page.value("Temperature"), page.chosen("hc-preset")
    assert shown == (prompt, degrees, preset)


def test_settings_belong_to_their_chat_and_follow_a_model_until_they_are_set(service: FakeService) -> None:
    page, chats, user = Visitor(service), service.store.chats, service.user
    set_to(page, "Be terse.", 0.7)
    page.ask("First chat")
    assert service.asked[-1][1].temperature == 0.7
    first = chats.find(user)[0].id
    assert (settings := chats.settings(user, first))
    assert settings.system_prompt == "Be terse."
    page.press("hc_new")
    shows(page, "", 0)
    page.ask("Second chat")
    assert service.asked[-1][1].temperature == 0
    assert chats.settings(user, chats.find(user)[0].id) is None
    page.press("hc_open", id=first)
    shows(page, "Be terse.", 0.7)
    page.press("hc_new")
    for model, degrees in (("Qwen3 0.6B", 0.7), ("SmolLM2 135M", 0.3)):
        page.give("hc-model", model, "select")
        shows(page, "", degrees)
        page.give("Temperature", 0.3)


def test_a_preset_is_saved_chosen_changed_renamed_and_deleted(service: FakeService) -> None:
    page, presets, user = Visitor(service), service.store.presets, service.user
    set_to(page, "Be terse.", 0.7)
    page.press("hc_preset_new", text="Terse")
    shows(page, "Be terse.", 0.7, "Terse")
    page.press("hc_new")
    shows(page, "", 0)
    page.give("hc-preset", presets.all(user)[0].id, "input")
    shows(page, "Be terse.", 0.7, "Terse")
    page.ask("With a preset")
    settings = service.store.chats.settings(user, service.store.chats.find(user)[0].id)
    assert settings
    assert settings.preset_id == presets.all(user)[0].id
    set_to(page, "Be kind.", 0.7)
    assert "disabled" not in page.html("hc-preset-tools")
    page.press("hc_preset_save")
    assert "disabled" in page.html("hc-preset-tools")
    assert presets.all(user)[0].settings.system_prompt == "Be kind."
    page.press("hc_preset_rename", text="Kind")
    page.press("hc_preset_new", text="Kind")
    assert "There is a preset called “Kind” already." in page.says("hc-live")
    page.press("hc_preset_new", text="Other")
    shows(page, "Be kind.", 0.7, "Other")
    page.press("hc_preset_delete")
    shows(page, "Be kind.", 0.7)
    assert [preset.name for preset in presets.all(user)] == ["Kind"]


def test_what_one_page_does_the_other_one_draws(service: FakeService) -> None:
    chat = stored_chat(service.store, "Story", 1)
    first = Visitor(service, c=str(chat))
    second = Visitor(service, c=str(chat))
    for act, said in (("", "No preset"), ("hc_preset_new", "Pirate"), ("hc_preset_rename", "Corsair")):
        if act:
            second.press(act, text=said)
        else:
            set_to(second, "Speak like a pirate.", 0.5)
        first.look()
        shows(first, "Speak like a pirate.", 0.5, said)
    set_to(first, "Whisper.", 0.5)
    second.look()
    shows(second, "Whisper.", 0.5, "Corsair")
    assert "disabled" not in second.html("hc-preset-tools")
    second.press("hc_rename", id=chat, text="Tale")
    question = service.store.messages.path(service.user, chat)[0].id
    second.press("hc_again", id=question)
    first.look()
    assert first.says("hc-title") == "Tale"
    assert "Tale" in first.says("hc-list")
    assert "2/2" in first.says("hc-thread")
    second.press("hc_delete", id=chat)
    first.look()
    assert "This chat was deleted in another tab." in first.says("hc-live")
    assert not first.hidden("hc-empty")
    second.press("hc_restore", id=chat)
    first.look()
    assert "Tale" in first.says("hc-list")


@pytest.mark.browser
def test_what_is_changed_as_the_page_is_loaded_again_is_changed_there(
    chat: Chat, service: FakeService
) -> None:
    """Before the server has it, the tab alone does; and what it has noted stays until it is drawn again."""
    page = chat.page
    tick, prompt = page.get_by_label("The model may call tools"), page.locator("#hc-system textarea")
    chat.press("Chat settings")
    prompt.fill("Be terse.")
    tick.check()
    for _ in range(3):
        page.reload()
        expect(page.locator("#hc-list nav")).to_have_count(1)
    expect(tick).to_be_checked()
    expect(prompt).to_have_value("Be terse.")
    chat.ask("First chat")
    stored = service.store.chats.find(service.user)[0].id

    def tools() -> object:
        settings = service.store.chats.settings(service.user, stored)
        return settings and settings.sampling.get("tools")

    chat.until(lambda: tools() is True)
    chat.press("Chat settings")
    tick.uncheck()
    page.reload()
    chat.until(lambda: not tools())
    expect(tick).not_to_be_checked()
    expect(prompt).to_have_value("Be terse.")
