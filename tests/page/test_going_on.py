"""Replies that outlive their page, and several pages of one user, in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.testing import browser as driving
from tests.testing.browser import PATIENCE_MS, Chat
from tests.testing.fake_service import FakeService, Script, SlotStatus

pytestmark = pytest.mark.browser
ACCOUNT = ("me", "a long password")
WRITING = "#hc-list .hc-writing"
UNREAD = "#hc-list .hc-unread"


@pytest.fixture
def second(chromium: Browser, server: tuple[FakeService, str], chat: Chat) -> Iterator[Chat]:
    """Another tab of the same user."""
    with driving.visiting(chromium, server[1]) as visitor:
        yield visitor


def begin(chat: Chat, service: FakeService, text: str = "Long story") -> str:
    """A reply that grows for a minute, unless a test changes its mind; the path of its chat."""
    service.script.seconds = 60
    chat.send(text)
    expect(chat.words.last).to_contain_text("Here is")
    expect(chat.page).to_have_url(re.compile(r"\?c=\d+"))
    return "?" + chat.page.url.partition("?")[2]


def grows(chat: Chat) -> None:
    expect(chat.page.locator("#hc-live")).to_contain_text("tokens in")
    before = chat.page.locator("#hc-live").inner_text()
    expect(chat.page.locator("#hc-live")).not_to_have_text(before)
    expect(chat.page.locator("#hc-stop")).to_be_visible()


def open_chat(chat: Chat, title: str) -> None:
    chat.page.get_by_role("button", name=title, exact=True).click()
    expect(chat.page.locator("#hc-title")).to_have_text(title)


def states(service: FakeService) -> list[list[tuple[str, str]]]:
    user = service.store.users.ensure("local")
    chats = service.store.chats.find(user)
    return [[(m.text, m.state) for m in service.store.messages.path(user, chat.id)] for chat in chats]


def in_progress(service: FakeService) -> int:
    return len(service.in_progress.all_of(service.store.users.ensure("local")))


def test_a_reload_in_mid_reply(chat: Chat, service: FakeService) -> None:
    begin(chat, service)
    for _ in range(2):
        chat.page.reload()
        expect(chat.words.last).to_contain_text("Here is", timeout=PATIENCE_MS)
        expect(chat.page.locator(".hc-user")).to_have_text(["Long story"])
        grows(chat)
    chat.shot("going-on")
    service.script.seconds = 0
    chat.idle()
    expect(chat.replies).to_have_count(1)
    assert states(service) == [[("Long story", "complete"), (service.script.reply, "complete")]]
    chat.ask("And on")
    expect(chat.page.locator(".hc-user")).to_have_text(["Long story", "And on"])


def test_closing_the_page_and_coming_back(
    chromium: Browser, server: tuple[FakeService, str], service: FakeService, chat: Chat
) -> None:
    chat.page.goto("about:blank")
    with driving.visiting(chromium, server[1]) as visitor:
        visitor.open()
        begin(visitor, service)
    chat.open()
    expect(chat.page.locator(WRITING)).to_have_count(1)
    expect(chat.page.locator("#hc-live")).to_contain_text("Still writing in “Long story”")
    chat.shot("writing-mark")
    service.script.seconds = 0
    expect(chat.page.locator(UNREAD)).to_have_count(1, timeout=PATIENCE_MS)
    expect(chat.page.locator(WRITING)).to_have_count(0)
    expect(chat.page.locator("#hc-live")).not_to_contain_text("Still writing")
    title = chat.page.get_by_role("button", name="Long story", exact=True)
    expect(title).to_have_attribute("aria-description", "A new reply")
    chat.shot("unread-mark")
    open_chat(chat, "Long story")
    expect(chat.page.locator(UNREAD)).to_have_count(0)
    expect(chat.replies).to_have_count(1)
    chat.open()
    expect(chat.page.locator(UNREAD)).to_have_count(0)
    assert states(service)[0][1][1] == "complete"


def test_a_second_tab_sees_the_reply_and_stops_it(chat: Chat, second: Chat, service: FakeService) -> None:
    service.script.seconds = 0
    chat.ask("First")
    second.open("?" + chat.page.url.partition("?")[2])
    expect(second.replies).to_have_count(1)
    begin(chat, service, "Second")
    expect(second.page.locator(".hc-user")).to_have_text(["First", "Second"], timeout=PATIENCE_MS)
    grows(second)
    grows(chat)
    second.shot("second-tab")
    second.page.locator("#hc-stop").click()
    for tab in (second, chat):
        tab.idle()
        expect(tab.replies).to_have_count(2)
        expect(tab.replies.last).to_contain_text("stopped")
    begin(chat, service, "Third")
    second.send("Fourth")
    for tab in (second, chat):
        expect(tab.page.locator(".hc-next")).to_contain_text("Fourth", timeout=PATIENCE_MS)
        expect(tab.page.locator("#hc-box textarea")).to_have_value("")
    service.script = Script(seconds=0)  # of the reply that follows
    chat.page.locator("#hc-stop").click()
    for tab in (second, chat):
        expect(tab.replies).to_have_count(4, timeout=PATIENCE_MS)
        expect(tab.page.locator(".hc-next")).to_have_count(0)
        tab.idle()
    expect(chat.page.locator(".hc-user")).to_have_text(["First", "Second", "Third", "Fourth"])


def test_a_question_stopped_in_the_queue_goes_back_to_the_tab_that_sent_it(
    chat: Chat, second: Chat, service: FakeService
) -> None:
    service.script.seconds = 0
    chat.ask("First")
    second.open("?" + chat.page.url.partition("?")[2])
    service.slot.status = SlotStatus("SmolLM2 135M", "loading")
    chat.send("Second")
    expect(second.page.locator(".hc-user")).to_have_text(["First", "Second"], timeout=PATIENCE_MS)
    second.page.locator("#hc-stop").click()
    for tab in (chat, second):
        tab.idle()
        expect(tab.page.locator(".hc-user")).to_have_text(["First"])
    expect(chat.page.locator("#hc-box textarea")).to_have_value("Second")
    expect(second.page.locator("#hc-box textarea")).to_have_value("")


def test_what_another_tab_does_is_drawn(chat: Chat, second: Chat, service: FakeService) -> None:
    service.script.seconds = 0
    chat.ask("Story")
    second.open("?" + chat.page.url.partition("?")[2])
    expect(second.replies).to_have_count(1)
    second.menu("Story", "Rename")
    second.page.locator(".hc-dialog input").fill("Tale")
    second.page.locator(".hc-dialog input").press("Enter")
    expect(chat.page.locator("#hc-title")).to_have_text("Tale")
    expect(chat.page.locator("#hc-list .hc-title")).to_have_text(["Tale"])
    second.replies.last.get_by_role("button", name="Again", exact=True).click()
    expect(chat.replies.last).to_contain_text("2/2")
    second.idle()
    second.replies.last.get_by_role("button", name="Previous version").click()
    expect(chat.replies.last).to_contain_text("1/2")
    second.menu("Tale", "Delete")
    expect(chat.page.locator("#hc-live")).to_contain_text("This chat was deleted in another tab.")
    expect(chat.page.locator("#hc-empty")).to_be_visible()
    second.page.locator("#hc-undo button").click()
    expect(chat.page.locator("#hc-list .hc-title")).to_have_text(["Tale"])


def test_without_the_switch_a_closed_page_stops_its_reply_and_a_reload_does_not(
    chromium: Browser, server: tuple[FakeService, str], service: FakeService, chat: Chat
) -> None:
    chat.page.goto("about:blank")
    user = service.store.users.ensure("local")
    try:
        with driving.visiting(chromium, server[1]) as visitor:
            visitor.open("?view=settings")
            switch = visitor.page.get_by_label("Replies go on when the page is closed")
            expect(switch).to_be_checked()
            switch.uncheck()
            visitor.shot("keep-writing")
            visitor.until(lambda: not service.store.users.keeps_writing(user))
            visitor.page.reload()
            expect(switch).not_to_be_checked(timeout=PATIENCE_MS)
            visitor.page.locator("#hc-new").click()
            begin(visitor, service)
            visitor.page.reload()
            expect(visitor.words.last).to_contain_text("Here is", timeout=PATIENCE_MS)
            visitor.page.wait_for_timeout(6_000)
            grows(visitor)
        (reply,) = service.in_progress.all_of(user)
        assert reply.wait(20)
        assert states(service)[0][1][1] == "stopped"
    finally:
        service.store.users.set_keeps_writing(user, True)


def test_another_user_sees_nothing_of_it(chromium: Browser, fresh: FakeService) -> None:
    with (
        driving.serving(fresh, ACCOUNT) as theirs,
        driving.serving(fresh) as mine,
        driving.visiting(chromium, mine) as me,
        driving.visiting(chromium, theirs) as stranger,
    ):
        stranger.page.goto(theirs)
        stranger.page.get_by_label("Name").fill(ACCOUNT[0])
        stranger.page.get_by_label("Password").fill(ACCOUNT[1])
        stranger.page.get_by_label("Password").press("Enter")
        expect(stranger.page.locator("#hc-list nav")).to_be_visible(timeout=PATIENCE_MS)
        me.open()
        path = begin(me, fresh, "Secret")
        stranger.page.wait_for_timeout(2_500)
        expect(stranger.page.locator("#hc-list li")).to_have_count(0)
        expect(stranger.page.locator("#hc-live")).to_have_text("")
        stranger.open(path)
        expect(stranger.page.locator("#hc-live")).to_contain_text("There is no chat at this address.")
        stranger.page.wait_for_timeout(1_500)
        expect(stranger.page.locator("body")).not_to_contain_text("Secret")
        expect(stranger.page.locator("#hc-stop")).to_be_hidden()
        grows(me)
        fresh.in_progress.stop(fresh.store.users.ensure("local"))
        me.idle()
