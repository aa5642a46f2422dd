"""How every view looks in both themes and widths: once a night, compared with the pictures of the night before.

HIERCHAT_SHOTS names the folder of the pictures. What differs by more than a hundredth of its pixels is kept as
NAME.before.png beside the new one, and fails.
"""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, expect

from tests.page.chats import stored_chat
from tests.page.test_rendering import PLAN
from tests.testing import browser as driving
from tests.testing.browser import Chat
from tests.testing.fake_service import FakeService

pytestmark = [pytest.mark.browser, pytest.mark.large]
MOST_CHANGED = 0.01
PANELS = ("models", "insights", "comparisons", "settings")


def look(chat: Chat, name: str) -> None:
    """Nothing sticks out, and the picture is that of the night before, if there is one."""
    page = chat.page
    page.evaluate("document.fonts.ready")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
    if not (folder := os.environ.get("HIERCHAT_SHOTS")):
        return
    path, raw = Path(folder) / f"{name}.png", page.screenshot(animations="disabled", caret="hide")
    path.parent.mkdir(parents=True, exist_ok=True)
    before = path.read_bytes() if path.exists() else raw
    path.write_bytes(raw)
    old, new = (np.asarray(Image.open(io.BytesIO(one)).convert("L"), np.int16) for one in (before, raw))
    if old.shape == new.shape and (np.abs(old - new) > 32).mean() > MOST_CHANGED:
        path.with_suffix(".before.png").write_bytes(before)
        raise AssertionError(f"{name} looks different than in the night before: {path}")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)], ids=["wide", "narrow"])
def test_every_view(
    chromium: Browser,
    server: tuple[FakeService, str],
    service: FakeService,
    width: int,
    height: int,
    dark: bool,
) -> None:
    kind = f"{'dark' if dark else 'light'}-{width}"
    service.script.plan, service.script.seconds = PLAN, 0
    stored_chat(service.store, "Other", 2)
    with driving.visiting(chromium, server[1], width, height, dark) as chat:
        page = chat.page
        chat.open()
        look(chat, f"empty-{kind}")
        chat.ask("Write a function that reverses a string.")
        chat.replies.last.get_by_role("button", name="Sources").click()
        expect(page.locator(".hc-marked")).to_be_visible()
        look(chat, f"sources-{kind}")
        page.get_by_role("button", name="Chat settings").click()
        expect(page.get_by_label("System prompt")).to_be_visible()
        look(chat, f"drawer-{kind}")
        page.keyboard.press("Escape")
        page.locator("#hc-compare input").check()
        expect(page.locator("#hc-box textarea")).to_have_attribute("placeholder", "Message both…")
        chat.send("Both")
        expect(page.locator("#hc-verdict")).to_contain_text("Word for word the same")
        chat.idle()
        look(chat, f"comparison-{kind}")
        for panel in PANELS:
            chat.open(f"?view={panel}")
            expect(page.locator(f"#hc-panel-{panel}")).to_be_visible()
            look(chat, f"{panel}-{kind}")
