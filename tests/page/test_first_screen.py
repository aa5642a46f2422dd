"""What is read of a page before Gradio has built it, and that nothing of it stays or moves."""

import json

import pytest
from playwright.sync_api import Route, expect

from tests.page.stored import RICH, stored_chat
from tests.testing.browser import Chat
from tests.testing.fake_service import FakeService
from tests.testing.raw import Answer, ask

OPENED = """{
  const attach = Element.prototype.attachShadow;
  Element.prototype.attachShadow = function () { return attach.call(this, { mode: 'open' }); };
}"""
"""Lets a test look into the tree of the first screen, which is closed."""
READ = [
    "#hc-list li:last-child",
    "#hc-links button",
    "#hc-chat .hc-user",
    "#hc-chat .hc-reply .hc-text > :last-child",
]
PLACES = """(root) => READ.map((one) => [...root.querySelectorAll(one)].at(-1).getBoundingClientRect())
  .map(({ x, y }) => [Math.round(x), Math.round(y)])""".replace("READ", json.dumps(READ))


def page(service: FakeService, server: tuple[FakeService, str], path: str, **headers: str) -> Answer:
    return ask(server[1], "GET", path, {name.replace("_", "-"): value for name, value in headers.items()})


def test_the_document_holds_the_list_and_the_end_of_its_chat(
    service: FakeService, server: tuple[FakeService, str]
) -> None:
    chat = stored_chat(service.store, "Tides", 20)
    drawn = page(service, server, f"/?c={chat}").text
    assert drawn.count(">Tides, question 20<") == 1
    assert ">Tides, question 3<" not in drawn
    assert 'data-act="hc_open" data-key' in drawn
    assert 'data-act="hc_example"' not in drawn
    for empty in ("/", f"/?c={chat + 1}"):
        drawn = page(service, server, empty).text
        assert "Tides, question" not in drawn
        assert ">Tides<" in drawn
    assert ">Tides, question" not in page(service, server, f"/?view=models&c={chat}").text
    german = page(service, server, "/", Accept_Language="de").text
    assert 'id="hc-first-screen" lang="de"' in german
    assert "Worüber" in german


def test_no_browser_keeps_the_document(service: FakeService, server: tuple[FakeService, str]) -> None:
    """The chat in it may be deleted."""
    assert page(service, server, "/").headers["Cache-Control"] == "no-store"


def test_a_screen_that_cannot_be_drawn_leaves_the_page(
    service: FakeService, server: tuple[FakeService, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service.chats, "find", None)
    answer = page(service, server, "/")
    assert answer.status == 200
    assert "hc-first-screen" not in answer.text.partition("<body")[2]


@pytest.mark.browser
def test_it_is_read_before_the_page_is_built_and_nothing_moves_then(
    visitor: Chat, service: FakeService
) -> None:
    tab, held = visitor.page, list[Route]()
    chat = stored_chat(service.store, "Tides", 3, RICH)
    tab.emulate_media(color_scheme="dark")
    tab.add_init_script(OPENED)
    tab.route("**/assets/index-*.js", lambda route: held.append(route))
    tab.goto(f"{visitor.address}?c={chat}", wait_until="commit")
    first = tab.locator("#hc-first-screen")
    expect(first.locator("#hc-chat")).to_contain_text("Tides, question 3")
    expect(first.locator(".hc-foot").last).to_be_in_viewport()
    colour = "(one) => getComputedStyle(one).backgroundColor"
    before = tab.evaluate(f"({PLACES})(document.querySelector('#hc-first-screen').shadowRoot)")
    painted = first.locator("#hc-main").evaluate(colour)
    visitor.until(lambda: bool(held))
    held[0].continue_()
    expect(first).to_have_count(0)
    assert tab.evaluate(f"({PLACES})(document)") == before
    assert tab.locator("body").evaluate(colour) == painted
