"""What one tab does and another one sees, what a reload brings back, and what a finger can do: in a real browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

from tests.page.chats import stored_chat
from tests.page.test_chat_settings import named, opened, set_to, shows, stored, system
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


def test_presets_of_one_tab_can_be_chosen_in_the_others_for_a_new_chat(
    chat: Chat, chromium: Browser, service: FakeService
) -> None:
    opened(chat)
    system(chat).fill("Being typed")
    with driving.visiting(chromium, chat.address) as other:
        other.open()
        set_to(other, "Speak like a pirate.", "0.5")
        named(other, "Save as a preset…", "Pirate")
        expect(other.page.locator("#hc-preset input")).to_have_value("Pirate")
        chat.page.locator("#hc-preset input").click()
        expect(chat.page.get_by_role("option", name="Pirate")).to_be_visible()
        expect(system(chat)).to_have_value("Being typed")
        chat.page.get_by_role("option", name="Pirate").click()
    shows(chat, "Speak like a pirate.", "0.5", "Pirate")


def test_settings_of_a_new_chat_survive_a_reload_and_go_with_its_first_message(
    chat: Chat, service: FakeService
) -> None:
    user = service.store.users.ensure("local")
    set_to(chat, "Answer in rhymes.", "0.9")
    expect(chat.page.locator("#hc-preset-tools [data-unsent*=rhymes]")).to_have_count(1)
    expect(chat.page.locator("#hc-preset-tools [data-unsent*='0.9']")).to_have_count(1)
    chat.page.reload()
    opened(chat)
    shows(chat, "Answer in rhymes.", "0.9")
    chat.page.reload()
    opened(chat)
    shows(chat, "Answer in rhymes.", "0.9")
    chat.page.get_by_role("button", name="Close the settings").click()
    chat.ask("A poem, please")
    kept = stored(service, user)
    assert kept
    assert (kept.system_prompt, kept.sampling["temperature"]) == ("Answer in rhymes.", 0.9)
    chat.page.reload()
    expect(chat.replies).to_have_count(1)
    chat.page.locator("#hc-new").click()
    expect(chat.page.locator("#hc-empty")).to_be_visible()
    chat.page.reload()
    opened(chat)
    shows(chat, "", "0")


def test_the_pair_of_compare_survives_a_reload_and_new_models(chat: Chat, service: FakeService) -> None:
    page = chat.page
    page.get_by_label("Compare", exact=True).check()
    page.locator(".hc-setup > summary").click()
    first = page.get_by_role("group", name="First")
    first.locator("[name=model]").select_option("Qwen3 0.6B")
    first.get_by_label("Temperature").fill("0.4")
    first.get_by_label("Temperature").blur()
    line = page.locator("#hc-against")
    expect(line).to_contain_text("Qwen3 0.6B, Without drafts, temperature 0.4")
    page.reload()
    page.get_by_label("Compare", exact=True).check()
    expect(line).to_contain_text("Qwen3 0.6B, Without drafts, temperature 0.4")
    page.locator(".hc-setup > summary").click()
    expect(first.locator("[name=model]")).to_have_value("Qwen3 0.6B")
    expect(first.get_by_label("Temperature")).to_have_value("0.4")
    # Another model comes, before the one that was chosen.
    service.slot.names = ["SmolLM2 135M", "Llama 3.2 3B", "Qwen3 0.6B"]
    service.models.busy = True
    chat.view("Models")
    page.get_by_role("button", name="Stop Llama 3.2 3B").or_(
        page.get_by_role("button", name="Resume Llama 3.2 3B")
    ).click()
    page.locator("#hc-new").click()
    expect(first.get_by_role("option", name="Llama 3.2 3B")).to_have_count(1)
    expect(first.locator("[name=model]")).to_have_value("Qwen3 0.6B")
    expect(first.get_by_label("Temperature")).to_be_visible()
    # And the one that was chosen goes.
    service.slot.names = ["SmolLM2 135M", "Llama 3.2 3B"]
    expect(first.get_by_role("option", name="Qwen3 0.6B")).to_have_count(0)
    expect(first.locator("[name=model]")).to_have_value("")
    expect(line).not_to_contain_text("Qwen3")
    expect(line).to_contain_text("temperature 0.4")
    service.models.busy = False
    page.get_by_role("button", name="As at first").click()
    page.reload()
    page.get_by_label("Compare", exact=True).check()
    expect(line).to_contain_text("Without drafts against With drafts")


def test_on_a_touch_screen_a_button_sends_behind_the_reply_in_progress(
    chromium: Browser, server: tuple[FakeService, str], service: FakeService
) -> None:
    service.script.seconds = 60
    context = chromium.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    try:
        page = context.new_page()
        chat = Chat(page, server[1], [])
        chat.open()
        chat.send("First")
        expect(chat.words.last).to_contain_text("Here")
        queue = page.get_by_role("button", name="Send next")
        expect(queue).to_be_hidden()
        before = page.locator("#hc-composer").bounding_box()
        page.locator("#hc-box textarea").fill("Second")
        expect(queue).to_be_visible()
        chat.shot("touch-queue")
        after = page.locator("#hc-composer").bounding_box()
        assert before == after  # nothing jumps
        queue.tap()
        expect(page.locator("#hc-tray .hc-next")).to_contain_text("Second")
        expect(page.locator("#hc-box textarea")).to_have_value("")
        expect(queue).to_be_hidden()
        page.locator("#hc-stop").tap()
        service.script.seconds = 0  # only now: what is written at once cannot be stopped
        expect(page.locator("#hc-chat .hc-user")).to_have_text(["First", "Second"])
    finally:
        context.close()
