"""Chats in and out of the page."""

import json
import os
import re
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from hierchat.access.files import files
from hierchat.page.panels import settings_panel
from tests.page.stored import stored_chat
from tests.testing import browser as driving
from tests.testing.browser import Chat
from tests.testing.fake_service import FakeService
from tests.testing.visitor import Visitor
from tests.texts.transfer.files import gpt_sums, webui_chat


def waiting() -> list[Path]:
    """Files that wait for something."""
    return [
        Path(folder, name) for folder, _, names in os.walk(files._process_folder().parent) for name in names
    ]


@pytest.fixture
def page(service: FakeService, tmp_path: Path) -> Iterator[Visitor]:
    with driving.files_wait_in(tmp_path / "transfer"):
        yield Visitor(service)


def test_files_of_several_programs_come_in_once(page: Visitor, service: FakeService, tmp_path: Path) -> None:
    broken = {"title": "Broken", "mapping": {"a": 1}}
    with zipfile.ZipFile(tmp_path / "export.zip", "w") as into:
        into.writestr("conversations.json", json.dumps([gpt_sums(), broken]))
    webui = json.dumps([webui_chat()]).encode()
    packed = page.ticket("export.zip", (tmp_path / "export.zip").read_bytes())
    page.press("hc_import", tickets=[packed, page.ticket("webui.json", webui)])
    told = page.says("hc-transfer-state")
    for part in ("2 chats imported, 1 could not be read.", "export.zip, conversations.json, Broken: "):
        assert part in told
    assert sorted(one.title for one in service.store.chats.find(service.user)) == ["Colours", "Sums"]
    assert "Colours" in page.says("hc-list")
    assert waiting() == []


def test_an_import_is_cancelled(page: Visitor, service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    def each(steps: Iterable[Any]) -> Iterator[Any]:
        for count, step in enumerate(steps):
            if count == 3:
                page.press("hc_import_stop")
            yield step

    monkeypatch.setattr(settings_panel, "_now_and_then", each)
    many = json.dumps([gpt_sums(conversation_id=f"{number}") for number in range(20)]).encode()
    page.press("hc_import", tickets=[page.ticket("c.json", many)])
    told = page.says("hc-transfer-state")
    assert "Cancelled. What was imported stays, and the same file goes on from there." in told
    assert 0 < len(service.store.chats.find(service.user, limit=-1)) < 20
    assert waiting() == []


@pytest.mark.browser
def test_chats_go_out_one_by_one_and_all_together_and_come_in_again(
    visitor: Chat, service: FakeService, tmp_path: Path
) -> None:
    ids = [stored_chat(service.store, title, 2) for title in ("A/B: test", "B", "C")]
    service.store.chats.archive(service.user, ids[1], True)
    visitor.open()
    for kind, name in (("Markdown", r"\d{4}-\d\d-\d\d A B test\.md"), ("JSON", r"A B test\.json")):
        with visitor.page.expect_download() as download:
            visitor.menu("A/B: test", f"Export as {kind}")
        assert "A/B: test" in Path(download.value.path()).read_text()
        assert re.fullmatch(name, download.value.suggested_filename)
        visitor.until(lambda: waiting() == [])
        again = visitor.page.request.get(download.value.url)
        assert (again.status, again.headers["cache-control"]) == (404, "no-store")
    visitor.view("Settings")
    with visitor.page.expect_download() as download:
        visitor.press("Export all as Markdown")
    with zipfile.ZipFile(download.value.path()) as packed:
        assert len(packed.namelist()) == 3
    with visitor.page.expect_download() as download:
        visitor.press("Export all as JSON")
    expect(visitor.page.locator("#hc-transfer-state")).to_contain_text("3 chats exported.")
    out = tmp_path / download.value.suggested_filename
    download.value.save_as(out)
    with visitor.page.expect_file_chooser() as chooser:
        visitor.press("Choose files")
    chooser.value.set_files(out)
    ended = visitor.page.locator("#hc-transfer-state .hc-ended")
    expect(ended).to_contain_text("0 chats imported, 3 were here already.", timeout=driving.PATIENCE_MS)
