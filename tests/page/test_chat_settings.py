"""The settings of a chat and its presets, in a real browser: kept with the chat, chosen, saved, renamed, deleted."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, Locator, expect

from hierchat.store import Chat as StoredChat
from hierchat.store import ChatMessage, ChatSettings
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


@pytest.fixture
def user(service: FakeService) -> int:
    return service.store.users.ensure("local")


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


def stored(service: FakeService, user: int) -> ChatSettings | None:
    return service.store.chats.settings(user, service.store.chats.find(user)[0].id)


def test_settings_belong_to_their_chat_and_survive_a_reload(
    chat: Chat, service: FakeService, user: int
) -> None:
    set_to(chat, "Be terse.", "0.7")
    chat.ask("First chat")
    assert service.asked[-1][1].temperature == 0.7
    settings = stored(service, user)
    assert settings
    assert settings.system_prompt == "Be terse."
    chat.page.locator("#hc-new").click()
    shows(chat, "", "0")
    chat.ask("Second chat")
    assert service.asked[-1][1].temperature == 0
    assert stored(service, user) is None
    chat.page.get_by_role("button", name="First chat", exact=True).click()
    shows(chat, "Be terse.", "0.7")
    system(chat).fill("Be very terse.")  # not sent: kept all the same
    chat.page.wait_for_timeout(500)
    chat.page.reload()
    opened(chat)
    shows(chat, "Be very terse.", "0.7")
    chat.page.get_by_role("button", name="Second chat", exact=True).click()
    shows(chat, "", "0")


def test_a_preset_is_saved_chosen_changed_renamed_and_deleted(
    chat: Chat, service: FakeService, user: int
) -> None:
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
    settings = stored(service, user)
    assert settings
    assert settings.preset_id == service.store.presets.all(user)[0].id
    system(chat).fill("Be kind.")
    expect(save).to_be_enabled()
    chat.shot("preset-changed")
    save.click()
    expect(save).to_be_disabled()
    assert service.store.presets.all(user)[0].settings.system_prompt == "Be kind."
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
    chat.shot("preset-delete")
    chat.page.get_by_role("button", name="Delete", exact=True).click()
    shows(chat, "Be kind.", "0.7")
    assert [preset.name for preset in service.store.presets.all(user)] == ["Kind"]
    choose(chat, "Kind")
    choose(chat, "No preset")
    shows(chat, "", "0")


def test_new_chats_begin_with_the_default_preset(chat: Chat, service: FakeService, user: int) -> None:
    set_to(chat, "Be terse.", "0.7")
    named(chat, "Save as a preset…", "Terse")
    button = chat.page.get_by_role("button", name="Use for new chats")
    button.click()
    expect(button).to_have_attribute("aria-pressed", "true")
    chat.page.locator("#hc-new").click()
    shows(chat, "Be terse.", "0.7", "Terse")
    chat.page.reload()
    opened(chat)
    shows(chat, "Be terse.", "0.7", "Terse")
    chat.ask("Hello")
    assert stored(service, user) is not None
    button.click()
    expect(button).to_have_attribute("aria-pressed", "false")
    chat.page.locator("#hc-new").click()
    shows(chat, "", "0")


def test_another_model_brings_its_sampling_only_where_nothing_was_set(
    chat: Chat, service: FakeService
) -> None:
    opened(chat)
    system(chat).fill("Be terse.")

    def model(name: str) -> None:
        chat.page.locator("#hc-model input").click()
        chat.page.get_by_role("option", name=name).click()

    model("Qwen3 0.6B")
    shows(chat, "Be terse.", "0.7")
    temperature(chat).fill("0.3")
    temperature(chat).blur()
    model("SmolLM2 135M")
    chat.page.wait_for_timeout(500)
    shows(chat, "Be terse.", "0.3")


def test_what_is_typed_stays_while_a_reply_begins_and_ends(
    chat: Chat, service: FakeService, user: int
) -> None:
    service.script.seconds = 1.5
    opened(chat)
    chat.send("Slow")
    expect(chat.words.last).to_contain_text("Here is")
    system(chat).press_sequentially("Typed while it writes. ", delay=60)
    chat.idle()
    system(chat).press_sequentially("And after.", delay=20)
    expect(system(chat)).to_have_value("Typed while it writes. And after.")
    chat.page.wait_for_timeout(500)
    settings = stored(service, user)
    assert settings
    assert settings.system_prompt == "Typed while it writes. And after."


def test_a_message_that_cannot_be_sent_leaves_the_settings(chat: Chat, service: FakeService) -> None:
    set_to(chat, "Be terse.", "0.7")
    service.script.raises = RuntimeError("no")
    chat.send("Hello")
    expect(chat.page.locator("#hc-box textarea")).to_have_value("Hello")
    shows(chat, "Be terse.", "0.7")


def test_an_imported_system_prompt_is_shown(chat: Chat, service: FakeService, user: int) -> None:
    messages = [
        ChatMessage("s", None, "system", "You are imported.", 1.0),
        ChatMessage("u", "s", "user", "Hi", 2.0),
    ]
    service.store.transfer.import_chat(user, StoredChat("elsewhere", "Imported", 1.0, 2.0, messages, "u"))
    chat.open()
    chat.page.get_by_role("button", name="Imported", exact=True).click()
    opened(chat)
    shows(chat, "You are imported.", "0")
    chat.ask("More")
    assert stored(service, user) is None


def test_an_empty_seed_is_a_new_one_each_time_and_can_be_used_again(chat: Chat, service: FakeService) -> None:
    set_to(chat, "", "0.7")
    chat.ask("Hello")
    first = service.asked[-1][1].seed
    chat.replies.last.get_by_text("Again", exact=True).click()
    expect(chat.replies.last).to_contain_text("2/2")
    chat.idle()
    second = service.asked[-1][1].seed
    assert first != second
    chat.replies.last.locator("summary").click()
    expect(chat.replies.last).to_contain_text(re.compile(rf"Seed\s*{second}"))
    expect(chat.replies.last).to_contain_text(re.compile(r"Stop reason\s*the model had finished"))
    chat.replies.last.get_by_text("Same seed").click()
    expect(chat.replies.last).to_contain_text("3/3")
    chat.idle()
    assert service.asked[-1][1].seed == second
    chat.shot("same-seed")
    chat.page.get_by_role("spinbutton", name="Seed").fill("42")
    chat.page.get_by_label("Stop strings").fill("\\n\\n\nEND\n")
    chat.ask("Hello again")
    assert service.asked[-1][1].seed == 42
    assert service.asked[-1][1].stop == ("\n\n", "END")


def test_a_greedy_reply_offers_no_seed(chat: Chat) -> None:
    chat.ask("Hello")
    expect(chat.replies.last.get_by_text("Same seed")).to_have_count(0)


@pytest.mark.parametrize(
    ("width", "height", "dark"), [(1280, 800, False), (390, 844, False), (360, 640, True), (1000, 700, True)]
)
def test_the_panel_opens_and_closes_by_keyboard(
    chromium: Browser,
    server: tuple[FakeService, str],
    service: FakeService,
    width: int,
    height: int,
    dark: bool,
) -> None:
    with driving.visiting(chromium, server[1], width, height, dark) as chat:
        chat.open()
        chat.page.wait_for_timeout(600)  # the sidebar folds on a narrow screen
        chat.ask("Hello")
        button = chat.page.get_by_role("button", name="Chat settings")
        expect(button).to_have_attribute("aria-expanded", "false")
        expect(button).to_be_in_viewport(ratio=1)
        before = chat.page.locator("#hc-main").bounding_box()
        button.focus()
        chat.page.keyboard.press("Enter")
        panel = chat.page.get_by_role("region", name="Chat settings")
        expect(panel).to_be_visible()
        expect(panel.get_by_role("button", name="Close the settings")).to_be_focused()
        chat.shot(f"panel-{width}{'-dark' if dark else ''}")
        box = panel.bounding_box()
        assert box
        assert box["width"] == (width if width <= 768 else 336)
        assert box["x"] + box["width"] == width
        assert panel.evaluate("e => e.scrollWidth <= e.clientWidth")
        if width >= 1100:
            main = chat.page.locator("#hc-main").bounding_box()
            assert main
            assert main["x"] + main["width"] <= box["x"]
        if width <= 768:  # nothing behind it takes the focus
            for _ in range(40):
                chat.page.keyboard.press("Tab")
                behind = "document.activeElement.closest('#hc-main, #hc-sidebar')"
                assert chat.page.evaluate(behind) is None
        panel.get_by_label("Stop strings").focus()
        expect(panel.get_by_label("Stop strings")).to_be_in_viewport()
        chat.page.keyboard.press("Escape")
        expect(panel).to_be_hidden()
        expect(button).to_be_focused()
        assert chat.page.locator("#hc-main").bounding_box() == before
        chat.send("And on")
        expect(chat.replies).to_have_count(2)
