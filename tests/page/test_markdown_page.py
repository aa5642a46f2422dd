"""Replies in Markdown on the real page: how they look, and what is copied from them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.testing import browser as driving
from tests.testing.browser import Chat
from tests.testing.fake_service import FakeService

pytestmark = pytest.mark.browser


@pytest.fixture
def wide(chromium: Browser, server: tuple[FakeService, str], service: FakeService) -> Iterator[Chat]:
    """A visitor who may read the clipboard."""
    service.script.seconds = 0.2
    with driving.visiting(chromium, server[1]) as visitor:
        visitor.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        visitor.open()
        yield visitor
        assert visitor.foreign == []


def clipboard(page: Page) -> str:
    return str(page.evaluate("navigator.clipboard.readText()"))


EXACT = 'a\tb  \n\n  c\u00a0d\u200be\ufeff \U0001f600 e\u0301 <b> &amp; "q" \\\\ $x$\r\nCRLF\rCR\n\u2028\x0c\x7f \n\n'


def test_copy_gives_the_reply_byte_for_byte(wide: Chat, service: FakeService) -> None:
    service.script.reply = EXACT
    wide.ask("Copy?")
    wide.replies.last.get_by_role("button", name="Copy", exact=True).click()
    expect(wide.replies.last.get_by_text("Copied")).to_be_visible()
    assert clipboard(wide.page) == EXACT


def test_copy_gives_the_code_byte_for_byte(wide: Chat, service: FakeService) -> None:
    code = "\n\tif a < b && c:  \n\n    x = '\u00a0\u200b\U0001f600&lt;'  # e\u0301\n\n"
    service.script.reply = (
        f"Text\n\n- item\n\n  ```python\n{''.join(f'  {line}' for line in code.splitlines(True))}  ```\n"
    )
    wide.ask("Copy?")
    wide.words.last.locator(".hc-copy-code").click()
    expect(wide.words.last.get_by_text("Copied")).to_be_visible()
    assert clipboard(wide.page) == code
