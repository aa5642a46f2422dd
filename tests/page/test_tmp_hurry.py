import re
import threading
import time

import pytest
from playwright.sync_api import expect

from tests.page.stored import stored_chat
from tests.page.test_list import IN_A_HURRY

pytestmark = pytest.mark.browser


def test_stress(chat, service):
    ids = {t: stored_chat(service.store, t, 1) for t in ("One", "Two", "Three")}
    chat.open()
    page = chat.page
    stop = threading.Event()

    def spam():
        while not stop.is_set():
            service.changes.notify(service.user, ids["Three"])
            service.changes.notify(service.user, ids["One"])
            time.sleep(0.05)

    page.evaluate("setInterval(() => {}, 10)")
    threading.Thread(target=spam, daemon=True).start()
    bad = []
    for n in range(25):
        page.evaluate(IN_A_HURRY, ["One", "Two", "Three"])
        expect(page.locator("#hc-title")).to_have_text("Three")
        expect(page).to_have_url(re.compile(rf"\?c={ids['Three']}$"))
        page.wait_for_timeout((n * 137) % 1100)
        page.evaluate(IN_A_HURRY, ["Models", "Insights", "One", "Settings"])
        expect(page.locator("#hc-title")).to_have_text("Settings")
        expect(page).to_have_url(re.compile(r"\?view=settings$"))
        page.go_back()
        try:
            expect(page.locator("#hc-title")).to_have_text("Three", timeout=5000)
        except AssertionError:
            bad.append((n, page.locator("#hc-title").inner_text(), page.url))
    stop.set()
    assert bad == []
