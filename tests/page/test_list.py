"""The list of chats in a real browser: its order, keys, search, tags, what is deleted, and the browser's history."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, Route, expect

from hierchat.chat import conversations
from hierchat.store import NewMessage, NotFound
from tests.page.stored import stored_chat
from tests.testing import browser as driving
from tests.testing.browser import Chat
from tests.testing.deleting import delete_for_good
from tests.testing.fake_service import FakeService
from tests.testing.visitor import Visitor

MANY = 230


def stored(chat: Chat, service: FakeService, *titles: str) -> dict[str, int]:
    """Chats of one turn, on the page; their ids."""
    ids = {title: stored_chat(service.store, title, 1) for title in titles}
    chat.open()
    return ids


def search(chat: Chat) -> Locator:
    return chat.page.get_by_role("textbox", name="Search chats")


def to_the_end_of_the_list(chat: Chat) -> None:
    chat.page.locator("#hc-list").evaluate("e => { e.scrollTop = e.scrollHeight }")


@pytest.mark.browser
def test_all_chats_come_while_scrolling(chat: Chat, service: FakeService) -> None:
    for number in range(MANY):
        service.store.chats.create(service.user, f"Chat {number:03}")
    chat.open()
    entries = chat.page.locator("#hc-list li")
    expect(entries).to_have_count(100)
    for listed in (200, MANY):
        to_the_end_of_the_list(chat)
        expect(entries).to_have_count(listed)
    expect(chat.page.locator("#hc-list .hc-more")).to_have_count(0)
    to_the_end_of_the_list(chat)
    place = chat.page.locator("#hc-list").evaluate("e => e.scrollTop")
    chat.go_to("Chat 000")
    expect(entries).to_have_count(MANY)  # opening one does not throw the list back to its beginning
    assert chat.page.locator("#hc-list").evaluate("e => e.scrollTop") == pytest.approx(place, abs=40)
    chat.ask("It comes to the top")
    expect(entries.first).to_contain_text("Chat 000")
    expect(entries.first).to_be_in_viewport()
    search(chat).fill("chat 001")
    expect(entries).to_have_count(1)


@pytest.mark.browser
def test_one_tab_stop_and_keys_inside(chat: Chat, service: FakeService) -> None:
    stored(chat, service, *(f"Chat {number}" for number in range(5)))
    expect(chat.page.locator("#hc-list li")).to_have_count(5)
    assert chat.page.locator("#hc-list button[tabindex='0']").count() == 1
    search(chat).focus()
    keys = chat.page.keyboard

    def focused(name: str) -> None:
        expect(chat.page.get_by_role("button", name=name, exact=True)).to_be_focused()

    for key, name in (
        ("Tab", "New project"), ("Tab", "Chat 4"), ("ArrowDown", "Chat 3"), ("End", "Chat 0"), ("ArrowDown", "Chat 0"),
        ("ArrowUp", "Chat 1"), ("ArrowRight", "Options for Chat 1"), ("ArrowDown", "Chat 0"), ("Home", "Chat 4"),
        ("ArrowDown", "Chat 3"),
    ):  # fmt: skip
        keys.press(key)
        focused(name)
    keys.press("Enter")
    expect(chat.page.locator("#hc-title")).to_contain_text("Chat 3")
    focused("Chat 3")
    keys.press("Tab")
    expect(chat.page.locator("#hc-list :focus")).to_have_count(0)
    keys.press("Shift+Tab")
    focused("Chat 3")
    keys.press("F2")
    expect(chat.page.get_by_role("dialog", name="Rename this chat")).to_be_visible()
    keys.type("Norway <b>")
    keys.press("Control+Enter")
    focused("Norway <b>")
    expect(chat.page.locator("#hc-title")).to_have_text("Norway <b>")
    keys.press("F2")
    for _ in range(6):
        keys.press("Tab")
        assert chat.page.evaluate("document.querySelector('dialog').contains(document.activeElement)"
                                  " || document.activeElement === document.body")  # fmt: skip
    keys.press("Escape")
    expect(chat.page.get_by_role("dialog")).to_have_count(0)
    focused("Norway <b>")
    keys.press("Delete")
    expect(chat.page.locator("#hc-list li")).to_have_count(4)
    expect(chat.page.locator("#hc-list :focus")).to_have_count(1)
    expect(chat.page.locator("#hc-empty")).to_be_visible()


IN_A_HURRY = """names => {
    const all = [...document.querySelectorAll(".hc-title, .hc-link")];
    for (const name of names) all.find((one) => one.textContent === name).click();
}"""


@pytest.mark.browser
def test_back_and_forward_walk_through_what_was_open_last(chat: Chat, service: FakeService) -> None:
    page, title = chat.page, chat.page.locator("#hc-title")
    ids = stored(chat, service, "A", "B", "C")

    def shown(name: str) -> None:
        expect(title).to_contain_text(name)
        address = (
            rf"\?c={ids[name]}$" if name in ids else r"\?view=settings$" if name == "Settings" else r"/$"
        )
        expect(page).to_have_url(re.compile(address))

    for name in ("A", "B"):
        chat.press(name)
        shown(name)
    chat.new()
    shown("New chat")
    entries = page.evaluate("history.length")
    chat.ask("D")
    chat.ask("and more")
    assert page.evaluate("history.length") == entries  # a reply is no step
    expect(page).to_have_url(re.compile(r"\?c=\d+$"))
    for go, name in (
        (page.go_back, "B"), (page.go_back, "A"), (page.go_back, "New chat"), (page.go_forward, "A"),
        (page.go_forward, "B"),
    ):  # fmt: skip
        go()
        shown(name)
    page.go_forward()
    expect(title).to_contain_text("D")
    expect(chat.replies).to_have_count(2)
    delete_for_good(service.store, service.user, ids["B"])
    page.go_back()
    shown("New chat")
    expect(chat.live).to_contain_text("has been deleted")
    expect(page.locator("#hc-empty")).to_be_visible()
    page.go_back()
    shown("A")
    expect(chat.live).not_to_contain_text("deleted")
    page.evaluate(IN_A_HURRY, ["C", "A", "C"])  # faster than the server answers: the last press counts
    shown("C")
    page.evaluate(IN_A_HURRY, ["Models", "Insights", "A", "Settings"])
    shown("Settings")
    page.go_back()
    shown("C")


def test_pin_archive_and_fork(fresh: FakeService) -> None:
    ids = {title: stored_chat(fresh.store, title, 1) for title in "ABC"}
    page = Visitor(fresh)

    def shows(*titles: str) -> None:
        assert re.findall(r'dir="auto" tabindex="-1"[^>]*>([^<]*)<', page.html("hc-list")) == [*titles]

    page.press("hc_pin", id=ids["A"], on=True)
    shows("A", "C", "B")
    assert re.findall("<h2>(.*?)</h2>", page.html("hc-list")) == ["Projects", "Pinned", "Today"]
    page.press("hc_pin", id=ids["A"], on=False)
    shows("C", "B", "A")
    page.press("hc_archive", id=ids["B"], on=True)
    shows("C", "A")
    page.press("hc_show_archived")
    shows("B")
    page.press("hc_open", id=ids["B"])
    assert page.says("hc-title") == "B"
    page.press("hc_show_archived")
    shows("C", "A")
    page.give("hc-search", "question 1", "change")
    assert re.findall("<h2>(.*?)</h2>", page.html("hc-list")) == ["Today", "Archived"]
    page.give("hc-search", "", "change")
    page.press("hc_show_archived")
    page.press("hc_archive", id=ids["B"], on=False)
    shows("C", "B", "A")  # the last one that was archived: the list is back
    page.ask("And then?")
    messages = fresh.store.messages
    page.press("hc_fork", id=messages.path(fresh.user, ids["B"])[1].id)
    assert "The original stays as it was." in page.says("hc-live")
    shows("B (2)", "B", "C", "A")
    page.ask("And now?")
    assert len(messages.path(fresh.user, ids["B"])) == 4


def in_file(service: FakeService, ids: dict[str, int]) -> set[str]:
    """Which of these conversations have their bytes in the file, those that can be taken back among them."""
    with service.store.connection.read() as db:
        stored = {row["id"] for row in db.table("conversations").rows}
    return {title for title, id in ids.items() if id in stored}


@pytest.mark.browser
def test_a_deletion_can_be_taken_back_until_its_time_is_over_or_the_next_one(
    chat: Chat, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = stored(chat, service, "A", "B", "C")
    chat.press("A")
    expect(chat.questions).to_have_text(["A, question 1"])
    chat.menu("A", "Delete")
    expect(chat.titles).to_have_text(["C", "B"])
    expect(chat.page.locator("#hc-empty")).to_be_visible()
    line = chat.page.locator("#hc-undo")
    expect(line.get_by_role("status")).to_contain_text("Deleted “A”.")
    with pytest.raises(NotFound):
        service.store.chats.get(service.user, ids["A"])
    line.get_by_role("button", name="Undo").click()
    expect(chat.questions).to_have_text(["A, question 1"])
    expect(chat.titles).to_have_text(["C", "B", "A"])
    expect(line.get_by_role("button")).to_have_count(0)
    chat.titles.first.focus()
    chat.page.keyboard.press("Delete")
    expect(chat.titles).to_have_text(["B", "A"])
    chat.page.keyboard.press("Control+z")
    expect(chat.titles).to_have_text(["C", "B", "A"])
    chat.menu("C", "Delete")
    expect(chat.titles).to_have_text(["B", "A"])
    assert in_file(service, ids) == {"A", "B", "C"}
    monkeypatch.setattr(conversations, "UNDO_SECONDS", 1.0)
    chat.menu("B", "Delete")
    expect(line).to_contain_text("Deleted “B”.")
    expect(line).to_be_hidden()
    chat.until(lambda: in_file(service, ids) == {"A"})
    expect(chat.titles).to_have_text(["A"])


@pytest.mark.browser
def test_a_hit_is_marked_and_opens_where_it_stands(chat: Chat, service: FakeService) -> None:
    store, user = service.store, service.user
    long = stored_chat(store, "Long", 12)
    asked = store.messages.path(user, long)[2]
    hidden = store.messages.add(user, long, NewMessage(asked.parent_id, "a <b>needle</b> in a haystack"))
    store.messages.select_branch(user, asked.id)
    chat.open()
    search(chat).fill("needle")
    expect(chat.page.locator(".hc-snippet mark")).to_have_text(["needle"])
    expect(chat.page.locator(".hc-snippet")).to_have_text(["a <b>needle</b> in a haystack"])
    chat.page.locator(".hc-snippet").click()
    found = chat.page.locator(f"#hc-thread [data-message='{hidden}']")
    expect(found).to_be_in_viewport()
    assert found.evaluate("e => e.getAnimations().length") == 1
    assert chat.page.evaluate("CSS.highlights.get('hc-found').size") == 1
    search(chat).fill("question 2")
    expect(chat.page.locator(".hc-snippet mark").first).to_have_text("question")
    second = store.messages.path(user, long, asked.id)[2].id
    chat.page.evaluate("document.querySelector('#hc-chat').scrollTop = 0")
    chat.titles.first.click()  # in the chat that is open, on the branch that is not
    expect(chat.page.locator(f"#hc-thread [data-message='{second}']")).to_be_in_viewport()
    chat.page.wait_for_timeout(500)
    expect(chat.page.locator(f"#hc-thread [data-message='{second}']")).to_be_in_viewport()
    search(chat).fill("")
    expect(chat.page.locator(".hc-snippet")).to_have_count(0)


@pytest.mark.browser
def test_tags_are_given_in_a_dialog_and_filter_the_list(chat: Chat, service: FakeService) -> None:
    ids = stored(chat, service, "A", "B", "C")
    service.store.chats.set_tags(service.user, ids["A"], ["work"])
    chat.open()
    tags = chat.page.get_by_role("group", name="Tags").get_by_role("button")
    expect(tags).to_have_text(["work"])
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
    dialog.get_by_role("button", name="Save").click()
    expect(tags).to_have_text(["two words", "work"])
    assert service.store.chats.get(service.user, ids["B"]).tags == ("two words", "work")
    tags.filter(has_text="work").click()
    expect(chat.titles).to_have_text(["B", "A"])
    expect(search(chat)).to_have_value("tag:work")
    expect(tags.filter(has_text="work")).to_have_attribute("aria-pressed", "true")
    tags.filter(has_text="two words").click()
    expect(chat.titles).to_have_text(["B"])
    tags.filter(has_text="two words").click()
    expect(chat.titles).to_have_text(["B", "A"])
    chat.press("Show chats of all tags")
    expect(chat.titles).to_have_text(["C", "B", "A"])
    for leave, left in (("Escape", ["two words", "work"]), ("Save", ["work"])):
        chat.menu("B", "Tags")
        dialog.get_by_role("checkbox", name="two words").uncheck()
        chat.page.keyboard.press("Escape") if leave == "Escape" else chat.press("Save")
        expect(tags).to_have_text(left)
    chat.menu("C", "Tags")
    field = chat.page.get_by_role("textbox", name="New tags")
    field.fill("animals, fun")
    field.press("Enter")  # saves
    expect(dialog).to_be_hidden()
    expect(tags).to_have_text(["animals", "fun", "work"])
    assert service.store.chats.get(service.user, ids["C"]).tags == ("animals", "fun")


@pytest.mark.browser
def test_unsent_text_stays_with_its_chat(chat: Chat, service: FakeService) -> None:
    stored(chat, service, "A", "B")
    box = chat.box
    box.fill("For a new one")
    held: list[Route] = []  # what the page asks does not reach the server before all is typed
    typed = False
    chat.page.route("**/queue/join*", lambda route: route.continue_() if typed else held.append(route))
    chat.press("B")
    expect(box).to_have_value("")
    box.fill("For B")
    typed = True
    for route in held:
        route.continue_()
    expect(chat.page.locator("#hc-title")).to_have_text("B")
    expect(box).to_have_value("For B")
    chat.page.reload()
    expect(box).to_have_value("For B", timeout=driving.PATIENCE_MS)
    chat.go_to("A")
    expect(box).to_have_value("")
    chat.page.go_back()
    expect(box).to_have_value("For B")
    before = len(service.asked)
    box.press("Enter")
    expect(chat.replies).to_have_count(2)
    assert [text for text, _ in service.asked[before:]] == ["For B"]
    chat.idle()
    chat.page.reload()
    expect(chat.replies).to_have_count(2, timeout=driving.PATIENCE_MS)
    expect(box).to_have_value("")
    chat.new()
    expect(box).to_have_value("For a new one")
    chat.ask("For a new one, sent")
    chat.page.reload()
    expect(chat.replies).to_have_count(1, timeout=driving.PATIENCE_MS)
    expect(box).to_have_value("")
