"""The Settings view in a real browser: what is kept, own texts, writing while idle, forgetting."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from hierchat.store import GeneratedText, Store
from tests.page.stored import stored_chat
from tests.testing.browser import Chat
from tests.testing.fake_service import FakeService

pytestmark = pytest.mark.browser


def test_the_view_has_an_address_and_keeps_what_is_chosen(
    chat: Chat, service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIERCHAT_DATA", str(tmp_path))
    page, number = chat.page, stored_chat(service.store, "Story", 2)
    chat.open(f"?c={number}")
    expect(chat.replies).to_have_count(2)
    chat.view("Settings")
    theme = page.locator("#hc-theme")
    expect(page).to_have_url(re.compile(r"\?view=settings$"))
    expect(theme).to_be_visible()
    expect(page.locator("#hc-box")).to_be_hidden()
    expect(page.locator("#hc-links [aria-current]")).to_have_text("Settings")
    page.go_back()
    expect(chat.replies).to_have_count(2)
    expect(theme).to_be_hidden()
    page.go_forward()
    expect(theme).to_be_visible()

    # What may draft
    choice = page.locator("#hc-drafts-from")
    expect(choice.get_by_label("All of my chats")).to_be_checked()
    choice.get_by_label("Nothing").check()
    chat.until(lambda: service.store.users.drafts_from(service.user) == "none")
    page.reload()
    expect(choice.get_by_label("Nothing")).to_be_checked()
    chat.press("Reset settings")
    expect(choice.get_by_label("All of my chats")).to_be_checked()
    expect(page.locator("#hc-settings-told")).to_contain_text("All settings were reset")
    assert service.store.users.drafts_from(service.user) == "all"

    # Other programs
    service.store.keys.add("editor <b>", history=True)
    keys, programs = page.locator("#hc-program-keys"), page.locator("#hc-programs").get_by_role("radio")
    expect(programs.nth(0)).to_be_checked()
    expect(keys).not_to_contain_text("editor")
    programs.nth(1).check()
    expect(keys).to_contain_text("editor <b>")
    expect(keys).to_contain_text("/v1 at its end")
    assert service.store.keys.access() == "keys"
    page.reload()
    expect(programs.nth(1)).to_be_checked()
    programs.nth(0).check()
    expect(keys).not_to_contain_text("editor")
    assert service.store.keys.access() == "off"

    chat.press("Back up now")
    expect(page.locator("#hc-settings-told")).to_contain_text("and checked")
    (copy,) = (tmp_path / "backups").glob("*.db")
    with Store.open(copy) as store:
        assert [c.title for c in store.chats.find(store.users.ensure("local"))] == ["Story"]


def test_forgetting_everything_asks_twice_and_tells_what_went(chat: Chat, service: FakeService) -> None:
    stored_chat(service.store, "Secret plans", 2)
    stored_chat(service.store, "Other", 1)
    chat.open("?view=settings")
    page = chat.page
    forget = page.get_by_role("button", name="Forget everything…")
    for answer in (None, "no", "forget"):
        forget.click()
        expect(page.get_by_role("dialog")).to_contain_text("2 chats with 6 messages")
        if answer is None:
            chat.press("Cancel")
            continue
        chat.press("Go on")
        page.get_by_role("dialog").get_by_role("textbox").fill(answer)
        chat.press("Delete")
        if answer == "no":
            expect(page.get_by_role("dialog")).to_have_count(0)
            assert len(service.store.chats.find(service.user)) == 2
    expect(page.locator("#hc-live")).to_contain_text("Deleted for good: 2 chats with 6 messages")
    expect(page.locator("#hc-list")).to_contain_text("Your chats will appear here.")
    expect(forget).to_have_count(0)
    page.locator("#hc-new").click()
    chat.ask("A new beginning")


def test_texts_are_looked_at_before_they_are_added_and_asked_about_before_they_go(
    chat: Chat, service: FakeService
) -> None:
    page = chat.page
    state, said = page.locator("#hc-texts-state"), page.locator("#hc-texts-said")

    def text(name: str) -> Locator:
        return page.locator("#hc-texts li").filter(has=page.get_by_text(name, exact=True))

    chat.press("Notes, code and exported chats of yours")
    field = page.get_by_label("Path of a file or folder")
    field.fill("~/none")
    chat.press("Inspect")
    expect(said.get_by_role("alert")).to_contain_text("There is no file or folder")
    field.fill("/home/you/diary")
    field.press("Enter")
    expect(state).to_contain_text("Checking diary…")
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
    chat.press("Add diary")
    expect(state).to_contain_text("Reading diary: 2 MB of 5 MB")
    expect(state.locator("progress")).to_be_visible()
    service.texts.ended(1_190_000)
    expect(state).to_contain_text("diary: 1,190,000 tokens. They draft from the next reply on.")
    expect(text("diary")).to_contain_text("drafts for SmolLM2 135M")
    for answer in ("Keep", "Remove"):
        chat.press("Remove notes")
        question = page.get_by_role("group", name="Remove notes?")
        expect(question).to_contain_text("Your own files stay where they are. It frees 3 MB.")
        expect(question.get_by_role("button", name="Keep")).to_be_focused()
        question.get_by_role("button", name=answer).click()
        expect(question).to_have_count(0)
    expect(said).to_contain_text("notes drafts no more.")
    expect(text("notes")).to_have_count(0)
    acts = [("look", "~/none"), ("look", "/home/you/diary"), ("add", "diary"), ("remove", "notes")]
    assert service.texts.asked == acts
    chat.drop(".hc-texts-drop", ("letter.txt", b"Dear reader"), ("letter.txt", b"Another"))
    expect(state).to_contain_text("letter: 2 files, 1 KB, roughly 300 tokens.")
    assert service.texts.dropped == {"letter.txt": b"Dear reader", "letter (2).txt": b"Another"}
    chat.press("Cancel")
    expect(state).to_have_text("")
    with page.expect_file_chooser() as chooser:
        page.locator("#hc-texts-form").get_by_role("button", name="Choose texts…").click()
    chooser.value.set_files([{"name": "a.md", "mimeType": "text/plain", "buffer": b"# A"}])
    expect(state).to_contain_text("a: 1 file")
    assert service.texts.dropped == {"a.md": b"# A"}


def test_writing_while_idle_is_allowed_told_of_typing_counted_and_deleted(
    chat: Chat, service: FakeService
) -> None:
    page, store, user = chat.page, service.store, service.user
    state = page.locator("#hc-learning-state")
    for number in ("0", "1"):
        text = GeneratedText(0, tuple(range(50)), True)
        store.generated.keep(user, "fake", number, text, None, deletions=store.users.deletions(user))
    chat.open("?view=settings")
    page.get_by_label("Let the model write in idle time").check()
    expect(state).to_contain_text("Waiting. It begins when nobody has asked for a reply for 10 minutes.")
    assert store.users.idle_settings(user).on
    touches = service.idle.touches
    chat.open()
    chat.box.press_sequentially("Wh")
    chat.until(lambda: service.idle.touches > touches)
    chat.open("?view=insights")
    expect(page.locator("#hc-insights-machine")).to_contain_text("100 tokens for itself")
    chat.view("Settings")
    expect(state).to_contain_text("It wrote 100 tokens")
    page.get_by_label("Let the model write in idle time").uncheck()
    for answer in ("Keep", "Delete"):
        chat.press("Delete generated texts…")
        question = page.get_by_role("group", name="Delete what was written?")
        question.get_by_role("button", name=answer).click()
        expect(question).to_have_count(0)
    expect(chat.live).to_contain_text("Deleted all generated texts.")
    expect(state).to_have_text("")
    assert store.generated.size(user).texts == 0
