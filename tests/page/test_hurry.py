"""Send and a step to another chat or view within a moment: what was pressed last is shown, and nothing is lost."""

import random
import re
import threading
import time
from contextlib import suppress
from typing import Any

import pytest
from playwright.sync_api import Error, Route, expect

from hierchat.page.page_sessions import Session
from hierchat.runtime.prompt import MessageTooLong
from hierchat.store.records import Project
from tests.page.stored import stored_chat
from tests.testing import browser as driving
from tests.testing.browser import Chat
from tests.testing.fake_service import FakeService

STEPS = {
    "New chat": ("#hc-new", ""),
    "B": ("#hc-list [data-act=hc_open]", "B"),
    "New chat in Garden": ("[data-act=hc_project_new]", ""),
    "Settings": ("#hc-links button", "Settings"),
    "Models": ("#hc-links button", "Models"),
}
"""By the title there, ways to elsewhere: a selector, and the words of the button if there are several."""
PRESS = """([selector, words]) =>
    [...document.querySelectorAll(selector)].find((one) => !words || one.textContent.trim() === words).click()"""
"""Finds a button and clicks it at once: a new chat moves the rows of the list, and a mouse would hit another one."""


def prepared(chat: Chat, service: FakeService) -> int:
    """Two chats, and a project whose chats are listed; the id of the first chat, which is open."""
    garden = service.projects.save(service.user, Project(0, "Garden"))
    first = stored_chat(service.store, "A", 1)
    stored_chat(service.store, "B", 1)
    chat.open(f"?c={first}")
    expect(chat.questions).to_have_count(1)
    chat.page.locator(f".hc-folder[data-id='{garden}']").click()
    expect(chat.page.locator(".hc-new-inside")).to_be_visible()
    return first


def slow(chat: Chat, service: FakeService, monkeypatch: pytest.MonkeyPatch, numbers: random.Random) -> None:
    """Have requests arrive late and out of order, and messages be measured for a while before they are asked."""
    measure = service.require_room

    def measured(*args: object) -> None:
        time.sleep(numbers.uniform(0, 0.4))
        measure(*args)  # type: ignore[arg-type]

    def late(route: Route) -> None:
        time.sleep(numbers.uniform(0, 0.1))
        route.continue_()

    monkeypatch.setattr(service, "require_room", measured)
    chat.page.route("**/run/*", late)


@pytest.mark.browser
def test_what_was_pressed_last_is_shown(
    chat: Chat, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = random.Random(8)
    first = prepared(chat, service)
    slow(chat, service, monkeypatch, numbers)
    questions = chat.page.locator(".hc-user:visible")
    for number, (title, way) in enumerate([*STEPS.items()] * 3):
        if begins_new := number % 2 == 1:
            chat.new()
        else:
            chat.go_to("A")
            expect(questions.first).to_have_text("A, question 1")
        text = f"Question {number}"
        chat.send(text)
        chat.page.wait_for_timeout(numbers.choice((0, 20, 60, 120, 200)))
        chat.page.evaluate(PRESS, way)
        expect(chat.page.locator("body[data-hc-to]")).to_have_count(0)
        chat.until(lambda: len(service.asked) > number and not service.in_progress.all_of(service.user))  # noqa: B023
        chat.page.wait_for_timeout(600)  # all that comes late has come
        expect(chat.page.locator("#hc-title")).to_have_text(title)
        expect(questions).to_have_text(["B, question 1"] if title == "B" else [])
        expect(chat.box).to_have_value("")
        assert [text for text, _ in service.asked] == [f"Question {n}" for n in range(number + 1)]
        if not begins_new:
            assert service.store.messages.path(service.user, first)[-2].text == text


@pytest.mark.browser
def test_what_is_typed_after_send_stays_with_the_next_place(
    chat: Chat, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that is refused meanwhile stays in the box of its chat."""
    first = prepared(chat, service)
    slow(chat, service, monkeypatch, random.Random(9))
    chat.go_to("B")
    chat.box.fill("For B")
    chat.go_to("A")
    chat.send("Sent to A")
    chat.box.press_sequentially("and more")  # before the server has taken that, or after
    expect(chat.box).to_have_value("and more")
    chat.box.press("Enter")
    chat.page.locator("#hc-new").click()
    chat.box.press_sequentially("For a new one")
    expect(chat.page.locator("#hc-title")).to_have_text("New chat")
    expect(chat.box).to_have_value("For a new one")
    chat.go_to("B")
    expect(chat.box).to_have_value("For B")
    chat.until(lambda: not service.in_progress.all_of(service.user))
    path = service.store.messages.path(service.user, first)
    assert [message.text for message in path if message.role == "user"][1:] == ["Sent to A", "and more"]

    def refused(*args: object) -> None:
        raise MessageTooLong("Too long for a test.")

    monkeypatch.setattr(service, "require_room", refused)
    chat.send("Refused")
    chat.page.locator("#hc-new").click()
    expect(chat.page.locator("#hc-title")).to_have_text("New chat")
    expect(chat.box).to_have_value("For a new one")
    chat.go_to("B")
    expect(chat.box).to_have_value("Refused")
    assert [text for text, _ in service.asked] == ["Sent to A", "and more"]


@pytest.mark.browser
def test_nothing_of_the_old_chat_is_seen_on_the_way_to_a_new_one(
    chat: Chat, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However late the answer is."""
    leave, arrives = Session.leave, threading.Event()

    def late(session: Session, **changes: Any) -> None:
        arrives.wait(driving.PATIENCE_MS / 1e3)
        leave(session, **changes)

    chat.open()
    service.script.hold()
    chat.begin("Hello")
    memory, title = chat.page.locator("#hc-context"), chat.page.locator("#hc-title")
    expect(memory).to_contain_text("Memory of this chat")
    monkeypatch.setattr(Session, "leave", late)
    chat.page.locator("#hc-new").click()
    expect(memory).to_be_hidden()
    expect(title).to_have_attribute("data-going", "New chat")
    arrives.set()
    expect(chat.page.locator("body[data-hc-to]")).to_have_count(0)
    expect(memory).to_have_text("")
    expect(title).to_have_text("New chat")
    service.script.release()


@pytest.mark.browser
def test_a_message_that_waits_goes_out_as_it_was_whatever_is_typed_or_pressed_then(
    chat: Chat, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, measured = prepared(chat, service), threading.Event()

    def measure(*args: object) -> None:
        measured.wait(driving.PATIENCE_MS / 1e3)

    monkeypatch.setattr(service, "require_room", measure)
    chat.send("One")
    chat.box.press_sequentially(" Two")
    chat.box.press("Enter")  # waits for the first
    chat.box.press("Enter")
    chat.box.press_sequentially(" and a draft")
    chat.page.evaluate(PRESS, STEPS["Models"])
    chat.page.evaluate(PRESS, STEPS["B"])
    chat.page.go_back()
    expect(chat.page).to_have_url(re.compile(f"c={first}"))
    measured.set()
    expect(chat.page.locator("body[data-hc-to]")).to_have_count(0)
    expect(chat.page.locator("#hc-title")).to_have_text("A")
    expect(chat.questions).to_have_text(["A, question 1", "One", "Two"])
    expect(chat.box).to_have_value("and a draft")
    chat.until(lambda: [text for text, _ in service.asked] == ["One", "Two"])


EDIT = """(text) => {
    const way = document.querySelector('#hc-thread [data-act=hc_edit]');
    way.click();
    const editor = way.closest('.hc-turn').shadowRoot;
    editor.querySelector('textarea').value = text;
    editor.querySelector('form').requestSubmit();
}"""


@pytest.mark.browser
def test_text_that_is_refused_goes_back_to_the_box_of_its_own_chat(chat: Chat, service: FakeService) -> None:
    """Behind a message there that is still on its way."""
    prepared(chat, service)
    service.script.hold()
    chat.box.fill("Next")
    enter = "() => document.querySelector('#hc-send').click()"
    steps = f"([first, second, way]) => {{ ({EDIT})(first); ({EDIT})(second); ({enter})(); ({PRESS})(way); }}"
    chat.page.evaluate(steps, ["First version", "Second version", STEPS["B"]])
    expect(chat.page.locator("#hc-title")).to_have_text("B")
    expect(chat.page.locator("body[data-hc-to]")).to_have_count(0)
    expect(chat.box).to_have_value("")
    service.script.release()
    chat.go_to("A")
    expect(chat.box).to_have_value("Second version")
    expect(chat.questions).to_have_text(["First version", "Next"])


@pytest.mark.browser
def test_of_presses_on_several_chats_before_an_answer_none_is_dropped(
    chat: Chat, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    chats = [stored_chat(service.store, title, 1) for title in ("A", "B", "C")]
    chat.open()
    delete, goes_on = service.chats.delete, threading.Event()

    def late(*arguments: Any) -> Any:
        goes_on.wait(driving.PATIENCE_MS / 1e3)
        return delete(*arguments)

    monkeypatch.setattr(service.chats, "delete", late)
    for title in ("A", "B"):
        chat.page.get_by_role("button", name=title, exact=True).press("Delete")
    goes_on.set()
    expect(chat.titles).to_have_text(["C"])
    assert [one.id for one in service.store.chats.find(service.user)] == chats[2:]


DEAF = """
    window.EventSource = class extends window.EventSource {
        set onmessage(then) {
            super.onmessage = (event) => { if (!sessionStorage.getItem('deaf')) then(event); };
        }
    };"""


@pytest.mark.browser
@pytest.mark.parametrize("arrives", [True, False])
def test_a_message_is_sent_once_where_its_tab_is_loaded_again_before_the_answer(
    chat: Chat, service: FakeService, arrives: bool
) -> None:
    held: list[Route] = []

    def drop(route: Route) -> None:
        if '"Hello"' in (route.request.post_data or ""):
            held.append(route)
        else:
            route.continue_()

    chat.page.add_init_script(DEAF)
    first = prepared(chat, service)
    chat.page.evaluate("sessionStorage.setItem('deaf', 1)")
    if not arrives:
        chat.page.route("**/run/*", drop)
    chat.send("Hello")
    if arrives:
        chat.until(lambda: bool(service.asked))
    chat.page.evaluate("sessionStorage.removeItem('deaf')")
    chat.open(f"?c={first}")
    chat.page.unroute_all()
    for route in held:
        with suppress(Error):  # its page is gone
            route.abort()
    expect(chat.box).to_have_value("" if arrives else "Hello", timeout=driving.PATIENCE_MS)
    expect(chat.questions).to_have_count(2 if arrives else 1)
    chat.idle()
    chat.until(lambda: chat.page.evaluate("sessionStorage.getItem('hc-asked')") is None)
    if not arrives:
        chat.box.press("Enter")
        expect(chat.box).to_have_value("")
        expect(chat.questions).to_have_count(2)
        chat.idle()
    assert [text for text, _ in service.asked] == ["Hello"]
