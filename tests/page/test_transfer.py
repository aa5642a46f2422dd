"""Chats in and out of the page, in a real browser."""

from __future__ import annotations

import json
import re
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from hierchat.access.files import files
from tests.page.stored import stored_chat
from tests.testing import browser as driving
from tests.testing.browser import Chat
from tests.testing.fake_service import FakeService
from tests.texts.transfer.files import gpt_sums, saved, webui_chat

pytestmark = pytest.mark.browser


def waiting() -> list[Path]:
    """Files that wait for something."""
    return [path for path in files._process_folder().parent.glob("*/*/*") if path.is_file()]


def choose(chat: Chat, *paths: Path) -> None:
    if not chat.page.get_by_role("button", name="Choose files").is_visible():
        chat.view("Settings")
    with chat.page.expect_file_chooser() as chooser:
        chat.press("Choose files")
    chooser.value.set_files(paths)


def ended(chat: Chat) -> str:
    """How an import ended."""
    expect(chat.page.locator("#hc-transfer-state .hc-ended")).to_have_count(1, timeout=driving.PATIENCE_MS)
    return chat.page.locator("#hc-transfer-state").inner_text()


def titles(service: FakeService) -> list[str]:
    return [one.title for one in service.store.chats.find(service.user)]


def test_files_of_several_programs_come_in_once(chat: Chat, service: FakeService, tmp_path: Path) -> None:
    packed = tmp_path / "export.zip"
    with zipfile.ZipFile(packed, "w") as into:
        into.writestr(
            "conversations.json", json.dumps([gpt_sums(), {"title": "Broken", "mapping": {"a": 1}}])
        )
    choose(chat, packed, saved(tmp_path / "webui.json", [webui_chat()]))
    told = ended(chat)
    assert "2 chats imported, 1 could not be read." in told
    assert "1,234 tokens of your chats can draft for SmolLM2 135M." in told
    chat.page.get_by_text("What could not be read").click()
    expect(chat.page.locator("#hc-transfer-state li")).to_contain_text(
        ["export.zip, conversations.json, Broken: "]
    )
    assert sorted(titles(service)) == ["Colours", "Sums"]
    expect(chat.page.locator("#hc-list .hc-title")).to_have_count(2)
    assert waiting() == []
    choose(chat, tmp_path / "webui.json")
    expect(chat.page.locator("#hc-transfer-state")).to_contain_text("0 chats imported, 1 was here already.")
    assert len(titles(service)) == 2


def test_an_import_is_cancelled(
    chat: Chat, service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_in = service.store.transfer.import_chat

    def slowly(*given: Any) -> Any:
        time.sleep(0.1)
        return take_in(*given)

    monkeypatch.setattr(service.store.transfer, "import_chat", slowly)
    count = 2_000
    choose(
        chat,
        saved(tmp_path / "c.json", [gpt_sums(conversation_id=f"{number}") for number in range(count)]),
    )
    cancel = chat.page.locator("#hc-transfer-state").get_by_role("button", name="Cancel")
    expect(cancel).to_be_visible(timeout=driving.PATIENCE_MS)
    cancel.click()
    told = ended(chat)
    assert "Cancelled. What was imported stays, and the same file goes on from there." in told
    assert 0 < len(service.store.chats.find(service.user, limit=-1)) < count
    assert waiting() == []


def test_chats_go_out_one_by_one_and_all_together_and_come_in_again(
    chat: Chat, service: FakeService, tmp_path: Path
) -> None:
    ids = [stored_chat(service.store, title, 2) for title in ("A/B: test", "B", "C")]
    service.store.chats.archive(service.user, ids[1], True)
    chat.open()
    for kind, name in (("Markdown", r"\d{4}-\d\d-\d\d A B test\.md"), ("JSON", r"A B test\.json")):
        with chat.page.expect_download() as download:
            chat.menu("A/B: test", f"Export as {kind}")
        text = Path(download.value.path()).read_text()
        assert re.fullmatch(name, download.value.suggested_filename)
        if kind == "Markdown":
            assert text.startswith("# A/B: test\n")
        else:
            assert [one["title"] for one in json.loads(text)] == ["A/B: test"]
        chat.until(lambda: waiting() == [])
        again = chat.page.request.get(download.value.url)
        assert (again.status, again.headers["cache-control"]) == (404, "no-store")
    chat.view("Settings")
    with chat.page.expect_download() as download:
        chat.press("Export all as Markdown")
    with zipfile.ZipFile(download.value.path()) as packed:
        assert len(packed.namelist()) == 3
    with chat.page.expect_download() as download:
        chat.press("Export all as JSON")
    expect(chat.page.locator("#hc-transfer-state")).to_contain_text("3 chats exported.")
    out = tmp_path / download.value.suggested_filename
    download.value.save_as(out)
    choose(chat, out)
    assert "0 chats imported, 3 were here already." in ended(chat)
