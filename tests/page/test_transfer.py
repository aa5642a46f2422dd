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


def test_a_file_without_chats_says_what_can_be_read(chat: Chat, service: FakeService, tmp_path: Path) -> None:
    strange = tmp_path / "<b>notes.json"
    strange.write_text('{"notes": [1, 2]}')
    choose(chat, strange)
    assert "No chat was found. What can be read is ChatGPT's conversations.json" in ended(chat)
    (tmp_path / "damaged.zip").write_bytes(b"PK\3\4" + b"\0" * 400)
    saved(tmp_path / "chats.json", [gpt_sums()])
    choose(chat, tmp_path / "damaged.zip", tmp_path / "chats.json")
    expect(chat.page.locator("#hc-transfer-state")).to_contain_text("1 chat came in")
    assert waiting() == []
    assert titles(service) == ["Sums"]


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


def test_a_file_is_dropped(chat: Chat, service: FakeService) -> None:
    chat.view("Settings")
    chat.page.locator(".hc-drop").evaluate(
        """(place, text) => {
            const carried = new DataTransfer();
            carried.items.add(new File([text], 'chats.json', { type: 'application/json' }));
            for (const type of ['dragover', 'drop']) {
                place.dispatchEvent(new DragEvent(type, { dataTransfer: carried, bubbles: true, cancelable: true }));
            }
        }""",
        json.dumps([gpt_sums()]),
    )
    assert "1 chat came in." in ended(chat)
    assert titles(service) == ["Sums"]


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


def test_the_panel_is_narrow(
    chromium: Browser, server: tuple[FakeService, str], service: FakeService
) -> None:
    with driving.visiting(chromium, server[1], 390, 844, dark=True) as chat:
        chat.open()
        chat.page.wait_for_timeout(600)
        chat.view("Settings")
        panel = chat.page.get_by_role("region", name="Import and export")
        panel.scroll_into_view_if_needed()
        chat.page.wait_for_timeout(300)
        assert panel.evaluate("e => e.scrollWidth - e.clientWidth") <= 0
        chat.shot("transfer-narrow")
