"""The switch for other programs in Settings, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

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
