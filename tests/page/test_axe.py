"""axe-core finds nothing serious in any view of the page, nor while a reply streams: wide, narrow, light and dark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect

from tests.page.chats import stored_chat
from tests.page.measured import COSTS, weeks
from tests.page.test_comparisons import keep
from tests.page.test_rendering import PLAN
from tests.page.test_sources import RICH
from tests.testing import browser as driving
from tests.testing.browser import Chat
from tests.testing.fake_service import FakeService

pytestmark = pytest.mark.browser
AXE = Axe()
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
OPTIONS = {"resultTypes": ["violations"], "runOnly": {"type": "tag", "values": TAGS}}
SERIOUS = ("serious", "critical")


@dataclass
class Audit:
    """One visitor on the way through the page; what axe found so far, each finding with where it was."""

    chat: Chat
    found: list[str] = field(default_factory=list)

    def look(self, where: str) -> None:
        for rule in AXE.run(self.chat.page, options=OPTIONS).response["violations"]:
            if rule["impact"] in SERIOUS:
                self.found += [f"{where}: {said}" for said in _nodes(rule)]


def _nodes(rule: dict[str, Any]) -> Iterator[str]:
    for node in rule["nodes"]:
        place = " ".join(map(str, node["target"]))
        why = "; ".join(check["message"] for check in [*node["any"], *node["all"], *node["none"]])
        yield f"{rule['id']} at {place} ({why}): {node['html'][:120]}"


@pytest.mark.parametrize(
    ("width", "height", "dark"),
    [
        pytest.param(1280, 800, False, id="wide-light"),
        pytest.param(390, 844, True, id="narrow-dark", marks=pytest.mark.large),
        pytest.param(1280, 800, True, id="wide-dark", marks=pytest.mark.large),
        pytest.param(390, 844, False, id="narrow-light", marks=pytest.mark.large),
    ],
)
def test_nothing_serious_is_found(
    chromium: Browser,
    server: tuple[FakeService, str],
    service: FakeService,
    dark: bool,
    width: int,
    height: int,
) -> None:
    with driving.visiting(chromium, server[1], width, height, dark) as chat:
        chat.page.emulate_media(reduced_motion="reduce")  # colours that fade in are at their end at once
        audit = Audit(chat)
        _conversation(audit, service)
        _comparison(audit, service)
        _panels(audit, service)
        _beside(audit, service)
    assert "\n".join(audit.found) == ""


def test_what_is_wrong_is_found_and_named(chat: Chat) -> None:
    chat.page.emulate_media(reduced_motion="reduce")
    wrong = ["here: button-name at .hc-attach", "here: color-contrast at #hc-send"]
    for _ in range(5):  # what the page still draws may undo it
        chat.page.locator("#hc-attach button").evaluate(
            "e => { e.ariaLabel = e.title = e.textContent = ''; }"
        )
        # Two greys: one colour for both is taken for text that is hidden on purpose.
        chat.page.locator("#hc-send").evaluate(
            "e => { e.style.color = '#888'; e.style.background = '#777'; }"
        )
        audit = Audit(chat)
        audit.look("here")
        if (found := [said.split(" (")[0] for said in audit.found]) == wrong:
            break
    assert found == wrong


def _conversation(audit: Audit, service: FakeService) -> None:
    chat = audit.chat
    page, script = chat.page, service.script
    chat.open()
    audit.look("no chats yet")
    script.reply, script.seconds = RICH, 60
    chat.send("How is a string reversed?")
    expect(chat.words.last).to_contain_text("Here is")
    audit.look("while a reply is written")
    expect(page.locator("#hc-stop")).to_be_visible()
    page.locator("#hc-stop").click()
    chat.idle()
    script.seconds, script.plan = 0, PLAN
    chat.ask("And now?")
    audit.look("a chat")
    chat.replies.last.locator("summary").click()
    expect(chat.replies.last.locator(".hc-details")).to_contain_text("Tokens per run")
    chat.replies.last.get_by_role("button", name="Sources").click()
    expect(page.locator(".hc-marked")).to_be_visible()
    audit.look("sources and details")
    page.locator(".hc-run[data-said]").first.hover()
    expect(page.locator("#hc-tip")).to_be_visible()
    audit.look("what a run tells of itself")
    page.locator(".hc-turn").first.hover()
    page.locator(".hc-turn").first.get_by_role("button", name="Edit").click()
    expect(page.get_by_label("Edit your message").get_by_role("textbox")).to_be_visible()
    audit.look("a question is edited")
    page.keyboard.press("Escape")
    script.fail = "The model ran out of memory."
    chat.send("Boom")
    expect(page.locator("#hc-live [role=alert]")).to_be_visible()
    chat.idle()
    audit.look("a reply that failed")
    script.fail = None


def _comparison(audit: Audit, service: FakeService) -> None:
    chat = audit.chat
    page = chat.page
    page.locator("#hc-compare input").check()
    expect(page.locator("#hc-box textarea")).to_have_attribute("placeholder", "Message both…")
    page.locator("#hc-setup summary").click()
    audit.look("what Compare runs")
    page.locator("#hc-setup summary").click()
    service.script.seconds = 60
    chat.send("Both")
    expect(page.locator("#hc-second")).to_contain_text("Here is")
    audit.look("while two replies are written")
    expect(page.locator("#hc-stop")).to_be_visible()
    page.locator("#hc-stop").click()
    chat.idle()
    service.script.seconds = 0
    chat.send("Both")
    expect(page.locator("#hc-verdict")).to_contain_text("Word for word the same")
    chat.idle()
    audit.look("a comparison")
    page.locator("#hc-compare input").uncheck()
    expect(page.locator("#hc-box textarea")).to_have_attribute("placeholder", "Message…")


def _panels(audit: Audit, service: FakeService) -> None:
    chat = audit.chat
    page, user = chat.page, service.store.users.ensure("local")
    chat.open("?view=insights")
    expect(page.locator("#hc-panel-insights h2").first).to_be_visible()
    audit.look("Insights of nearly nothing")
    service.script.costs = COSTS
    weeks(service.store, user)
    chat.open("?view=insights")
    expect(page.locator("#hc-panel-insights svg").first).to_be_visible()
    for table in page.locator("#hc-panel-insights summary").all():
        table.click()
    audit.look("Insights")
    keep(service.store, "Why is the sky blue?")
    chat.open("?view=comparisons")
    expect(page.locator(".hc-results li").first).to_be_visible()
    audit.look("Comparisons")
    page.locator(".hc-results li button").first.click()
    expect(page.locator("#hc-panel-comparisons .hc-one")).to_be_visible()
    audit.look("a kept comparison")
    chat.open("?view=models")
    expect(page.locator(".hc-model").first).to_be_visible()
    for more in page.locator("#hc-panel-models summary").all():
        more.click()
    audit.look("Models")
    page.get_by_label("Filter the list by name, maker or licence").fill("qwen")
    expect(page.locator("#hc-models-shown")).to_have_text("Shown: 3 of 5 models.")
    audit.look("models are filtered")
    page.get_by_role("button", name="Download Qwen3 1.7B", exact=True).click()
    expect(page.locator(".hc-model progress")).to_be_visible()
    audit.look("a model is fetched")
    service.models.busy = False
    chat.open("?view=settings")
    expect(page.locator("#hc-theme")).to_be_visible()
    audit.look("Settings")
    page.get_by_role("button", name="Forget everything…").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    audit.look("forgetting is asked about")
    page.keyboard.press("Escape")


def _beside(audit: Audit, service: FakeService) -> None:
    """The list with its menu and dialogs, the settings of a chat, the help, an incognito chat."""
    chat = audit.chat
    page = chat.page
    number = stored_chat(service.store, "Trip to Oslo", 2)
    chat.open(f"?c={number}")
    expect(chat.replies).to_have_count(2)
    page.get_by_role("button", name="Chat settings").click()
    expect(page.locator("#hc-drawer[data-open]")).to_be_visible()
    audit.look("the settings of a chat")
    page.keyboard.press("Escape")
    if not page.locator("#hc-sidebar.open").count():
        page.get_by_role("button", name="List of chats").click()
    page.get_by_role("textbox", name="Search chats").fill("oslo")
    expect(page.locator(".hc-snippet, .hc-list .hc-title").first).to_be_visible()
    audit.look("a search")
    page.get_by_role("textbox", name="Search chats").fill("")
    page.locator("#hc-list .hc-title").first.focus()
    page.keyboard.press("F2")
    expect(page.get_by_role("dialog")).to_be_visible()
    audit.look("a chat is renamed")
    page.keyboard.press("Escape")
    page.locator("#hc-list .hc-title").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(page.get_by_role("menu")).to_be_visible()
    audit.look("the menu of a chat")
    page.get_by_role("menuitem", name="Delete").click()
    expect(page.locator(".hc-undo")).to_be_visible()
    audit.look("a chat was deleted")
    page.get_by_role("button", name="Keyboard shortcuts").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    audit.look("the help")
    page.keyboard.press("Escape")
    chat.open()
    page.get_by_role("switch", name="Incognito").click()
    expect(page.get_by_role("switch", name="Incognito")).to_be_checked()
    audit.look("an incognito chat begins")
    chat.ask("What is a quincunx?")
    expect(page.locator("#hc-incognito")).to_contain_text("is erased when you leave it")
    audit.look("an incognito chat")
