"""The list of chats in a real browser: its order, keys, search, what is deleted, and the browser's history."""

import re

import pytest
from playwright.sync_api import Locator, Route, expect

from hierchat.chat import conversations
from hierchat.store import NotFound
from hierchat.store.records import NewMessage
from tests.page.stored import stored_chat
from tests.testing import browser as driving
from tests.testing.browser import Chat
from tests.testing.deleting import delete_for_good
from tests.testing.fake_service import FakeService
from tests.testing.visitor import Visitor

MANY = 120
"""More than the hundred that come at first."""


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
def test_all_chats_come_while_scrolling(visitor: Chat, service: FakeService) -> None:
    for number in range(MANY):
        service.store.chats.create(service.user, f"Chat {number:03}")
    visitor.open()
    entries = visitor.page.locator("#hc-list li")
    expect(entries).to_have_count(100)
    to_the_end_of_the_list(visitor)
    expect(entries).to_have_count(MANY)
    expect(visitor.page.locator("#hc-list .hc-more")).to_have_count(0)
    to_the_end_of_the_list(visitor)
    place = visitor.page.locator("#hc-list").evaluate("e => e.scrollTop")
    visitor.go_to("Chat 000")
    expect(entries).to_have_count(MANY)  # opening one does not throw the list back to its beginning
    assert visitor.page.locator("#hc-list").evaluate("e => e.scrollTop") == pytest.approx(place, abs=40)
    visitor.ask("It comes to the top")
    expect(entries.first).to_contain_text("Chat 000")
    expect(entries.first).to_be_in_viewport()


@pytest.mark.browser
def test_one_tab_stop_and_keys_inside(visitor: Chat, service: FakeService) -> None:
    stored(visitor, service, *(f"Chat {number}" for number in range(5)))
    expect(visitor.page.locator("#hc-list li")).to_have_count(5)
    assert visitor.page.locator("#hc-list button[tabindex='0']").count() == 1
    search(visitor).focus()
    keys = visitor.page.keyboard

    def focused(name: str) -> None:
        expect(visitor.page.get_by_role("button", name=name, exact=True)).to_be_focused()

    for key, name in (
        ("Tab", "New project"), ("Tab", "Chat 4"), ("End", "Chat 0"), ("ArrowDown", "Chat 0"), ("ArrowUp", "Chat 1"),
        ("ArrowRight", "Options for Chat 1"), ("ArrowDown", "Chat 0"), ("Home", "Chat 4"), ("ArrowDown", "Chat 3"),
    ):  # fmt: skip
        keys.press(key)
        focused(name)
    chosen = visitor.page.locator("#hc-list :focus")
    expect(chosen).to_have_css("outline-offset", "-2px")  # else the list's edges cut the ring off
    for direction, side in (("rtl", "right"), ("ltr", "left")):
        visitor.page.evaluate("to => { document.documentElement.dir = to }", direction)
        expect(chosen).to_have_css("text-align", side)
    keys.press("Enter")
    expect(visitor.page.locator("#hc-title")).to_contain_text("Chat 3")
    keys.press("Tab")
    expect(visitor.page.locator("#hc-list :focus")).to_have_count(0)
    keys.press("Shift+Tab")
    focused("Chat 3")
    keys.press("F2")
    expect(visitor.page.get_by_role("dialog", name="Rename this chat")).to_be_visible()
    keys.type("Norway <b>")
    keys.press("Control+Enter")
    focused("Norway <b>")
    expect(visitor.page.locator("#hc-title")).to_have_text("Norway <b>")
    keys.press("F2")
    for _ in range(6):
        keys.press("Tab")
        assert visitor.page.evaluate("document.querySelector('dialog').contains(document.activeElement)"
                                  " || document.activeElement === document.body")  # fmt: skip
    keys.press("Escape")
    focused("Norway <b>")
    keys.press("Delete")
    expect(visitor.page.locator("#hc-list li")).to_have_count(4)
    expect(visitor.page.locator("#hc-list :focus")).to_have_count(1)
    expect(visitor.page.locator("#hc-empty")).to_be_visible()


@pytest.mark.browser
def test_a_row_stays_itself_where_others_come_and_go(visitor: Chat, service: FakeService) -> None:
    """Else a press that begins in one chat's row may end in another's."""
    stored(visitor, service, "A", "B")
    visitor.page.evaluate(
        "for (const title of document.querySelectorAll('#hc-list .hc-title')) title.was = title.textContent"
    )
    was = "titles => titles.map(title => [title.textContent, title.was || ''])"
    stored_chat(service.store, "C", 1)
    service.changes.notify(service.user)
    expect(visitor.titles).to_have_text(["C", "B", "A"])
    assert visitor.titles.evaluate_all(was) == [["C", ""], ["B", "B"], ["A", "A"]]
    visitor.menu("B", "Delete")
    expect(visitor.titles).to_have_text(["C", "A"])
    assert visitor.titles.evaluate_all(was) == [["C", ""], ["A", "A"]]


@pytest.mark.browser
def test_back_and_forward_walk_through_what_was_open_last(visitor: Chat, service: FakeService) -> None:
    page, title = visitor.page, visitor.page.locator("#hc-title")
    ids = stored(visitor, service, "A", "B", "C")

    def shown(name: str) -> None:
        expect(title).to_contain_text(name)
        expect(page).to_have_url(re.compile(rf"\?c={ids[name]}$" if name in ids else r"/$"))

    for name in ("A", "B"):
        visitor.press(name)
        shown(name)
    visitor.new()
    shown("New chat")
    entries = page.evaluate("history.length")
    visitor.ask("D")
    assert page.evaluate("history.length") == entries  # a reply is no step
    expect(page).to_have_url(re.compile(r"\?c=\d+$"))
    for go, name in (
        (page.go_back, "B"), (page.go_back, "A"), (page.go_back, "New chat"), (page.go_forward, "A")
    ):  # fmt: skip
        go()
        shown(name)
    delete_for_good(service.store, service.user, ids["B"])
    page.go_forward()
    shown("New chat")
    expect(visitor.live).to_contain_text("has been deleted")
    page.go_forward()
    expect(title).to_contain_text("D")
    expect(visitor.live).not_to_contain_text("deleted")


def test_pin_archive_and_fork(service: FakeService) -> None:
    ids = {title: stored_chat(service.store, title, 1) for title in "ABC"}
    page = Visitor(service)

    def shows(*titles: str) -> None:
        assert re.findall(r'dir="auto" tabindex="-1"[^>]*>([^<]*)<', page.html("hc-list")) == [*titles]

    page.press("hc_pin", id=ids["A"], on=True)
    shows("A", "C", "B")
    page.press("hc_pin", id=ids["A"], on=False)
    shows("C", "B", "A")
    for on, step in (True, 2), (False, 1):  # the click before arrives late
        page.press("hc_pin", id=ids["A"], on=on, step=step)
        page.press("hc_rename", id=ids["A"], text=f"A{step}", step=step)
    shows("A2", "C", "B")
    page.press("hc_pin", id=ids["A"], on=False, step=3)
    page.press("hc_rename", id=ids["A"], text="A", step=3)
    page.press("hc_archive", id=ids["B"], on=True)
    shows("C", "A")
    page.press("hc_show_archived")
    shows("B")
    page.press("hc_open", id=ids["B"])
    assert page.says("hc-title") == "B"
    page.press("hc_archive", id=ids["B"], on=False)
    shows("C", "B", "A")  # the last one that was archived: the list is back
    page.ask("And then?")
    messages = service.store.messages
    page.press("hc_fork", id=messages.path(service.user, ids["B"])[1].id)
    assert "The original stays as it was." in page.says("hc-live")
    shows("B (2)", "B", "C", "A")
    page.ask("And now?")
    assert len(messages.path(service.user, ids["B"])) == 4


def in_file(service: FakeService, ids: dict[str, int]) -> set[str]:
    """Which of these conversations have their bytes in the file, those that can be taken back among them."""
    with service.store.connection.read() as db:
        stored = {row["id"] for row in db.table("conversations").rows}
    return {title for title, id in ids.items() if id in stored}


@pytest.mark.browser
def test_a_hit_is_marked_and_opens_where_it_stands(visitor: Chat, service: FakeService) -> None:
    store, user = service.store, service.user
    long = stored_chat(store, "Long", 12)
    asked = store.messages.path(user, long)[2]
    hidden = store.messages.add(user, long, NewMessage(asked.parent_id, "a <b>needle</b> in a haystack"))
    store.messages.select_branch(user, asked.id)
    visitor.open()
    search(visitor).fill("needle")
    expect(visitor.page.locator(".hc-snippet mark")).to_have_text(["needle"])
    expect(visitor.page.locator(".hc-snippet")).to_have_text(["a <b>needle</b> in a haystack"])
    visitor.page.locator(".hc-snippet").click()
    found = visitor.page.locator(f"#hc-thread [data-message='{hidden}']")
    expect(found).to_be_in_viewport()
    assert visitor.page.evaluate("CSS.highlights.get('hc-found').size") == 1
    search(visitor).fill("question 2")
    expect(visitor.page.locator(".hc-snippet mark").first).to_have_text("question")
    second_id = store.messages.path(user, long, asked.id)[2].id
    second = visitor.page.locator(f"#hc-thread [data-message='{second_id}']")
    visitor.page.evaluate("document.querySelector('#hc-chat').scrollTop = 0")
    visitor.titles.first.click()  # in the chat that is open, on the branch that is not
    expect(second).to_be_in_viewport()
    visitor.page.wait_for_timeout(500)
    expect(second).to_be_in_viewport()  # and nothing scrolls away from it


@pytest.mark.browser
def test_a_deletion_can_be_taken_back_until_its_time_is_over_or_the_next_one(
    visitor: Chat, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = {title: stored_chat(service.store, title, 1) for title in "ABC"}
    visitor.open()
    visitor.press("A")
    expect(visitor.questions).to_have_text(["A, question 1"])
    visitor.menu("A", "Delete")
    expect(visitor.titles).to_have_text(["C", "B"])
    line = visitor.page.locator("#hc-undo")
    expect(line.get_by_role("status")).to_contain_text("Deleted “A”.")
    with pytest.raises(NotFound):
        service.store.chats.get(service.user, ids["A"])
    line.get_by_role("button", name="Undo").click()
    expect(visitor.questions).to_have_text(["A, question 1"])
    expect(visitor.titles).to_have_text(["C", "B", "A"])
    expect(line.get_by_role("button")).to_have_count(0)
    visitor.titles.first.focus()
    visitor.page.keyboard.press("Delete")
    expect(visitor.titles).to_have_text(["B", "A"])
    visitor.page.keyboard.press("Control+z")
    expect(visitor.titles).to_have_text(["C", "B", "A"])
    visitor.menu("C", "Delete")
    expect(visitor.titles).to_have_text(["B", "A"])
    assert in_file(service, ids) == {"A", "B", "C"}
    monkeypatch.setattr(conversations, "UNDO_SECONDS", 1.0)
    visitor.menu("B", "Delete")
    expect(line).to_contain_text("Deleted “B”.")
    expect(line).to_be_hidden()
    visitor.until(lambda: in_file(service, ids) == {"A"})
    expect(visitor.titles).to_have_text(["A"])


@pytest.mark.browser
def test_what_is_typed_stays_with_its_chat(visitor: Chat, service: FakeService) -> None:
    stored(visitor, service, "A", "B")
    box = visitor.box
    box.fill("For a new one")
    held: list[Route] = []  # what the page asks does not reach the server before all is typed
    typed = False
    visitor.page.route("**/run/*", lambda route: route.continue_() if typed else held.append(route))
    visitor.press("B")
    expect(box).to_have_value("")
    box.fill("For B")
    typed = True
    for route in held:
        route.continue_()
    expect(visitor.page.locator("#hc-title")).to_have_text("B")
    expect(box).to_have_value("For B")
    visitor.page.reload()
    expect(box).to_have_value("For B", timeout=driving.PATIENCE_MS)
    visitor.go_to("A")
    expect(box).to_have_value("")
    visitor.page.go_back()
    expect(box).to_have_value("For B")
    box.press("Enter")
    expect(visitor.replies).to_have_count(2)
    assert [text for text, _ in service.asked] == ["For B"]
    visitor.idle()
    visitor.new()
    expect(box).to_have_value("For a new one")
    visitor.ask("For a new one, sent")
    visitor.page.reload()
    expect(visitor.replies).to_have_count(1, timeout=driving.PATIENCE_MS)
    expect(box).to_have_value("")
