"""What goes wrong on the page ends in a sentence, nothing typed is lost, and the page stays usable."""

from __future__ import annotations

import inspect
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gradio as gr
import pytest
from playwright.sync_api import Browser, expect

from hierchat.chat.in_progress import ReplyInProgress
from hierchat.page.guard import PageEvents
from hierchat.page.page_app import build_app, serve
from hierchat.page.page_sessions import Session, Sessions
from hierchat.runtime.prompt import MessageTooLong
from hierchat.store.connection import Connection, translated
from tests.page.chats import stored_chat
from tests.testing import browser as driving
from tests.testing.browser import Chat
from tests.testing.deleting import delete_for_good
from tests.testing.fake_service import FakeService, SlotStatus

GONE = "This chat was deleted in another tab."


def sane(chat: Chat) -> None:
    """Nothing of Gradio's own: no notice, no layer over a part; and it can be clicked."""
    for theirs in ('[data-testid="toast-body"]', ".error", ".wrap.pending", "#hc-trouble"):
        expect(chat.page.locator(theirs)).to_have_count(0)
    chat.page.locator("#hc-new").click()
    expect(chat.page.locator("#hc-empty")).to_be_visible()
    chat.ask("And it goes on")
    expect(chat.page.locator("#hc-chat .hc-user")).to_have_text(["And it goes on"])


def said(chat: Chat, sentence: str) -> None:
    expect(chat.page.locator("#hc-live [role=alert], #hc-live [role=status]")).to_contain_text(sentence)


def delete_elsewhere(service: FakeService) -> None:
    user = service.store.users.ensure("local")
    for conversation in service.store.chats.find(user):
        delete_for_good(service.store, user, conversation.id)


def reply_button(name: str) -> Callable[[Chat], None]:
    return lambda chat: chat.replies.last.get_by_role("button", name=name, exact=True).click()


def rename(chat: Chat) -> None:
    chat.menu("Question", "Rename")
    chat.page.locator(".hc-dialog input").fill("Other")
    chat.page.locator(".hc-dialog input").press("Enter")


def delete(chat: Chat) -> None:
    chat.menu("Question", "Delete")


def edit(chat: Chat) -> None:
    chat.page.locator(".hc-user").first.hover()
    chat.page.locator(".hc-mine").first.get_by_text("Edit").click()
    field = chat.page.get_by_role("textbox", name="Edit your message")
    field.fill("Edited")
    field.press("Control+Enter")


def choose(chat: Chat) -> None:
    chat.page.locator("#hc-model input").click()
    chat.page.get_by_role("option", name="Qwen3 0.6B").click()


def compare(chat: Chat) -> None:
    chat.page.locator("#hc-compare input").check()
    expect(chat.page.locator("#hc-box textarea")).to_have_attribute("placeholder", "Message both…")
    chat.page.locator("#hc-compare input").uncheck()


CONTROLS: dict[str, tuple[Callable[[Chat], None], str]] = {
    "send": (lambda chat: chat.send("Typed"), f"{GONE} Your message is still in the box"),
    "again": (reply_button("Again"), GONE),
    "continue": (reply_button("Continue"), GONE),
    "sources": (reply_button("Sources"), GONE),
    "branch": (reply_button("Previous version"), GONE),
    "edit": (edit, f"{GONE} Your message is still in the box"),
    "rename": (rename, GONE),
    "delete": (delete, ""),
    "open": (lambda chat: chat.page.locator("#hc-list .hc-title").first.click(), GONE),
    "compare": (compare, GONE),
    "search": (lambda chat: chat.page.locator("#hc-search").locator("input, textarea").fill("x"), ""),
    "model": (choose, ""),
    "new": (lambda chat: chat.page.locator("#hc-new").click(), ""),
}


@pytest.mark.browser
@pytest.mark.parametrize("control", ["send", "again", "sources", "edit", "delete", "open"])
def test_every_control_of_a_chat_that_was_deleted_in_another_tab(
    chat: Chat, service: FakeService, control: str
) -> None:
    service.script.seconds, service.script.finish = 0, "length"
    chat.ask("Question")
    reply_button("Again")(chat)
    expect(chat.replies.last).to_contain_text("2/2")
    chat.idle()
    delete_elsewhere(service)
    act, sentence = CONTROLS[control]
    act(chat)
    if sentence:
        said(chat, sentence)
        expect(chat.page.locator("#hc-empty")).to_be_visible()
    if control != "search":
        expect(chat.page.locator("#hc-list li")).to_have_count(0 if control != "model" else 1)
    if "in the box" in sentence:
        text = "Typed" if control == "send" else "Edited"
        expect(chat.page.locator("#hc-box textarea")).to_have_value(text)
        chat.shot(f"deleted-{control}")
        chat.page.wait_for_timeout(1_000)  # sooner, the same text counts as pressed twice
        chat.page.locator("#hc-send").click()
        expect(chat.page.locator(".hc-user")).to_have_text([text])
        chat.idle()
    sane(chat)


@pytest.mark.browser
def test_a_chat_deleted_in_mid_reply_and_one_deleted_in_the_queue(chat: Chat, service: FakeService) -> None:
    service.script.seconds = 60
    chat.send("Long story")
    expect(chat.words.last).to_contain_text("Here is")
    delete_elsewhere(service)
    chat.idle()
    said(chat, GONE)
    service.slot.status = SlotStatus("SmolLM2 135M", "loading")
    chat.send("Early")
    said(chat, "Loading SmolLM2 135M")
    delete_elsewhere(service)
    service.script.seconds = 0
    service.slot.status = SlotStatus("SmolLM2 135M", "ready")
    said(chat, f"{GONE} Your message is still in the box")
    expect(chat.page.locator("#hc-box textarea")).to_have_value("Early")
    chat.page.locator("#hc-box textarea").fill("")
    sane(chat)


@pytest.mark.browser
def test_an_address_without_a_chat(chat: Chat, service: FakeService) -> None:
    service.script.seconds = 0
    for address in ("999999", "abc", "-1", "9" * 5000, "%00"):
        chat.open(f"?c={address}")
        said(chat, "There is no chat at this address.")
    sane(chat)


@pytest.fixture
def failing(service: FakeService) -> Iterator[Callable[[Exception], None]]:
    """Makes the store fail in everything that it writes, as SQLite would."""
    write = Connection.write

    def fail(error: Exception) -> None:
        def failing(self: Connection) -> Iterator[None]:
            with translated(self.path):
                raise error
            yield

        Connection.write = contextmanager(failing)  # type: ignore[method-assign,assignment]

    yield fail
    Connection.write = write  # type: ignore[method-assign]


def sqlite_error(code: int, text: str) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    return error


@pytest.mark.browser
@pytest.mark.parametrize(("error", "sentence"), [
    (sqlite_error(sqlite3.SQLITE_FULL, "database or disk is full"), "Free some disk space"),
    (ZeroDivisionError("a bug"), "did not expect"),
], ids=lambda value: getattr(value, "args", [value])[-1] if isinstance(value, Exception) else "")  # fmt: skip
def test_a_store_that_fails_at_send(
    chat: Chat, service: FakeService, failing: Callable[[Exception], None], error: Exception, sentence: str
) -> None:
    service.script.seconds = 0
    write = Connection.write
    failing(error)
    chat.send("Kept")
    said(chat, sentence)
    expect(chat.page.locator("#hc-box textarea")).to_have_value("Kept")
    expect(chat.page.locator("#hc-send")).to_be_visible()
    Connection.write = write  # type: ignore[method-assign]
    chat.page.locator("#hc-box textarea").fill("")
    sane(chat)


@pytest.mark.browser
def test_a_full_disk_in_mid_reply_is_told_and_the_reply_is_nobodys(
    chat: Chat, service: FakeService, failing: Callable[[Exception], None]
) -> None:
    service.script.seconds = 60
    write = Connection.write
    chat.send("Story")
    expect(chat.words.last).to_contain_text("Here is")
    failing(sqlite_error(sqlite3.SQLITE_FULL, "database or disk is full"))
    said(chat, "Free some disk space")
    chat.idle()
    expect(chat.replies.last).to_contain_text("interrupted")
    expect(chat.words.last).to_contain_text("Here is")
    chat.shot("full-disk")
    Connection.write = write  # type: ignore[method-assign]
    service.script.seconds = 0
    chat.page.reload()
    expect(chat.replies.last).to_contain_text("interrupted", timeout=driving.PATIENCE_MS)
    sane(chat)


@pytest.mark.browser
def test_a_server_that_goes_and_comes_again(chromium: Browser, fresh: FakeService) -> None:
    fresh.script.seconds = 0

    def launch(port: int | None = None) -> tuple[gr.Blocks, str]:
        app = build_app(fresh, "here")  # type: ignore[arg-type]
        address, _ = serve(app, port=port)
        return app, address

    app, address = launch()
    port = int(address.rstrip("/").rsplit(":", 1)[1])
    try:
        with driving.visiting(chromium, address) as chat:
            chat.open()
            chat.ask("Before")
            chat.page.locator("#hc-box textarea").fill("Half a thought")
            app.close(verbose=False)
            expect(chat.page.locator("#hc-trouble")).to_contain_text(
                "The connection to hierchat was lost", timeout=driving.PATIENCE_MS
            )
            expect(chat.page.locator('[data-testid="toast-body"]')).to_be_hidden()
            chat.shot("lost")
            app, _ = launch(port)
            expect(chat.page.locator("#hc-trouble")).to_have_count(0, timeout=driving.PATIENCE_MS)
            expect(chat.page.locator(".hc-user")).to_have_text(["Before"], timeout=driving.PATIENCE_MS)
            expect(chat.page.locator("#hc-box textarea")).to_have_value("Half a thought")
            chat.page.locator("#hc-send").click()
            expect(chat.page.locator(".hc-user")).to_have_text(["Before", "Half a thought"])
            chat.idle()
            sane(chat)
    finally:
        app.close(verbose=False)


@contextmanager
def slow_to_open(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """The server knows no page before the event is set, as while a model loads beside it."""
    opens = threading.Event()

    class Slow(Sessions):
        def open(self, key: str | None) -> Session:
            opens.wait(30)
            return super().open(key)

    monkeypatch.setattr("hierchat.page.guard.Sessions", Slow)
    try:
        yield opens
    finally:
        opens.set()


@pytest.mark.browser
def test_a_message_that_is_sent_before_the_server_knows_the_page(
    chromium: Browser, fresh: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh.script.seconds = 0
    opened = stored_chat(fresh.store, "Opened by its address", 1)
    with (
        slow_to_open(monkeypatch) as opens,
        driving.serving(fresh) as address,
        driving.visiting(chromium, address) as chat,
    ):
        loads: list[object] = []
        chat.page.on("load", lambda page: loads.append(page))
        chat.page.goto(f"{address}?c={opened}")
        chat.send("In a hurry")
        chat.page.wait_for_timeout(2_000)  # long enough to count its tokens, and to load the page anew
        expect(chat.page.locator("#hc-box textarea")).to_have_value("In a hurry")
        expect(chat.page.locator("#hc-empty")).to_be_hidden()  # there is a chat at this address
        chat.shot("not-known-yet")
        opens.set()
        expect(chat.page.locator(".hc-user").last).to_have_text("In a hurry")
        expect(chat.page.locator("#hc-box textarea")).to_have_value("")
        chat.idle()
        assert len(loads) == 1
        assert [text for text, _ in fresh.asked] == ["In a hurry"]
        assert fresh.store.messages.path(fresh.store.users.ensure("local"), opened)[-2].text == "In a hurry"


@pytest.mark.browser
def test_a_page_that_the_server_does_not_know_is_loaded_again(
    chromium: Browser, fresh: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a long sleep of the computer: by itself, and its message must not begin another chat."""
    made: list[Sessions] = []

    class Kept(Sessions):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    monkeypatch.setattr("hierchat.page.guard.Sessions", Kept)
    fresh.script.seconds = 0
    with driving.serving(fresh) as address, driving.visiting(chromium, address) as chat:
        chat.open()
        chat.ask("Before")
        chat.page.locator("#hc-box textarea").fill("And now?")
        for key in list(made[0]._sessions):
            made[0].close(key)
        said(chat, "This page lost its connection to hierchat. It is loaded again")
        expect(chat.page.locator("#hc-live [role=alert]")).to_have_count(0, timeout=driving.PATIENCE_MS)
        expect(chat.page.locator("#hc-box textarea")).to_have_value("And now?")
        chat.page.locator("#hc-send").click()
        expect(chat.page.locator(".hc-user")).to_have_text(["Before", "And now?"])


def handlers_of(app: gr.Blocks) -> list[Any]:
    """But for what runs in the browser alone."""
    return [function for function in app.fns.values() if function.fn is not None]


def test_every_handler_of_the_page_is_guarded(fresh: FakeService) -> None:
    app = build_app(fresh, "here")  # type: ignore[arg-type]
    assert len(app.fns) > 15
    for function in handlers_of(app):
        assert function.fn.__code__.co_filename == PageEvents.guarded.__code__.co_filename
        # Gradio's components answer a wrong value themselves, before any handler could.
        assert not (function.inputs and function.preprocess)


def test_whatever_a_handler_raises_becomes_a_sentence(fresh: FakeService) -> None:
    app = build_app(fresh, "here")  # type: ignore[arg-type]
    request = gr.Request(username=None, session_hash="x")
    fresh.store.close()
    for function in handlers_of(app):
        event = gr.EventData(None, {"id": 1, "text": "x"})
        result = function.fn(request, event, *["x"] * len(function.inputs))
        last = list(result)[-1] if inspect.isgenerator(result) else result
        if function.outputs:
            assert last
            assert set(last) <= set(function.outputs)


@pytest.mark.browser
def test_chats_that_were_forgotten_in_a_terminal(chat: Chat, service: FakeService) -> None:
    """The page's user is gone: nothing can be written for it, until the page is loaded again."""
    chat.ask("Question")
    assert service.store.users.forget(service.store.users.ensure("local"))
    chat.page.locator("#hc-new").click()
    expect(chat.page.locator("#hc-empty")).to_be_visible()
    chat.send("Another")
    said(chat, "All chats of this user were deleted. Reload the page.")
    chat.open()
    chat.ask("And it goes on")
    expect(chat.page.locator("#hc-chat .hc-user")).to_have_text(["And it goes on"])


def test_a_chat_that_is_opened_while_another_is_drawn_stays_on_the_screen(
    fresh: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes to the page last must show what the next message goes to."""
    app = build_app(fresh, "here")  # type: ignore[arg-type]
    handlers = {function.fn.__name__: function.fn for function in app.fns.values() if function.fn}
    user = fresh.store.users.ensure("local")
    first, second = (fresh.store.chats.create(user) for _ in range(2))
    for conversation, text in ((first, "First"), (second, "Second")):
        fresh.store.messages.add(user, conversation, None, "user", text)
    request = gr.Request(session_hash="x", query_params={})
    handlers["load"](request)
    handlers["open"](request, gr.EventData(None, {"id": first}))
    fresh.changes.notify(user, first)
    messages, opened = fresh.store.messages.path, []

    def slow(*arguments):
        found = messages(*arguments)
        if not opened:
            opened.append(handlers["open"](request, gr.EventData(None, {"id": second})))
        return found

    monkeypatch.setattr(fresh.store.messages, "path", slow)
    late = {component.elem_id: value for component, value in handlers["watch"](request).items()}
    assert opened
    assert "Second" in str(late["hc-title"])
    assert "Second" in str(late["hc-thread"])
    assert late["hc-bus"] == str(second)


@pytest.mark.browser
def test_a_reply_that_cannot_begin_says_why_however_soon_it_ends(
    chat: Chat, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have ended, and its conversation be gone, before the page has drawn it."""
    begin = service.in_progress.begin

    def begin_and_end(reply: ReplyInProgress, *rest: Any, **more: Any) -> bool:
        begun = begin(reply, *rest, **more)
        assert reply.wait(20)
        return begun

    monkeypatch.setattr(service.in_progress, "begin", begin_and_end)
    service.script.raises = MessageTooLong("Too long.")
    chat.send("Is anybody here?")
    said(chat, "Too long.")
    expect(chat.page.locator("#hc-box textarea")).to_have_value("Is anybody here?")
    monkeypatch.undo()
    service.script.raises = None
    sane(chat)
