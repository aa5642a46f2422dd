"""Every sentence of the page is in the reader's language: shown in a language that is made up (pseudo.py)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.page import pseudo
from tests.page.chats import stored_chat
from tests.page.measured import COSTS, weeks
from tests.page.test_comparisons import keep
from tests.page.test_rendering import PLAN
from tests.page.test_sources import RICH
from tests.testing import browser as driving
from tests.testing.browser import Chat
from tests.testing.fake_service import FakeService, make

pytestmark = pytest.mark.browser
SPOKEN = """() => {
  const theirs = THEIRS;
  const told = ['aria-label', 'title', 'placeholder', 'alt', 'aria-description', 'data-said'];
  const found = [];
  const look = (element, text) => {
    const words = text.match(/[A-Za-z]{3,}/g)?.filter((word) => !KNOWN.includes(word));
    const where = `${element.tagName}#${element.closest('[id]')?.id}.${element.className}`;
    if (words?.length) found.push(`${where}: ${text.trim().slice(0, 90)}`);
  };
  const walk = (root) => {
    for (const element of root.querySelectorAll('*')) {
      if (element.shadowRoot) walk(element.shadowRoot);
      if (!element.checkVisibility({ visibilityProperty: true }) || element.closest(theirs)) continue;
      for (const name of told) if (element.hasAttribute(name)) look(element, element.getAttribute(name));
      for (const node of element.childNodes) if (node.nodeType === Node.TEXT_NODE) look(element, node.textContent);
    }
  };
  walk(document.body);
  return [...new Set(found)];
}"""
KNOWN = [
    "hierchat", "tiny", "fake", "SmolLM", "smollm", "Qwen", "qwen", "Coder", "coder", "Llama", "GGUF", "Apache",
    "How", "string", "reversed", "Both", "Measured", "Sky", "Why", "the", "sky", "blue",
    "notes", "code", "home", "you", "papers", "share", "local", "min",
]  # fmt: skip
"""Names, and what was asked."""


THEIRS = ", ".join((
    ".hc-user", ".hc-text", ".hc-heading", ".hc-brand", ".hc-list .hc-title", ".hc-tags", ".hc-filter", ".hc-question",
    ".hc-path", ".hc-writer", ".hc-words", ".hc-arm", ".hc-sent", "#hc-said", "code", "pre", "kbd", "option", "script",
    "style", ".hc-model > h3", "#hc-model-said", "[aria-label^='number input']", "[aria-label^='range slider']",
    # What lower layers say, or said when it was stored.
    ".hc-fit", ".hc-draft-models li", ".hc-plan ul", "#hc-verdict", ".hc-verdict", ".hc-results .hc-quiet",
    ".hc-against", ".hc-result .hc-facts", ".hc-difference h3", ".hc-both th", ".hc-chart li", ".hc-chart svg",
))  # fmt: skip
"""Texts of users and models, names, what Gradio says."""


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FakeService, str]]:
    with pseudo.spoken_here():
        service = make(tmp_path_factory.mktemp("foreign"))
        with driving.serving(service) as address:
            yield service, address


class Reader:
    """One who looks at each view; what was not in the language, and where."""

    def __init__(self, chat: Chat) -> None:
        self.chat = chat
        self.found: list[str] = []

    def look(self, where: str) -> None:
        page = self.chat.page
        self.found += [
            f"{where}: {said}"
            for said in page.evaluate(SPOKEN.replace("KNOWN", str(KNOWN)).replace("THEIRS", repr(THEIRS)))
        ]
        wide = page.evaluate("() => document.documentElement.scrollWidth - window.innerWidth")
        self.found += [f"{where}: {wide} px too wide"] if wide > 0 else []
        self.chat.shot(f"foreign {where} {page.viewport_size['width']}")  # type: ignore[index]


def speak(chat: Chat, code: str = pseudo.CODE) -> None:
    """The browser keeps this choice."""
    chat.page.context.add_cookies([{"name": "hc-language", "value": code, "url": chat.address}])


@pytest.mark.parametrize("width", [1280, pytest.param(390, marks=pytest.mark.large)])
def test_nothing_english_is_left(chromium: Browser, foreign: tuple[FakeService, str], width: int) -> None:
    service, address = foreign
    service.script = type(service.script)()
    with driving.visiting(chromium, address, width, 844) as chat:
        speak(chat)
        reader, page, script = Reader(chat), chat.page, service.script
        chat.open()
        expect(page.locator("html")).to_have_attribute("lang", pseudo.CODE)
        reader.look("no chats yet")
        page.locator("#hc-incognito button").click()
        page.locator("[data-act=hc_help]").dispatch_event("click")
        expect(page.locator("dialog[open]")).to_be_visible()
        reader.look("help")
        page.keyboard.press("Escape")
        page.locator("#hc-incognito button").click()
        script.reply, script.plan = RICH, PLAN
        chat.ask("How is a string reversed?")
        foot = chat.replies.last
        foot.locator("summary").click()
        expect(foot.locator(".hc-details dl").first).to_be_visible()
        foot.locator("[data-act=hc_sources]").click()
        expect(page.locator(".hc-marked")).to_be_visible()
        reader.look("a chat")
        page.locator(".hc-run[data-said]").first.hover()
        reader.look("what a run tells")
        page.locator("[data-act=hc_edit_reply]").last.click()
        expect(page.locator("#hc-thread form")).to_be_visible()
        reader.look("an editor")
        page.keyboard.press("Escape")
        page.locator("[data-act=hc_settings]").click()
        expect(page.locator("#hc-drawer")).to_be_visible()
        reader.look("chat settings")
        page.keyboard.press("Escape")
        page.locator("#hc-compare input").check()
        page.locator("#hc-setup summary").click()
        reader.look("Compare")
        chat.send("Both")
        expect(page.locator("#hc-result article")).to_be_visible()
        reader.look("a comparison")
        stored_chat(service.store, "How", 1)
        user = service.store.users.ensure("local")
        script.costs = COSTS
        chat.open("?view=insights")
        expect(page.locator("#hc-panel-insights h2").first).to_be_visible()
        reader.look("Insights of nearly nothing")
        weeks(service.store, user)
        keep(service.store, "How")
        for view in ("insights", "comparisons", "models", "settings"):
            chat.open(f"?view={view}")
            expect(page.locator(f"#hc-panel-{view}")).to_be_visible()
            if view == "insights":
                expect(page.locator("#hc-panel-insights svg").first).to_be_visible()
            for more in page.locator(f"#hc-panel-{view} summary").all():
                more.click()
            reader.look(view)
        if width > 768:
            chat.open()
            page.locator("[data-act=hc_menu]").first.click(force=True)
            expect(page.locator("#hc-menu")).to_be_visible()
            reader.look("a menu")
    assert "\n".join(reader.found) == ""


def test_a_language_is_chosen_and_kept(chromium: Browser, foreign: tuple[FakeService, str]) -> None:
    with driving.visiting(chromium, foreign[1]) as chat:
        page, html = chat.page, chat.page.locator("html")
        chat.open("?view=settings")
        expect(html).to_have_attribute("lang", "en")
        page.locator("#hc-language select").select_option(pseudo.CODE)
        expect(html).to_have_attribute("lang", pseudo.CODE)
        expect(page.locator("#hc-title")).to_have_text(pseudo.Pseudo().gettext("Settings"))
        chat.open("?view=settings")
        expect(page.locator("#hc-language select")).to_have_value(pseudo.CODE)
        page.locator("#hc-reset").click()
        expect(html).to_have_attribute("lang", "en")
        expect(page.locator("#hc-title")).to_have_text("Settings")


def test_two_readers_have_two_languages(chromium: Browser, foreign: tuple[FakeService, str]) -> None:
    service, address = foreign
    service.script = type(service.script)()
    context = chromium.new_context(locale=pseudo.CODE)
    try:
        theirs = Chat(context.new_page(), address, [])
        theirs.open()
        with driving.visiting(chromium, address) as ours:
            ours.open()
            ours.ask("How")
            theirs.ask("How")
            detail = "#hc-thread [data-act=hc_copy] >> nth=-1"
            expect(ours.page.locator(detail)).to_have_text("Copy")
            expect(theirs.page.locator(detail)).to_have_text(pseudo.Pseudo().gettext("Copy"))
    finally:
        context.close()
