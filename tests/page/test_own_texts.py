"""Texts of one's own in the settings, in a real browser: a look, then they are added; listed, removed."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Locator, expect

from tests.page.test_accounts import ANN, BEN, log_in
from tests.testing import browser as driving
from tests.testing.browser import Chat
from tests.testing.fake_service import FakeService

pytestmark = pytest.mark.browser


def text(chat: Chat, name: str) -> Locator:
    return chat.page.locator("#hc-texts li").filter(has=chat.page.get_by_text(name, exact=True))


def press(chat: Chat, label: str) -> None:
    chat.page.get_by_role("button", name=label, exact=True).click()


def test_a_path_is_looked_at_before_anything_is_added(chat: Chat, service: FakeService) -> None:
    press(chat, "Notes, code and exported chats of yours")
    field = chat.page.get_by_label("Path of a file or folder")
    field.fill("~/none")
    press(chat, "Look")
    expect(chat.page.locator("#hc-texts-said [role=alert]")).to_contain_text("There is no file or folder")
    field.fill("/home/you/diary")
    field.press("Enter")
    state = chat.page.locator("#hc-texts-state")
    expect(state).to_contain_text("Looking at diary…")
    service.texts.found()
    expect(state).to_contain_text(
        "14 files, 5 MB, roughly 1,200,000 tokens; how much text 2 files of them hold"
    )
    expect(state).to_contain_text(
        "Tried on your last 12 replies: 1.95 tokens at a time in place of 1.72, 13% more."
    )
    expect(state).to_contain_text("Left out: 12 .png files, 1 hidden folder, 1 folder of libraries.")
    state.get_by_text("What cannot be looked into").click()
    expect(state).to_contain_text("closed: Permission denied")
    press(chat, "Add diary")
    expect(state).to_contain_text("Reading diary: 2 MB of 5 MB")
    expect(state.locator("progress")).to_be_visible()
    service.texts.ended(1_190_000)
    expect(state).to_contain_text("diary: 1,190,000 tokens. They draft from the next reply on.")
    expect(text(chat, "diary")).to_contain_text("drafts for SmolLM2 135M")
    assert service.texts.asked == [("look", "~/none"), ("look", "/home/you/diary"), ("add", "diary")]


def test_removing_asks_first(chat: Chat, service: FakeService) -> None:
    chat.open("?view=settings")
    press(chat, "Remove notes")
    question = chat.page.get_by_role("group", name="Remove notes?")
    expect(question).to_contain_text("Your own files stay where they are. It frees 3 MB.")
    expect(question.get_by_role("button", name="Keep")).to_be_focused()
    chat.page.keyboard.press("Enter")
    expect(question).to_have_count(0)
    assert service.texts.asked == []
    press(chat, "Remove notes")
    question.get_by_role("button", name="Remove").click()
    expect(chat.page.locator("#hc-texts-said")).to_contain_text("notes drafts no more.")
    expect(text(chat, "notes")).to_have_count(0)


def test_files_are_dropped_and_looked_at(chat: Chat, service: FakeService) -> None:
    chat.open("?view=settings")
    expect(chat.page.get_by_label("Path of a file or folder")).to_be_visible()
    chat.page.evaluate(
        """() => {
            const dataTransfer = new DataTransfer();
            dataTransfer.items.add(new File(['Dear reader'], 'letter.txt'));
            dataTransfer.items.add(new File(['Another'], 'letter.txt'));
            const at = document.querySelector('.hc-texts-drop');
            for (const type of ['dragover', 'drop']) {
                at.dispatchEvent(new DragEvent(type, { dataTransfer, bubbles: true, cancelable: true }));
            }
        }"""
    )
    state = chat.page.locator("#hc-texts-state")
    expect(state).to_contain_text("letter: 2 files, 1 KB, roughly 300 tokens.")
    assert service.texts.dropped == {"letter.txt": b"Dear reader", "letter (2).txt": b"Another"}
    press(chat, "Cancel")
    expect(state).to_have_text("")
    with chat.page.expect_file_chooser() as chooser:
        chat.page.locator("#hc-texts-form").get_by_role("button", name="Choose texts…").click()
    chooser.value.set_files([{"name": "a.md", "mimeType": "text/plain", "buffer": b"# A"}])
    expect(state).to_contain_text("a: 1 file")
    assert service.texts.dropped == {"a.md": b"# A"}


def test_only_the_owner_sees_texts_and_names_paths(chromium: Browser, fresh: FakeService) -> None:
    """For others the form is not there, and what presses its buttons is refused."""
    log_ins = driving.log_ins_of(fresh.store, ANN, BEN)
    with driving.serving(fresh, log_ins=log_ins) as address:
        with driving.visiting(chromium, address) as owner:
            log_in(owner, *ANN)
            owner.view("Settings")
            expect(text(owner, "notes")).to_be_visible()
        with driving.visiting(chromium, address) as other:
            page = log_in(other, *BEN)
            other.view("Settings")
            expect(page.locator("#hc-texts li")).to_have_count(0)  # nor is it told what there is
            expect(page.locator("#hc-texts, #hc-texts-form").get_by_role("button")).to_have_count(0)
            page.evaluate(
                """() => {
                    const known = document.querySelector('[data-act]').dataset.key;
                    const button = Object.assign(document.createElement('button'), { textContent: 'Look' });
                    Object.assign(button.dataset, { act: 'hc_texts_look', key: known, text: '/etc' });
                    document.querySelector('#hc-texts').append(button);
                    button.click();
                }"""
            )
            expect(page.locator("#hc-texts-said [role=alert]")).to_contain_text("Only the owner")
            assert fresh.texts.asked == []
