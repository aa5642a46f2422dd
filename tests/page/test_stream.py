"""The stream that sends what a page shows: nothing else writes HTML there."""

import time
from typing import Any

import gradio as gr
import httpx
import pytest
from playwright.sync_api import expect

from benchmarks.page.tab import Stream, Tab
from hierchat.page.page_sessions import DrawnPage
from hierchat.page.stream import changes
from tests.page.stored import stored_chat
from tests.testing import browser as driving
from tests.testing.browser import Chat
from tests.testing.fake_service import FakeService
from tests.testing.visitor import Visitor
from tests.testing.waiting import until


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        ("", "a", (0, 0, "a")),
        ("ab", "ab c", (2, 0, " c")),
        ("<p>a</p>", "<p>a b</p>", (4, 4, " b")),
        ("aa", "aaa", (2, 0, "a")),
        ("aaa", "a", (1, 0, "")),
        ("\N{GRINNING FACE}a\N{GRINNING FACE}", "\N{GRINNING FACE}b\N{GRINNING FACE}", (2, 2, "b")),
    ],
)
def test_of_a_part_that_changed_only_the_change_is_told(
    before: str, after: str, change: tuple[int, int, str]
) -> None:
    """In JavaScript's characters, of which an emoji has two."""
    assert changes({"part": before, "same": "x"}, {"part": after, "same": "x", "new": "y"}) == {
        "part": change,
        "new": "y",
    }


def test_a_screen_wakes_its_streams_and_is_never_changed_in_place() -> None:
    screen, woken = DrawnPage(), []
    screen.streams.add(lambda: woken.append(1))
    before = screen.parts
    screen.put({"a": "b"})
    screen.put({"a": "b"})  # nothing new: a stream that draws would wake itself for ever
    assert (before, screen.parts, len(woken)) == ({}, {"a": "b"}, 1)
    screen.forget()
    assert (screen.parts, len(woken)) == ({}, 2)


def test_no_answer_of_a_handler_holds_html(service: FakeService) -> None:
    app: Any = Visitor(service).app
    parts = app.page_events.parts
    told = {part for function in app.fns.values() for part in function.outputs if isinstance(part, gr.HTML)}
    assert told == {parts.bus}
    # Each of the others has an element that the script finds.
    assert all(part.elem_id for part in vars(parts).values() if isinstance(part, gr.HTML))


def test_a_growing_reply_sends_what_was_added_and_a_stream_that_was_cut_the_whole_screen(
    fresh: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    take = Stream._take

    def noted(self: Stream, news: Any) -> None:
        part = news.get("hc-growing")
        sent.extend([len(part[2])] if isinstance(part, list | tuple) else [])
        take(self, news)

    monkeypatch.setattr(Stream, "_take", noted)
    fresh.script.seconds = 1.0
    with driving.serving(fresh) as address:
        tab = Tab(address)
        tab.send("Reverse a string")
        assert tab.shows["place"] != "0"
        assert "reverse_string" in tab.shows["hc-thread"]
        assert len(sent) > 2
        grown = max(len(part) for part in tab._stream.seen if "hc-growing" in part or "hc-reply" in part)
        assert sum(sent) < 4 * grown
        before = dict(tab.shows)
        tab._stream.close()
        again = Stream(httpx.Client(base_url=address), tab.key)
        assert again.shows == before
        tab.fire("hc-bus", "hc_new")
        again.until(lambda: again.shows["place"] == "0")
        assert again.shows["hc-thread"] == ""


def test_a_page_whose_stream_ended_is_closed_unless_it_is_opened_again(
    fresh: FakeService, apps: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hierchat.page.stream.LEFT_SECONDS", 1.0)
    with driving.serving(fresh) as address:
        sessions = apps[0].page_events.sessions
        tab, http = Tab(address), httpx.Client(base_url=address)
        tab._stream.close()
        tab._stream = Stream(http, tab.key)
        time.sleep(1.5)
        assert sessions.find(tab.key) is not None
        tab.leave()
        until(lambda: sessions.find(tab.key) is None)
        with pytest.raises(httpx.HTTPStatusError, match="404"):
            Stream(httpx.Client(base_url=address), tab.key)


@pytest.mark.browser
def test_a_page_that_nobody_sees_lets_its_stream_go_and_shows_what_came_meanwhile(
    chat: Chat, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With seven open pages a browser has no connection left for what is pressed."""
    monkeypatch.setattr("hierchat.page.stream.LEFT_SECONDS", 0.5)
    streams: list[str] = []
    chat.page.on("requestfinished", lambda request: streams.append(request.url))
    chat.page.on("requestfailed", lambda request: streams.append(request.url))
    see = """state => {
        Object.defineProperty(document, 'visibilityState', { value: state, configurable: true });
        document.dispatchEvent(new Event('visibilitychange'));
    }"""
    chat.page.evaluate(see, "hidden")
    chat.until(lambda: any("/gradio_api/page/" in url for url in streams))
    stored_chat(service.store, "Meanwhile", 1)
    service.changes.notify(service.user)
    chat.page.wait_for_timeout(1_500)  # a page that was closed would be forgotten by now
    assert "Meanwhile" not in chat.titles.all_inner_texts()
    chat.page.evaluate(see, "visible")
    expect(chat.titles.first).to_have_text("Meanwhile")
    chat.ask("Still there?")
