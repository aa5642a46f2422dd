"""Tags, titles of models, edited replies, and who wrote them, in a real browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Locator, expect

from hierchat.store import Chat as PortableChat
from hierchat.store import ChatMessage
from tests.page.chats import stored_chat
from tests.testing import browser as driving
from tests.testing.browser import Chat
from tests.testing.fake_service import REPLY, FakeService

pytestmark = pytest.mark.browser


def titles(chat: Chat) -> Locator:
    return chat.page.locator("#hc-list .hc-title")


def tags(chat: Chat) -> Locator:
    return chat.page.get_by_role("group", name="Tags").get_by_role("button")


def test_tags_are_given_in_a_dialog_and_filter_the_list(chat: Chat, service: FakeService) -> None:
    ids = {title: stored_chat(service.store, title, 1) for title in ("A", "B", "C")}
    user = service.store.users.ensure("local")
    service.store.chats.set_tags(user, ids["A"], ["work"])
    chat.open()
    expect(tags(chat)).to_have_text(["work"])
    chat.menu("B", "Tags")
    dialog = chat.page.get_by_role("dialog", name="Tags of “B”")
    field = dialog.get_by_role("textbox", name="New tags")
    expect(field).to_be_focused()
    dialog.get_by_role("checkbox", name="work").check()
    field.fill("two words, , work")
    dialog.get_by_role("button", name="Add").click()
    expect(dialog.get_by_role("checkbox", name="two words")).to_be_checked()
    field.fill("WORK")
    dialog.get_by_role("button", name="Add").click()
    expect(dialog.get_by_role("checkbox")).to_have_count(2)
    chat.shot("tags-dialog")
    dialog.get_by_role("button", name="Save").click()
    expect(tags(chat)).to_have_text(["two words", "work"])
    assert service.store.chats.get(user, ids["B"]).tags == ("two words", "work")
    expect(chat.page.locator("#hc-list li").filter(has_text="two words")).to_have_count(1)
    tags(chat).filter(has_text="work").click()
    expect(titles(chat)).to_have_text(["B", "A"])
    expect(chat.page.get_by_role("textbox", name="Search chats")).to_have_value("tag:work")
    expect(tags(chat).filter(has_text="work")).to_have_attribute("aria-pressed", "true")
    tags(chat).filter(has_text="two words").click()
    expect(titles(chat)).to_have_text(["B"])
    chat.shot("tags-wide")
    tags(chat).filter(has_text="two words").click()
    expect(titles(chat)).to_have_text(["B", "A"])
    chat.page.get_by_role("button", name="Show chats of all tags").click()
    expect(titles(chat)).to_have_text(["C", "B", "A"])
    expect(chat.page.get_by_role("textbox", name="Search chats")).to_have_value("")
    chat.menu("B", "Tags")
    dialog.get_by_role("checkbox", name="two words").uncheck()
    chat.page.keyboard.press("Escape")
    chat.menu("B", "Tags")
    expect(dialog.get_by_role("checkbox", name="two words")).to_be_checked()
    dialog.get_by_role("checkbox", name="two words").uncheck()
    dialog.get_by_role("button", name="Save").click()
    expect(tags(chat)).to_have_text(["work"])
    chat.menu("C", "Tags")
    field = chat.page.get_by_role("textbox", name="New tags")
    field.fill("animals, fun")
    field.press("Enter")  # saves
    expect(dialog).to_be_hidden()
    expect(tags(chat)).to_have_text(["animals", "fun", "work"])
    assert service.store.chats.get(user, ids["C"]).tags == ("animals", "fun")


@pytest.mark.parametrize("touch", [False, True])
def test_on_a_touch_screen_no_title_lies_below_its_button(
    chromium: Browser, server: tuple[FakeService, str], service: FakeService, touch: bool
) -> None:
    for name in ("A title that is longer than the list is wide", "Sort a list", "Sort a list"):
        stored_chat(service.store, name, 1)
    sizes = {"width": 390, "height": 844} if touch else {"width": 1280, "height": 800}
    context = chromium.new_context(viewport=sizes, has_touch=touch, is_mobile=touch)
    try:
        chat = Chat(context.new_page(), server[1], [])
        chat.open()
        if touch:
            chat.page.get_by_role("button", name="List of chats").tap()
        expect(titles(chat)).to_have_count(3)
        for row in chat.page.locator("#hc-list li").all():
            overlap, shown = row.evaluate(
                """(row) => {
                  const title = row.querySelector('.hc-title'), tools = row.querySelector('.hc-tools');
                  const end = title.getBoundingClientRect().right - parseFloat(getComputedStyle(title).paddingRight);
                  return [end - tools.getBoundingClientRect().left, getComputedStyle(tools).opacity];
                }"""
            )
            assert shown == ("1" if touch else "0")
            assert overlap <= 0 or not touch
        expect(chat.page.locator("#hc-list .hc-when")).to_have_count(2)
        chat.shot(f"titles-{'touch' if touch else 'mouse'}")
    finally:
        context.close()


def edit(chat: Chat, place: int = -1) -> Locator:
    turn = chat.page.locator("#hc-thread .hc-reply").nth(place)
    turn.get_by_role("button", name="Edit").click()
    field = turn.get_by_role("textbox", name="Edit the reply")
    expect(field).to_be_focused()
    return field


def test_an_edited_reply_is_a_version_of_the_users(chat: Chat, service: FakeService) -> None:
    chat_id = stored_chat(service.store, "Story", 2)
    user = service.store.users.ensure("local")
    chat.open(f"?c={chat_id}")
    field = edit(chat, 0)
    assert field.input_value() == REPLY
    chat.shot("editing-reply")
    field.press("Escape")
    expect(field).to_have_count(0)
    expect(chat.replies).to_have_count(2)
    edit(chat, 0).press("Control+Enter")  # as it was: no version
    expect(chat.replies.first).not_to_contain_text("1/2")
    edit(chat, 0).fill("My **own** words,\n\n    code = 1\n")
    chat.page.get_by_role("button", name="Save as your version of the reply").click()
    expect(chat.replies).to_have_count(1)
    expect(chat.words).to_contain_text("My own words,")
    expect(chat.replies).to_contain_text("edited by you")
    expect(chat.replies).to_contain_text("2/2")
    expect(chat.replies.get_by_role("button", name="Sources")).to_have_count(0)
    expect(chat.replies.locator("details")).to_have_count(0)
    edited = service.store.messages.path(user, chat_id)[-1]
    assert (edited.text, edited.edited) == ("My **own** words,\n\n    code = 1\n", True)
    chat.shot("edited-reply")
    service.script.seconds = 0
    chat.ask("Go on")
    assert [m.id for m in service.store.messages.path(user, chat_id)][1] == edited.id
    chat.replies.first.get_by_role("button", name="Previous version").click()
    expect(chat.replies).to_have_count(2)
    expect(chat.replies.first).not_to_contain_text("edited by you")


def test_a_reply_is_not_edited_while_another_is_written(chat: Chat, service: FakeService) -> None:
    chat_id = stored_chat(service.store, "Story", 1)
    chat.open(f"?c={chat_id}")
    field = edit(chat)
    field.fill("Mine")
    service.script.seconds = 2
    chat.send("Next")
    expect(chat.page.locator("#hc-stop")).to_be_visible()
    field = chat.page.get_by_role("textbox", name="Edit the reply")
    if field.count():
        field.press("Control+Enter")
        expect(chat.page.locator("form [role=status]")).to_contain_text("A reply is being written")
    chat.idle()
    assert not any(
        m.edited for m in service.store.messages.path(service.store.users.ensure("local"), chat_id)
    )


def test_the_line_names_the_model_where_it_changes(chat: Chat, service: FakeService) -> None:
    user = service.store.users.ensure("local")
    said = [("user", "?", None), ("assistant", "one", "gpt-4o"), ("user", "?", None), ("assistant", "two", "gpt-4o"),
            ("user", "?", None), ("assistant", "three", "<b>llama</b>")]  # fmt: skip
    messages = [
        ChatMessage(
            str(at),
            str(at - 1) if at else None,
            role,
            text,
            1e9 + at,
            "complete",
            {"model": m} if m else None,
        )  # type: ignore[arg-type]
        for at, (role, text, m) in enumerate(said)
    ]
    service.store.transfer.import_chat(user, PortableChat("chatgpt:1", "Imported", 1e9, 1e9, messages, "5"))
    chat.open(f"?c={service.store.chats.find(user)[0].id}")
    expect(chat.replies).to_have_count(3)
    writers = [chat.replies.nth(place).locator(".hc-writer") for place in range(3)]
    expect(writers[0]).to_have_text("gpt-4o")
    expect(writers[1]).to_have_count(0)
    expect(writers[2]).to_have_text("<b>llama</b>")
    chat.replies.nth(1).get_by_text("Details").click()
    expect(chat.replies.nth(1).locator(".hc-facts")).to_contain_text("Written by")
    expect(chat.replies.nth(1).locator(".hc-facts")).to_contain_text("gpt-4o")
    chat.shot("writers")


def test_a_title_of_the_model_comes_quietly(
    chromium: Browser, server: tuple[FakeService, str], service: FakeService
) -> None:
    with driving.visiting(chromium, server[1], alone=True) as chat:
        chat.page.clock.install()
        chat.open()
        service.script.seconds = 0
        service.script.reading_seconds = 0
        chat.send("What is a suffix array?")
        chat.page.clock.run_for(3000)
        expect(chat.replies).to_have_count(1)
        expect(titles(chat)).to_have_text(["What is a suffix array?"])
        user = service.store.users.ensure("local")
        (waiting,) = [one for one in service.store.chats.untitled("k", 0.0) if one.user_id == user]
        assert service.store.chats.title_by_model(waiting, "k", "Suffix arrays")
        service.titles.count += 1
        titles(chat).first.focus()
        chat.page.clock.run_for(10_000)
        expect(titles(chat)).to_have_text(["Suffix arrays"])
        expect(chat.page.locator("#hc-title")).to_have_text("Suffix arrays")
        expect(titles(chat).first).to_be_focused()


def test_titles_of_the_model_can_be_switched_off(chat: Chat, service: FakeService) -> None:
    user = service.store.users.ensure("local")
    box = chat.page.get_by_role("checkbox", name="The model names new chats")
    chat.view("Settings")
    expect(box).to_be_checked()
    box.uncheck()
    for _ in range(50):
        if not service.store.users.model_titles(user):
            break
        chat.page.wait_for_timeout(100)
    assert not service.store.users.model_titles(user)
    chat.page.reload()
    expect(box).not_to_be_checked()
    service.store.users.set_model_titles(user, True)


@pytest.mark.parametrize("dark", [False, True])
def test_narrow_with_many_tags(
    chromium: Browser, server: tuple[FakeService, str], service: FakeService, dark: bool
) -> None:
    user = service.store.users.ensure("local")
    chat_id = stored_chat(service.store, "A long title of a chat that does not fit into the list", 1)
    service.store.chats.set_tags(user, chat_id, ["x" * 40, *(f"tag number {n}" for n in range(20))])
    service.store.messages.edit_reply(user, service.store.messages.path(user, chat_id)[-1].id, "Mine")
    with driving.visiting(chromium, server[1], 390, 844, dark) as chat:
        chat.open(f"?c={chat_id}")
        expect(chat.replies).to_have_count(1)
        chat.page.wait_for_timeout(600)
        chat.shot(f"edited-narrow-{dark}")
        chat.page.get_by_role("button", name="List of chats").click()
        expect(tags(chat).first).to_be_visible()
        chat.shot(f"tags-narrow-{dark}")
        chat.menu("A long title of a chat that does not fit into the list", "Tags")
        dialog = chat.page.get_by_role("dialog")
        expect(dialog).to_be_visible()
        assert dialog.evaluate("e => e.scrollWidth - e.clientWidth") <= 0
        chat.shot(f"tags-dialog-narrow-{dark}")
