"""Chats in and out of the page, in a real browser."""

from __future__ import annotations

import json
import re
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from hierchat.access.files import files
from tests.page.chats import stored_chat
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
        chat.page.get_by_role("button", name="Choose files").click()
    chooser.value.set_files(paths)


def ended(chat: Chat) -> str:
    """How an import ended."""
    expect(chat.page.locator("#hc-transfer-state .hc-ended")).to_have_count(1, timeout=driving.PATIENCE_MS)
    return chat.page.locator("#hc-transfer-state").inner_text()


def titles(service: FakeService) -> list[str]:
    return [one.title for one in service.store.chats.find(service.store.users.ensure("local"))]


def test_files_of_several_programs_come_in_once(chat: Chat, service: FakeService, tmp_path: Path) -> None:
    packed = tmp_path / "export.zip"
    with zipfile.ZipFile(packed, "w") as into:
        into.writestr(
            "conversations.json", json.dumps([gpt_sums(), {"title": "Broken", "mapping": {"a": 1}}])
        )
    choose(chat, packed, saved(tmp_path / "webui.json", [webui_chat()]))
    told = ended(chat)
    assert "2 chats came in, 1 could not be read." in told
    assert "1,234 tokens of your chats can draft for SmolLM2 135M." in told
    chat.page.get_by_text("What could not be read").click()
    expect(chat.page.locator("#hc-transfer-state li")).to_contain_text(
        ["export.zip, conversations.json, Broken: "]
    )
    chat.shot("imported")
    assert sorted(titles(service)) == ["Colours", "Sums"]
    expect(chat.page.locator("#hc-list .hc-title")).to_have_count(2)
    assert waiting() == []
    choose(chat, tmp_path / "webui.json")
    expect(chat.page.locator("#hc-transfer-state")).to_contain_text("0 chats came in, 1 was here already.")
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
    chat.shot("importing")
    cancel.click()
    told = ended(chat)
    assert "You cancelled it; what came in stays, and the same file goes on from there." in told
    assert 0 < len(service.store.chats.find(service.store.users.ensure("local"), limit=-1)) < count
    assert waiting() == []


@pytest.mark.parametrize("kind", ["Markdown", "JSON"])
def test_one_chat_goes_out_from_its_menu(chat: Chat, service: FakeService, kind: str) -> None:
    for title in ("A/B: test", "Other"):
        stored_chat(service.store, title, 1)
    chat.open()
    with chat.page.expect_download() as download:
        chat.menu("A/B: test", f"Export as {kind}")
    text = Path(download.value.path()).read_text()
    if kind == "Markdown":
        assert re.fullmatch(r"\d{4}-\d\d-\d\d A B test\.md", download.value.suggested_filename)
        assert text.startswith("# A/B: test\n")
    else:
        assert download.value.suggested_filename == "A B test.json"
        assert [one["title"] for one in json.loads(text)] == ["A/B: test"]
    chat.page.wait_for_timeout(300)
    assert waiting() == []
    again = chat.page.request.get(download.value.url)
    assert (again.status, again.headers["cache-control"]) == (404, "no-store")
    with chat.page.expect_download():  # the same once more is another file
        chat.menu("A/B: test", f"Export as {kind}")


def test_all_chats_go_out_and_come_in_again(chat: Chat, service: FakeService, tmp_path: Path) -> None:
    user = service.store.users.ensure("local")
    ids = [stored_chat(service.store, title, 2) for title in ("A", "B", "C")]
    service.store.chats.archive(user, ids[0], True)
    chat.open()
    chat.view("Settings")
    with chat.page.expect_download() as download:
        chat.page.get_by_role("button", name="Export all as Markdown").click()
    with zipfile.ZipFile(download.value.path()) as packed:
        assert len(packed.namelist()) == 3
    with chat.page.expect_download() as download:
        chat.page.get_by_role("button", name="Export all as JSON").click()
    expect(chat.page.locator("#hc-transfer-state")).to_contain_text("3 chats exported.")
    chat.shot("exported")
    out = tmp_path / download.value.suggested_filename
    download.value.save_as(out)
    choose(chat, out)
    assert "0 chats came in, 3 were here already." in ended(chat)


def test_strangers_fetch_nothing(server: tuple[FakeService, str], tmp_path: Path, chromium: Browser) -> None:
    """A ticket is of its user; another site's page can neither fetch nor send."""
    before = waiting()
    path = files.place("chats.json")
    path.write_text("[]")
    ticket = files.hold(path, "me")
    page = chromium.new_page()
    try:
        address = server[1].rstrip("/")
        assert page.request.get(f"{address}/transfer/out/{ticket}").status == 404
        assert page.request.get(f"{address}/transfer/in").status in (404, 405)
        stranger = {"Origin": "https://example.org"}
        assert page.request.post(f"{address}/transfer/in", data="[]", headers=stranger).status == 403
        assert page.request.get(f"{address}/gradio_api/file={path}").status in (403, 404)
    finally:
        page.close()
    assert set(waiting()) == {*before, path}
    files.remove(files.take(ticket, "me"))
