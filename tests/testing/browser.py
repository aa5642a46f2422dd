"""Driving the page in a real browser: start a server, open the page, send, wait. For every browser test."""

import atexit
import base64
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, wraps
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import (
    Browser,
    BrowserContext,
    Locator,
    LocatorAssertions,
    Page,
    PageAssertions,
    Playwright,
    expect,
    sync_playwright,
)

from benchmarks.page.browser import ARGUMENTS, chromium
from hierchat.access.files import files
from hierchat.access.login_sessions import LoginSessions, Members, hashed
from hierchat.page.page_app import Before, build_app, serve
from hierchat.store import Store

PATIENCE_MS = 30_000
"""Two cores may have much else to do."""
PIECE_MS = 2_400
"""What Playwright is to wait for less than 2.5 seconds it looks at every 100 ms, everything else every 500."""


def _in_pieces(assertion: Callable[..., None]) -> Callable[..., None]:
    """The same assertion of Playwright's, which looks every 100 ms however long it may wait."""

    @wraps(assertion)
    def waiting(self: Any, *args: Any, timeout: float | None = None, **kwargs: Any) -> None:
        left = PATIENCE_MS if timeout is None else timeout
        give_up = time.monotonic() + left / 1e3
        while left > PIECE_MS:
            with suppress(AssertionError):
                return assertion(self, *args, timeout=PIECE_MS, **kwargs)
            left = (give_up - time.monotonic()) * 1e3
        return assertion(self, *args, timeout=max(left, 1), **kwargs)

    return waiting


for _kind in (LocatorAssertions, PageAssertions):
    for _name, _assertion in list(vars(_kind).items()):
        if _name.startswith(("to_", "not_to_")):
            setattr(_kind, _name, _in_pieces(_assertion))


@cache
def _playwright() -> Playwright:
    """One for the whole process: a thread can run no second one beside it."""
    started = sync_playwright().start()
    atexit.register(started.stop)
    return started


@contextmanager
def browser() -> Iterator[Browser]:
    """A headless browser. Skips the test only where there is none at all."""
    # Without windows where it is there: it takes a fifth less time.
    playwright, path = _playwright(), chromium("chromium-headless-shell")
    if path is None and not Path(playwright.chromium.executable_path).exists():
        import pytest

        pytest.skip("no Chromium: install it, or set HIERCHAT_CHROMIUM")
    launched = playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
    try:
        yield launched
    finally:
        launched.close()


def log_ins_of(store: Store, *accounts: tuple[str, str]) -> LoginSessions:
    """A login with these accounts; the first is the owner's."""
    for name, password in accounts:
        store.accounts.add(name, hashed(password))
    return LoginSessions(Members(store, "no guests"))


@contextmanager
def files_wait_in(folder: Path) -> Iterator[None]:
    """Files on their way in and out of the page lie there; afterwards where they lay before."""
    files.close()
    before, files._folder = files._folder, folder
    try:
        yield
    finally:
        files.close()
        files._folder = before


@contextmanager
def serving(
    service: Any,
    account: tuple[str, str] | None = None,
    host: str = "127.0.0.1",
    log_ins: LoginSessions | None = None,
    public_url: str = "",
    before: Before | None = None,
) -> Iterator[str]:
    """The page over `service` on a free port of this machine; its address. `account`: of the owner, with a login."""
    log_ins = log_ins_of(service.store, account) if account else log_ins
    app = build_app(service, log_ins)
    address, _ = serve(app, log_ins, host, before, public_url=public_url)
    try:
        yield address
    finally:
        app.close(verbose=False)
        if log_ins:
            log_ins.close()


@dataclass
class Chat:
    """The page as a visitor sees it, and what visitors do over and over."""

    page: Page
    address: str
    foreign: list[str]
    """Requests that went anywhere but to the app."""

    def __post_init__(self) -> None:
        find = self.page.locator
        self.box = find("#hc-box textarea")
        self.live = find("#hc-live")  # the line above the box
        self.stop = find("#hc-stop")
        self.titles = find("#hc-list .hc-title")
        # Oldest first: the user's messages, feet of finished replies, texts of replies with that of the growing one
        self.questions = find(".hc-user")
        self.replies = find("#hc-chat .hc-foot")
        self.words = find("#hc-chat .hc-reply .hc-text")

    def open(self, path: str = "") -> None:
        """Load the page and wait until it answers."""
        self.page.goto(self.address + path)
        expect(self.page.locator("#hc-list nav")).to_have_count(1, timeout=PATIENCE_MS)  # folded where narrow

    def log_in(self, name: str, password: str) -> None:
        """Fill the form on the screen, and press its button; what it leads to is loaded afterwards."""
        self.page.get_by_label("Name").fill(name)
        self.page.get_by_label("Password").fill(password)
        with self.page.expect_navigation():
            self.press("Log in")

    def send(self, text: str) -> None:
        """Type and press Enter."""
        self.box.fill(text)
        self.box.press("Enter")

    def begin(self, text: str) -> None:
        """Send, and wait for the first words of a reply that a test's script makes slow."""
        self.send(text)
        expect(self.live).to_contain_text("tokens in")
        expect(self.page.locator("#hc-growing .hc-text")).not_to_be_empty()

    def press(self, name: str) -> None:
        """Click the button of that name."""
        self.page.get_by_role("button", name=name, exact=True).click()

    def new(self) -> None:
        """Begin another chat, by mouse."""
        self.page.locator("#hc-new").click()
        expect(self.page.locator("#hc-empty")).to_be_visible()
        expect(self.page.locator("#hc-send")).to_be_visible()

    def go_to(self, title: str) -> None:
        """Open a chat of the list, by mouse."""
        self.press(title)
        expect(self.page.locator("#hc-title")).to_have_text(title)

    def compare(self, on: bool = True) -> None:
        """Turn the switch of Compare."""
        self.page.locator("#hc-compare input").set_checked(on)
        expect(self.box).to_have_attribute("placeholder", "Message both…" if on else "Message…")

    def drop(self, place: str, *files: tuple[str, bytes]) -> None:
        """Drop files there, as from the machine's own windows."""
        self.page.evaluate(
            """([place, files]) => {
                const dataTransfer = new DataTransfer();
                for (const [name, data] of files)
                    dataTransfer.items.add(new File([Uint8Array.from(atob(data), (c) => c.charCodeAt(0))], name));
                for (const type of ['dragover', 'drop'])
                    document.querySelector(place).dispatchEvent(
                        new DragEvent(type, { dataTransfer, bubbles: true, cancelable: true }));
            }""",
            [place, [[name, base64.b64encode(raw).decode()] for name, raw in files]],
        )

    def ask(self, text: str, timeout_ms: float = PATIENCE_MS) -> str:
        """Send, wait for the end, and the reply's text as shown."""
        expect(self.page.locator("body[data-hc-to]")).to_have_count(0)  # on the way to another chat
        before = self.replies.count()
        self.send(text)
        expect(self.replies).to_have_count(before + 1, timeout=timeout_ms)
        self.idle(timeout_ms)
        return self.words.last.inner_text()

    def details(self) -> Locator:
        """Open the details of the last reply."""
        details = self.replies.last.locator("details.hc-details")
        details.locator("summary").click()
        return details.locator(".hc-all-facts")

    def menu(self, title: str, item: str) -> None:
        """Choose from the menu of a chat in the list, by mouse."""
        options = self.page.get_by_role("button", name=f"Options for {title}", exact=True)
        options.locator("xpath=ancestor::li[1]").hover()
        options.click()
        self.page.get_by_role("menuitem", name=item, exact=True).click()

    def view(self, title: str) -> None:
        """Open a panel, by mouse."""
        way = self.page.locator("#hc-links").get_by_role("button", name=title, exact=True)
        if not self.page.locator("#hc-sidebar.open").count():
            self.page.get_by_role("button", name="List of chats").click()
        way.click()
        expect(self.page.locator("#hc-title")).to_have_text(title)

    def idle(self, timeout_ms: float = PATIENCE_MS) -> None:
        """Wait until no reply is being written."""
        expect(self.page.locator("#hc-send")).to_be_visible(timeout=timeout_ms)
        expect(self.stop).to_be_hidden(timeout=timeout_ms)

    def until(self, true: Callable[[], bool]) -> None:
        """Wait for what cannot be seen on the page."""
        for _ in range(PATIENCE_MS // 50):
            if true():
                return
            self.page.wait_for_timeout(50)
        raise AssertionError("It did not become true.")


@cache
def _resting(browser: Browser) -> list[BrowserContext]:
    """Its contexts between two visitors. They hold the page's scripts, which a new one would fetch and compile."""
    return []


@contextmanager
def visiting(
    browser: Browser,
    address: str,
    width: int = 1280,
    height: int = 800,
    dark: bool = False,
    *,
    alone: bool = False,
) -> Iterator[Chat]:
    """A fresh visitor of the page at `address`. `alone`: nobody after them gets what they set, such as a clock."""
    kept = not alone and browser.browser_type.name == "chromium"
    context = _resting(browser).pop() if kept and _resting(browser) else browser.new_context()
    page = context.new_page()
    if kept:
        context.clear_cookies()
        session = context.new_cdp_session(page)
        session.send("Storage.clearDataForOrigin", {"origin": address.rstrip("/"), "storageTypes": "all"})
        session.detach()
    page.set_viewport_size({"width": width, "height": height})
    page.emulate_media(color_scheme="dark" if dark else "light")
    origin = urlsplit(address).netloc
    foreign: list[str] = []
    page.on("request", lambda r: None if _own(r.url, origin) else foreign.append(r.url))
    try:
        yield Chat(page, address, foreign)
    finally:
        if kept:
            for opened in context.pages:
                opened.close()
            context.clear_permissions()
            _resting(browser).append(context)
        else:
            context.close()


def _own(url: str, origin: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in ("data", "blob", "about") or parts.netloc == origin
