"""The switch for other programs in Settings, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.testing import browser as driving
from tests.testing.browser import Chat
from tests.testing.fake_service import FakeService

pytestmark = pytest.mark.browser


@pytest.fixture(autouse=True)
def _no_keys(service: FakeService) -> Iterator[None]:
    yield
    service.store.keys.set_access("off")
    for key in service.store.keys.all():
        service.store.keys.remove(key.name)


def test_other_programs_are_let_in_and_shut_out(chat: Chat, service: FakeService) -> None:
    service.store.keys.add("editor <b>", history=True)
    chat.open("?view=settings")
    page = chat.page
    keys = page.locator("#hc-program-keys")
    choice = page.locator("#hc-programs")
    no, keyed = choice.get_by_role("radio").nth(0), choice.get_by_role("radio").nth(1)
    expect(no).to_be_checked()
    expect(keys).not_to_contain_text("editor")
    keyed.check()
    expect(keys).to_contain_text("editor <b>")
    expect(keys).to_contain_text("/v1 at its end")
    assert service.store.keys.access() == "keys"
    page.reload()
    expect(keyed).to_be_checked()
    no.check()
    expect(keys).not_to_contain_text("editor")
    assert service.store.keys.access() == "off"


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_it_looks_as_the_rest(
    chromium: Browser, server: tuple[FakeService, str], service: FakeService, width: int, dark: bool
) -> None:
    service.store.keys.set_access("keys")
    service.store.keys.add("editor")
    with driving.visiting(chromium, server[1], width, 844, dark) as chat:
        chat.open("?view=settings")
        keys = chat.page.locator("#hc-program-keys")
        expect(keys).to_contain_text("editor")
        keys.scroll_into_view_if_needed()
        assert chat.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        chat.shot(f"programs-{width}{'-dark' if dark else ''}")
