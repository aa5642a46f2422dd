"""A chat with tools in a real browser: a call waits for its user, its result stands folded, and all of it is text."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from hierchat.store import Store
from tests.chat.test_calling import READ, Talk
from tests.chat.test_tools import files, folder, name  # noqa: F401
from tests.testing import browser as driving

MARKUP = "<script>window.harm = 1</script><b>bold</b> **Markdown** <|im_end|>"


@pytest.mark.browser
def test_a_call_is_allowed_and_its_result_is_folded(
    chromium: Browser,
    folder: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hierchat.chat.titles.IDLE_SECONDS", float("inf"))
    (folder / "files" / "notes.txt").write_text(MARKUP, encoding="utf-8")
    name(folder, files=files(folder), gone={"command": "/no/such/program"})
    with Store.open(folder / "chat.db") as store:
        service = Talk(store, f"I look.\n{READ}", "That is all.", READ).service
        with driving.serving(service) as address, driving.visiting(chromium, address) as chat:
            page = chat.page
            chat.open("?view=settings")
            switch = page.get_by_role("switch", name="files")
            expect(switch).to_have_text("Off")
            switch.click()
            expect(switch).to_have_text("On")
            expect(page.get_by_role("switch", name="gone")).to_have_text("Off")
            expect(page.locator("#hc-tool-servers [aria-checked=true]")).to_have_count(1)
            for server, tried in (("gone", "No such file"), ("files", "Read a text file of the folder.")):
                page.get_by_role("group", name=server).get_by_role("button", name="Try").click()
                expect(page.locator("#hc-tools-tried")).to_contain_text(tried)
            chat.new()
            chat.press("Chat settings")
            page.get_by_label("The model may call tools").check()
            chat.press("Close the settings")
            chat.send("What do my notes say?")
            call = page.get_by_role("group", name="read_file")
            expect(call.locator("pre").first).to_contain_text('"path": "notes.txt"')
            expect(page.locator("#hc-thread")).not_to_contain_text("<tool_call>")
            chat.press("Once")
            expect(chat.words.last).to_have_text("That is all.")
            chat.idle()
            expect(chat.replies).to_have_count(1)
            call.get_by_text("Result").click()
            expect(call.locator("pre").last).to_have_text(MARKUP)
            assert page.evaluate("window.harm") is None
            chat.send("Once more?")
            expect(page.get_by_role("button", name="In this chat")).to_be_visible()
            chat.stop.click()
            expect(call.last).to_contain_text("stopped")
            assert chat.foreign == []
        service.close()
