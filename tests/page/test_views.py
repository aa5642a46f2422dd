"""Every view of the page in a real browser, once with everything that looks at it: axe-core finds nothing, each
control has a name of its own, nothing sticks out, and no sentence is left in English (pseudo.py).

At night in every width and theme.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect

from tests.page.stored import RICH, stored_chat, weeks
from tests.testing import browser as driving
from tests.testing import pseudo
from tests.testing.browser import Chat
from tests.testing.fake_service import FakeService, Script, make

pytestmark = pytest.mark.browser
AXE = Axe()
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
OPTIONS = {"resultTypes": ["violations"], "runOnly": {"type": "tag", "values": TAGS}}
CONTROLS = {
    "button", "textbox", "searchbox", "combobox", "checkbox", "switch", "slider", "spinbutton", "listbox", "link",
    "menu", "tab", "progressbar", "DisclosureTriangle", "dialog", "alertdialog", "region", "form", "article",
    "navigation", "complementary", "image",
}  # fmt: skip
NAMED = ("no chats yet", "chat settings", "an editor", "a comparison")
"""Views in which no name stands twice but in SHARED."""
PARTS = {
    "help": "dialog[open]", "while a reply is written": "#hc-chat", "what a run tells": "#hc-tip",
    "a message that failed": "#hc-live", "chat settings": "#hc-drawer",
    "what Compare runs": "#hc-setup", "a comparison": "#hc-versus", "Insights of nearly nothing": "#hc-panel-insights",
    **{view: f"#hc-panel-{view}" for view in ("insights", "models", "settings")},
    "a model is fetched": "#hc-panel-models",
    "forgetting is asked about": "dialog[open]", "a search": "#hc-sidebar", "a chat is renamed": "dialog[open]",
    "the menu of a chat": "[role=menu]", "a chat was deleted": ".hc-undo",
}  # fmt: skip
"""What is new in a view: axe-core takes seconds for the whole page, which it looks at in each view once a night."""
SHARED = {
    "Copy", "Edit", "Again", "Sources", "Details", "Fork: continue in a new chat", "You", "Reply",
    "Where the words came from", "Task", "the manual",
}  # fmt: skip
"""Names that stand once in every message, told apart by it; the last two are of RICH."""
LANGUAGE = ("html-lang-valid", "valid-lang")
SPOKEN = """([known, theirs]) => {
  const told = ['aria-label', 'title', 'placeholder', 'alt', 'aria-description', 'data-said'];
  const found = [];
  const look = (element, text) => {
    const words = text.match(/[A-Za-z]{3,}/g)?.filter((word) => !known.includes(word));
    const where = `${element.tagName}#${element.closest('[id]')?.id}.${element.className}`;
    if (words?.length) found.push(`English in ${where}: ${text.trim().slice(0, 90)}`);
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
    "Ctrl",
    "hierchat", "tiny", "fake", "SmolLM", "smollm", "Qwen", "qwen", "Coder", "coder", "Llama", "GGUF", "Apache",
    "How", "string", "reversed", "Both", "Measured", "Sky", "Why", "the", "sky", "blue",
    "notes", "code", "home", "you", "papers", "share", "local", "min",
]  # fmt: skip
"""Names, and what was asked."""
THEIRS = ", ".join((
    ".hc-user", ".hc-text", ".hc-heading", ".hc-brand", ".hc-list .hc-title", 
    ".hc-path", ".hc-writer", ".hc-arm", ".hc-sent", "#hc-said", "code", "pre", "kbd", "option", "script",
    "style", ".hc-model th > span:first-child",
    ".hc-found h3", "#hc-model-said", "[aria-label^='number input']", "[aria-label^='range slider']",
    # What lower layers say, or said when it was stored.
    ".hc-fit", "#hc-verdict", ".hc-verdict",
    ".hc-snippet", ".hc-error",
    ".hc-against", ".hc-chart svg",
))  # fmt: skip
"""Texts of users and models, names, what Gradio says."""


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FakeService, str]]:
    """A server that speaks the language that is made up, too."""
    with pseudo.spoken_here():
        service = make(tmp_path_factory.mktemp("foreign"))
        with driving.serving(service) as address:
            yield service, address


def unfold(chat: Chat) -> None:
    """Have the list of chats on the screen."""
    if not chat.page.locator("#hc-sidebar.open").count():
        chat.page.locator("#hc-sidebar .toggle-button").click()


def go_to(chat: Chat, panel: str) -> None:
    unfold(chat)
    chat.page.locator(f"#hc-links [data-text={panel}]").click()
    expect(chat.page.locator(f"#hc-panel-{panel}")).to_be_visible()


def views(chat: Chat, service: FakeService) -> Iterator[str]:
    """Walk through the page, whatever its language; the name of each view."""
    page, script = chat.page, service.script
    chat.open()
    yield "no chats yet"
    page.locator("[data-act=hc_help]").dispatch_event("click")
    expect(page.locator("dialog[open]")).to_be_visible()
    yield "help"
    page.keyboard.press("Escape")
    script.reply = RICH
    script.hold()
    chat.send("How")
    expect(chat.words.last).to_contain_text("Here is")
    yield "while a reply is written"
    chat.stop.click()
    chat.idle()
    script.release()
    chat.ask("How is a string reversed?")
    foot = chat.replies.last
    foot.locator("summary").click()
    expect(foot.locator(".hc-details dl").first).to_be_visible()
    foot.locator("[data-act=hc_sources]").click()
    expect(page.locator(".hc-marked")).to_be_visible()
    yield "sources and details"
    page.locator(".hc-run[data-said]").first.hover()
    expect(page.locator("#hc-tip")).to_be_visible()
    yield "what a run tells"
    foot.locator("[data-act=hc_sources]").click()
    expect(page.locator(".hc-marked")).to_have_count(0)
    page.locator("[data-act=hc_edit_reply]").last.click()
    expect(page.locator("#hc-thread form")).to_be_visible()
    yield "an editor"
    page.keyboard.press("Escape")
    script.raises = RuntimeError()
    chat.send("Both")
    expect(chat.live.get_by_role("alert")).to_be_visible()
    yield "a message that failed"
    script.raises = None
    chat.box.fill("")
    page.locator("[data-act=hc_settings]").click()
    expect(page.locator("#hc-drawer[data-open]")).to_be_visible()
    yield "chat settings"
    page.keyboard.press("Escape")
    if page.locator("#hc-compare").is_visible():  # there is no room for two columns on a narrow screen
        page.locator("#hc-compare input").check()
        page.locator("#hc-setup summary").click()
        yield "what Compare runs"
        page.locator("#hc-setup summary").click()
        chat.send("Both")
        expect(page.locator("#hc-verdict .hc-verdict")).to_be_visible()
        chat.idle()
        yield "a comparison"
    user = service.user
    go_to(chat, "insights")
    expect(page.locator("#hc-panel-insights .hc-tiles")).to_be_visible()
    yield "Insights of nearly nothing"
    weeks(service.store, user)
    for view in ("insights", "models", "settings"):
        go_to(chat, view)
        if view == "insights":
            expect(page.locator("#hc-panel-insights svg").first).to_be_visible()
        for more in page.locator(f"#hc-panel-{view} summary").all():
            more.click()
        yield view
        if view == "models":
            page.locator('[data-model="Qwen3 1.7B"] [data-act=hc_model_fetch]').click()
            expect(page.locator(".hc-model progress")).to_be_visible()
            yield "a model is fetched"
            service.models.busy = False
    page.locator("#hc-forget button").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    yield "forgetting is asked about"
    page.keyboard.press("Escape")
    stored_chat(service.store, "How", 1)
    chat.open()
    unfold(chat)
    field = page.locator("#hc-search").locator("input, textarea")
    field.fill("How")
    expect(page.locator(".hc-snippet").first).to_be_visible()
    yield "a search"
    field.fill("")
    chat.titles.first.focus()
    page.keyboard.press("F2")
    expect(page.get_by_role("dialog")).to_be_visible()
    yield "a chat is renamed"
    page.keyboard.press("Escape")
    page.locator("[data-act=hc_menu]").first.click(force=True)
    expect(page.get_by_role("menu")).to_be_visible()
    yield "the menu of a chat"
    page.keyboard.press("Escape")
    chat.titles.first.focus()
    page.keyboard.press("Delete")
    expect(page.locator(".hc-undo")).to_be_visible()
    yield "a chat was deleted"
    chat.open()
    page.locator("#hc-incognito button").click()
    expect(page.locator("#hc-incognito [aria-checked=true]")).to_be_visible()
    chat.ask("How")
    yield "an incognito chat"


def seen_by_axe(chat: Chat, part: str | None = None) -> Iterator[str]:
    """What axe-core finds wrong, however small, on the page or a part of it."""
    for rule in AXE.run(chat.page, part, OPTIONS).response["violations"]:
        for node in rule["nodes"]:
            why = "; ".join(check["message"] for check in [*node["any"], *node["all"], *node["none"]])
            place = " ".join(map(str, node["target"]))
            yield f"{rule['id']} at {place} ({why}): {node['html'][:120]}"


def tree(chat: Chat) -> list[tuple[str, str]]:
    """Role and name of everything that a screen reader meets."""
    nodes = chat.page.context.new_cdp_session(chat.page).send("Accessibility.getFullAXTree")["nodes"]
    names = {id(node): str(node.get("name", {}).get("value", "")).strip() for node in nodes}
    return [(str(node["role"]["value"]), names[id(node)]) for node in nodes if not node.get("ignored")]


def badly_named(chat: Chat, shared: set[str]) -> Iterator[str]:
    named = Counter(entry for entry in tree(chat) if entry[0] in CONTROLS)
    for (role, name), times in named.items():
        if not name or (times > 1 and name not in shared):
            yield f"{times} of role {role} with the name {name!r}"


def speak(chat: Chat, code: str) -> None:
    """The browser keeps this choice."""
    chat.page.context.add_cookies([{"name": "hc-language", "value": code, "url": chat.address}])


def at_night(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.large)


@pytest.mark.parametrize(
    ("code", "width", "dark"),
    [
        (pseudo.CODE, 1280, False), at_night(pseudo.CODE, 390, True), at_night("en", 1280, False),
        at_night("en", 1280, True), at_night("en", 390, False), at_night("en", 390, True),
    ],
)  # fmt: skip
def test_every_view(
    chromium: Browser, foreign: tuple[FakeService, str], code: str, width: int, dark: bool
) -> None:
    service, address = foreign
    service.script = Script()
    with service.store.connection.write() as db:
        db.execute("DELETE FROM conversations")
    shared = SHARED | {pseudo.Pseudo().gettext(name) for name in SHARED}
    found: list[str] = []
    with driving.visiting(chromium, address, width, 800 if width > 768 else 844, dark) as chat:
        chat.page.emulate_media(reduced_motion="reduce")  # colours that fade in are at their end at once
        speak(chat, code)
        for view in views(chat, service):
            # The language that is made up has no code of its own.
            part = PARTS.get(view) if code == pseudo.CODE and width > 768 else None
            look = [one for one in seen_by_axe(chat, part) if code == "en" or not one.startswith(LANGUAGE)]
            look += badly_named(chat, shared) if view in NAMED else ()
            look += chat.page.evaluate(SPOKEN, [KNOWN, THEIRS]) if code == pseudo.CODE else ()
            too_wide = chat.page.evaluate("document.documentElement.scrollWidth - innerWidth")
            look += [f"{too_wide} px too wide"] if too_wide > 0 else ()
            found += [f"{view}: {said}" for said in look]
    assert not found, "\n".join(found)


def test_a_reply_is_told_once(chat: Chat, service: FakeService) -> None:
    service.script.seconds, service.script.reading_seconds = 2, 0.5
    chat.page.evaluate(
        """() => {
            window.told = [];
            const live = '[role=status], [role=alert], [role=log], [aria-live=polite], [aria-live=assertive]';
            new MutationObserver((records) => {
                for (const record of records) {
                    const node = record.target.nodeType === 1 ? record.target : record.target.parentElement;
                    const within = (n) => n.matches?.(live) || n.querySelector?.(live);
                    const region = node?.closest(live) || [...record.addedNodes].find(within);
                    if (region && region.textContent.trim()) window.told.push(region.textContent.trim());
                }
            }).observe(document.body, { childList: true, subtree: true, characterData: true });
        }"""
    )
    chat.send("Question")
    chat.idle()
    expect(chat.page.locator("#hc-said")).to_contain_text("handle combined characters too.")
    told = chat.page.evaluate("window.told")
    assert len([said for said in told if "Here is a Python function" in said]) == 1
    assert "A reply is being written." in told
    assert len(told) <= 5  # with the waits; not one for every step
    assert not any("tok/s" in said or "1,200 tokens" in said for said in told)


def test_a_language_is_chosen_kept_and_of_its_reader(
    chromium: Browser, foreign: tuple[FakeService, str]
) -> None:
    service, address = foreign
    service.script = Script()
    theirs = pseudo.Pseudo().gettext
    context = chromium.new_context(locale=pseudo.CODE)
    try:
        other = Chat(context.new_page(), address, [])
        other.open()
        with driving.visiting(chromium, address) as chat:
            page, html = chat.page, chat.page.locator("html")
            wrong: list[str] = []
            page.on("pageerror", lambda error: wrong.append(str(error)))
            chat.open("?view=settings")
            expect(html).to_have_attribute("lang", "en")
            other.ask("How")
            expect(other.replies.last.locator("[data-act=hc_copy]")).to_have_text(theirs("Copy"))
            page.locator("#hc-language select").select_option(pseudo.CODE)
            expect(html).to_have_attribute("lang", pseudo.CODE)
            expect(page.locator("#hc-title")).to_have_text(theirs("Settings"))
            expect(page.locator("#hc-language select")).to_have_value(pseudo.CODE)
            page.locator("#hc-language select").select_option("")
            expect(html).to_have_attribute("lang", "en")
            expect(page.locator("#hc-title")).to_have_text("Settings")
            assert wrong == []
    finally:
        context.close()


@pytest.mark.browser
def test_a_narrow_page_leads_to_the_last_chats_and_compares(
    chromium: Browser, server: tuple[FakeService, str], service: FakeService
) -> None:
    stored_chat(service.store, "Story", 1)
    with driving.visiting(chromium, server[1], 360, 740) as chat:
        chat.open()
        chat.compare()
        chat.page.locator(".hc-setup summary").click()
        expect(chat.page.locator("#hc-pair select").first).to_be_visible()
        chat.compare(False)
        last = chat.page.get_by_role("navigation", name="Last chats")
        last.get_by_role("button", name="Story").click()
        expect(chat.page.locator("#hc-title")).to_have_text("Story")
        expect(last).to_be_hidden()
