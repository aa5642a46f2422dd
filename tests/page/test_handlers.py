"""Handlers of the page without a browser: what they answer, what they raise, what the server holds of a page."""

import asyncio
import re
import threading
from datetime import timedelta
from typing import Any

import gradio as gr
import pytest
from gradio.state_holder import SessionState

from benchmarks.page.tab import Tab
from hierchat.chat.spare_time import NextQuestion
from hierchat.page.guard import PageEvents
from hierchat.page.page_app import Page, build_app, login
from hierchat.page.templates import script
from hierchat.store.records import NewMessage
from tests.testing import browser as driving
from tests.testing.fake_service import FakeService
from tests.testing.visitor import Visitor, done
from tests.testing.waiting import until


def test_no_name_is_declared_by_two_parts_of_the_script() -> None:
    names = re.findall(r"^(?:const|let|class|(?:async )?function) (\w+)", script(), re.M)
    assert len(names) > 30
    assert sorted(set(names)) == sorted(names)


@pytest.fixture
def page() -> tuple[Page, Any, list[gr.HTML]]:
    with Page() as page:
        parts = [gr.HTML(f"{number}") for number in range(4)]
        gr.Button().click(lambda: {}, None, parts[:3])
    return page, next(iter(page.fns.values())), parts


def answered(page: Page, event: Any, answer: Any) -> tuple[list[Any], int]:
    """What the browser gets, and how many parts were made anew for it."""
    state = SessionState(page)
    got = asyncio.run(page.postprocess_data(event, answer, state))
    return got, sum(state[part._id] is not part for part in event.outputs)


SKIPPED = {"__type__": "update"}


def test_only_what_changes_is_made_and_other_answers_are_gradios(
    page: tuple[Page, Any, list[gr.HTML]],
) -> None:
    blocks, event, (first, second, third, other) = page
    assert answered(blocks, event, {third: "c", first: gr.skip()}) == ([SKIPPED, SKIPPED, "c"], 0)
    got, made = answered(blocks, event, {second: gr.update(visible=False)})
    assert (got[0], got[1]["visible"], got[2], made) == (SKIPPED, False, SKIPPED, 1)
    assert answered(blocks, event, ["a", "b", "c"])[0] == ["a", "b", "c"]
    for wrong in ({other: "d"}, {first: "a", other: "d"}):
        with pytest.raises(ValueError, match="not specified as output"):
            answered(blocks, event, wrong)


def test_every_handler_of_the_page_is_guarded_and_tells_no_progress(service: FakeService) -> None:
    app = Visitor(service).app
    events = app.config["dependencies"]
    assert len(events) > 50
    assert [one["targets"] for one in events if one["outputs"] and one["show_progress_on"] != []] == []
    for function in app.fns.values():
        if function.fn is not None:  # but for what runs in the browser alone
            assert function.fn.__code__.co_filename == PageEvents.guarded.__code__.co_filename
            # Gradio's components answer a wrong value themselves, before any handler could.
            assert not (function.inputs and function.preprocess)


def test_whatever_a_handler_raises_becomes_a_sentence(fresh: FakeService) -> None:
    app: Any = build_app(fresh)  # type: ignore[arg-type]
    request = gr.Request(username=None, session_hash="x")
    session = app.page_events.sessions.open("x")
    fresh.store.close()
    for function in filter(lambda one: one.fn is not None, app.fns.values()):
        session.page.forget()
        event = gr.EventData(None, {"id": 1, "text": "x"})
        answer = done(function.fn(request, event, *["x"] * len(function.inputs)))
        assert set(answer) <= set(function.outputs)
        assert session.page.parts.keys() >= {"step", "place"}
    assert 'role="alert"' in session.page.parts["hc-live"]


def test_what_is_asked_of_a_page_comes_one_after_the_other(
    fresh: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a step draws is not mixed with what is drawn of the place before it. Stop waits for nothing."""
    first, second = (fresh.store.chats.create(fresh.user) for _ in range(2))
    for conversation, text in ((first, "First"), (second, "Second")):
        fresh.store.messages.add(fresh.user, conversation, NewMessage(None, text))
    page = Visitor(fresh, c=str(first))
    fresh.changes.notify(fresh.user, first)
    messages, drawing, goes_on = fresh.store.messages.path, threading.Event(), threading.Event()

    def slow(*arguments: Any) -> Any:
        drawing.set()
        assert goes_on.wait(20)
        return messages(*arguments)

    monkeypatch.setattr(fresh.store.messages, "path", slow)
    threads = [
        threading.Thread(target=work, daemon=True)
        for work in (page.look, lambda: page.press("hc_open", id=second))
    ]
    threads[0].start()
    assert drawing.wait(20)
    threads[1].start()
    (stop,) = (one.fn for one in page.app.fns.values() if one.fn and one.fn.__name__ == "stop")
    assert done(stop(gr.Request(session_hash=page.key))) == {}
    assert page.place == str(first)
    goes_on.set()
    for thread in threads:
        thread.join(20)
    assert page.place == str(second)
    assert "Second" in page.says("hc-thread")
    assert "Second" in page.says("hc-title")


@pytest.mark.parametrize(
    ("host", "freely"),
    [("127.0.0.1", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("192.168.1.2", False)],
)
def test_only_loopback_goes_without_a_login(host: str, freely: bool, fresh: FakeService) -> None:
    assert (login(host, public=False, asked=False, store=fresh.store) is None) is freely
    assert login(host, public=True, asked=False, store=fresh.store)
    made = login(host, public=False, asked=True, store=fresh.store)
    assert made
    assert len(made[1]) >= 32
    member = made[0].members.recognise("guest", made[1])
    assert member
    assert member.account is None


def test_nothing_is_held_of_pages_that_were_closed(
    fresh: FakeService, apps: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradio held each of them as it was drawn last: 0.7 MB a visit, the words of the chats among it."""
    fresh.script.hold()
    monkeypatch.setattr("hierchat.page.stream.LEFT_SECONDS", 0.1)
    with driving.serving(fresh) as address:
        held = apps[0].state_holder
        stays, tab = Tab(address), Tab(address)
        tab.fire("hc-bus", "hc_panel", text="models")
        tab.send("Reverse a string", waits=False)
        assert set(held.session_data) == {stays.key, tab.key}
        tab.leave()
        until(lambda: set(held.session_data) == {stays.key})
        fresh.in_progress.end(fresh.user)
        for key in held.time_last_used:
            held[key]  # as an event that outlives its page
            held.time_last_used[key] -= timedelta(minutes=2)
        last = Tab(address)
        both = {stays.key, last.key}
        until(lambda: set(held.session_data) == both)
        assert set(held.time_last_used) == both
        stays.fire("hc-bus", "hc_panel", text="settings")  # an open page may rest for long
        for one in (stays, last):
            one.leave()
        until(lambda: not held.session_data)


def test_what_was_deleted_last_leaves_the_backups_by_a_button_beside_undo(service: FakeService) -> None:
    chat = service.store.chats.create(service.user, "Kazoo")
    service.store.messages.add(service.user, chat, NewMessage(None, "a kazoo"))
    copy = service.store.backups.make()
    assert copy
    visitor = Visitor(service)
    visitor.press("hc_delete", id=chat)
    assert "Delete from backups, too" in visitor.says("hc-undo")
    assert b"a kazoo" in copy.read_bytes()
    visitor.press("hc_delete_copies")
    assert b"a kazoo" not in copy.read_bytes()
    assert visitor.says("hc-undo") == ""
    assert "Deleted for good, and from the daily backups." in visitor.says("hc-live")
    visitor.press("hc_restore", id=chat)
    assert "was deleted for good" in visitor.says("hc-live")


def test_what_was_read_ahead_is_forgotten_as_incognito_is_switched_on(service: FakeService) -> None:
    page = Visitor(service)
    service.read_ahead(NextQuestion(service.user, None))
    page.press("hc_incognito")
    assert not service.read


def test_a_chat_that_was_deleted_comes_back_to_the_screen_unless_something_else_was_opened(
    service: FakeService,
) -> None:
    chat = service.store.chats.create(service.user, "Kazoo")
    service.store.messages.add(service.user, chat, NewMessage(None, "a kazoo"))
    for opened, place in (((), str(chat)), (("hc_new",), "0"), (("hc_panel", "models"), "panel models")):
        visitor = Visitor(service, c=str(chat))
        visitor.press("hc_delete", id=chat)
        if opened:
            visitor.press(opened[0], text=opened[-1])
        visitor.press("hc_restore", id=chat)
        assert visitor.place == place
        assert visitor.app.page_events.sessions.find(visitor.key).screen.conversation == (
            None if opened else chat
        )


def test_a_reply_that_ended_while_the_stream_of_its_page_was_cut_counts_as_read(service: FakeService) -> None:
    chat = service.store.chats.create(service.user, "Kazoo")
    shows, another = Visitor(service, c=str(chat)), Visitor(service)
    service.store.chats.mark_unread(service.user, chat, True)
    another.look()
    assert "hc-unread" in another.html("hc-list")
    shows.look()
    assert "hc-unread" not in shows.html("hc-list")
    another.look()
    assert "hc-unread" not in another.html("hc-list")


def test_what_another_tab_changed_is_drawn_though_this_one_drew_its_list_since(service: FakeService) -> None:
    chat = service.store.chats.create(service.user, "Kazoo")
    asked = service.store.messages.add(service.user, chat, NewMessage(None, "a kazoo"))
    visitor = Visitor(service, c=str(chat))
    service.store.messages.add(service.user, chat, NewMessage(asked, "no kazoo", "assistant"))
    service.changes.notify(service.user, chat)
    visitor.press("hc_rename", id=chat, text="Renamed")
    assert "no kazoo" in visitor.says("hc-thread")
