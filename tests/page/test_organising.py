"""Putting chats in order: menu, pins, archive, undo, hits, forks, in a real browser."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Route, expect

from hierchat.chat import conversations
from hierchat.store import NewMessage, NotFound
from tests.page.chats import stored_chat
from tests.testing import browser as driving
from tests.testing.browser import Chat
from tests.testing.fake_service import FakeService

pytestmark = pytest.mark.browser


def titles(chat: Chat):
    return chat.page.locator("#hc-list .hc-title")


def box(chat: Chat):
    return chat.page.get_by_role("textbox", name="Message", exact=True)


def test_pin_and_archive_from_the_menu_by_mouse(chat: Chat, service: FakeService) -> None:
    for title in ("A", "B", "C"):
        stored_chat(service.store, title, 1)
    chat.open()
    chat.menu("A", "Pin")
    expect(titles(chat)).to_have_text(["A", "C", "B"])
    expect(chat.page.locator("#hc-list h2")).to_have_text(["Pinned", "Today"])
    chat.menu("A", "Unpin")
    expect(titles(chat)).to_have_text(["C", "B", "A"])
    chat.menu("B", "Archive")
    expect(titles(chat)).to_have_text(["C", "A"])
    chat.page.get_by_role("button", name="Archived (1)").click()
    expect(titles(chat)).to_have_text(["B"])
    expect(chat.page.get_by_role("navigation", name="Archived conversations")).to_be_visible()
    titles(chat).first.click()
    expect(chat.page.locator("#hc-title")).to_have_text("B")
    chat.page.get_by_role("button", name="Back to all chats").click()
    expect(titles(chat)).to_have_text(["C", "A"])
    chat.page.get_by_role("textbox", name="Search chats").fill("question 1")
    expect(chat.page.locator("#hc-list h2")).to_have_text(["Today", "Archived"])
    chat.page.get_by_role("textbox", name="Search chats").fill("")
    chat.page.get_by_role("button", name="Archived (1)").click()
    chat.menu("B", "Bring back")
    expect(titles(chat)).to_have_text(["C", "B", "A"])  # the last one that was archived: the list is back
    expect(chat.page.locator("#hc-list .hc-archived")).to_have_count(0)


def test_deleting_can_be_taken_back(chat: Chat, service: FakeService) -> None:
    ids = {title: stored_chat(service.store, title, 1) for title in ("A", "B")}
    user = service.store.users.ensure("local")
    chat.open()
    titles(chat).last.click()
    expect(chat.page.locator(".hc-user")).to_have_text(["A, question 1"])
    chat.menu("A", "Delete")
    expect(titles(chat)).to_have_text(["B"])
    expect(chat.page.locator("#hc-empty")).to_be_visible()
    line = chat.page.locator("#hc-undo")
    expect(line.get_by_role("status")).to_contain_text("Deleted “A”.")
    with pytest.raises(NotFound):
        service.store.chats.get(user, ids["A"])
    line.get_by_role("button", name="Undo").click()
    expect(chat.page.locator(".hc-user")).to_have_text(["A, question 1"])
    expect(titles(chat)).to_have_text(["B", "A"])
    expect(line.get_by_role("button")).to_have_count(0)
    titles(chat).first.focus()
    chat.page.keyboard.press("Delete")
    expect(titles(chat)).to_have_text(["A"])
    chat.page.keyboard.press("Control+z")
    expect(titles(chat)).to_have_text(["B", "A"])
    service.store.chats.get(user, ids["B"])


def in_file(service: FakeService, ids: dict[str, int]) -> set[str]:
    """Which of these conversations have their bytes in the file, those that can be taken back among them."""
    with service.store.connection.read() as db:
        stored = {row["id"] for row in db.table("conversations").rows}
    return {title for title, id in ids.items() if id in stored}


def test_a_deletion_is_final_when_its_time_is_over_or_at_the_next_one(
    chat: Chat, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = {title: stored_chat(service.store, title, 1) for title in ("A", "B", "C")}
    chat.open()
    chat.menu("C", "Delete")
    expect(titles(chat)).to_have_text(["B", "A"])
    assert in_file(service, ids) == {"A", "B", "C"}
    monkeypatch.setattr(conversations, "UNDO_SECONDS", 1.0)
    chat.menu("B", "Delete")
    line = chat.page.locator("#hc-undo")
    expect(line).to_contain_text("Deleted “B”.")
    expect(line).to_be_hidden()
    for _ in range(100):
        if in_file(service, ids) == {"A"}:
            break
        chat.page.wait_for_timeout(100)
    assert in_file(service, ids) == {"A"}
    expect(titles(chat)).to_have_text(["A"])


def test_a_hit_is_marked_and_opens_where_it_stands(chat: Chat, service: FakeService) -> None:
    store, user = service.store, service.store.users.ensure("local")
    long = stored_chat(store, "Long", 12)
    asked = store.messages.path(user, long)[2]
    hidden = store.messages.add(user, long, NewMessage(asked.parent_id, "a <b>needle</b> in a haystack"))
    store.messages.select_branch(user, asked.id)
    chat.open()
    chat.page.get_by_role("textbox", name="Search chats").fill("needle")
    expect(chat.page.locator(".hc-snippet mark")).to_have_text(["needle"])
    expect(chat.page.locator(".hc-snippet")).to_have_text(["a <b>needle</b> in a haystack"])
    chat.page.locator(".hc-snippet").click()
    found = chat.page.locator(f"#hc-thread [data-message='{hidden}']")
    expect(found).to_be_in_viewport()
    assert found.evaluate("e => e.getAnimations().length") == 1
    assert chat.page.evaluate("CSS.highlights.get('hc-found').size") == 1
    chat.page.get_by_role("textbox", name="Search chats").fill("question 2")
    expect(chat.page.locator(".hc-snippet mark").first).to_have_text("question")
    second = store.messages.path(user, long, asked.id)[2].id
    chat.page.evaluate("document.querySelector('#hc-chat').scrollTop = 0")
    titles(chat).first.click()  # in the chat that is open, on the branch that is not
    expect(chat.page.locator(f"#hc-thread [data-message='{second}']")).to_be_in_viewport()
    chat.page.wait_for_timeout(500)
    expect(chat.page.locator(f"#hc-thread [data-message='{second}']")).to_be_in_viewport()
    chat.page.get_by_role("textbox", name="Search chats").fill("")
    expect(chat.page.locator(".hc-snippet")).to_have_count(0)


def test_a_reply_is_continued_in_a_new_chat(chat: Chat, service: FakeService) -> None:
    first = stored_chat(service.store, "Story", 3)
    chat.open(f"?c={first}")
    expect(chat.replies).to_have_count(3)
    chat.replies.nth(1).get_by_role("button", name="Fork: continue in a new chat").click()
    expect(chat.replies).to_have_count(2)
    expect(chat.page.locator("#hc-live")).to_contain_text("The other one stays as it was.")
    expect(titles(chat)).to_have_text(["Story (2)", "Story"])
    expect(chat.page).not_to_have_url(re.compile(rf"c={first}$"))
    service.script.seconds = 0
    chat.ask("And now?")
    expect(chat.page.locator(".hc-user").last).to_have_text("And now?")
    user = service.store.users.ensure("local")
    assert len(service.store.messages.path(user, first)) == 6
    chat.page.go_back()
    expect(chat.replies).to_have_count(3)


def test_unsent_text_stays_with_its_chat(chat: Chat, service: FakeService) -> None:
    for title in ("A", "B"):
        stored_chat(service.store, title, 1)
    chat.open()
    box(chat).fill("For a new one")
    titles(chat).first.click()
    expect(chat.page.locator("#hc-title")).to_have_text("B")
    expect(box(chat)).to_have_value("")
    box(chat).fill("For B")
    chat.page.reload()
    expect(box(chat)).to_have_value("For B", timeout=driving.PATIENCE_MS)
    titles(chat).last.click()
    expect(chat.page.locator("#hc-title")).to_have_text("A")
    expect(box(chat)).to_have_value("")
    chat.page.go_back()
    expect(box(chat)).to_have_value("For B")
    service.script.seconds = 0
    before = len(service.asked)
    box(chat).press("Enter")
    expect(chat.replies).to_have_count(2)
    assert [text for text, _ in service.asked[before:]] == ["For B"]
    chat.idle()
    chat.page.reload()
    expect(chat.replies).to_have_count(2, timeout=driving.PATIENCE_MS)
    expect(box(chat)).to_have_value("")
    chat.page.locator("#hc-new").click()
    expect(box(chat)).to_have_value("For a new one")
    expect(chat.page.locator("#hc-empty")).to_be_visible()
    chat.ask("For a new one, sent")
    chat.page.reload()
    expect(chat.replies).to_have_count(1, timeout=driving.PATIENCE_MS)
    expect(box(chat)).to_have_value("")


def test_what_is_typed_before_the_server_answers_belongs_to_the_chat_that_was_chosen(
    chat: Chat, service: FakeService
) -> None:
    for title in ("A", "B"):
        stored_chat(service.store, title, 1)
    chat.open()
    box(chat).fill("For a new one")
    held: list[Route] = []  # what the page asks does not reach the server before all is typed
    typed = False
    chat.page.route("**/queue/join*", lambda route: route.continue_() if typed else held.append(route))
    titles(chat).first.click()
    expect(box(chat)).to_have_value("")
    box(chat).fill("For B")
    typed = True
    for route in held:
        route.continue_()
    expect(chat.page.locator("#hc-title")).to_have_text("B")
    expect(box(chat)).to_have_value("For B")
    chat.page.locator("#hc-new").click()
    expect(box(chat)).to_have_value("For a new one")
