"""The Settings view: what is kept, documents, forgetting."""

import re
from collections.abc import Callable
from pathlib import Path
from threading import Event
from time import sleep

import pytest
from playwright.sync_api import expect

from hierchat import connections
from hierchat.checks.prove import NAMES, Line, Proof, Proving
from hierchat.language import spoken
from hierchat.page.panels.settings_panel import _drawn
from hierchat.store import Store
from tests.page.stored import stored_chat
from tests.testing.browser import Chat
from tests.testing.fake_service import FakeService
from tests.testing.visitor import Visitor
from tests.testing.waiting import until


def test_what_is_chosen_is_kept_and_a_copy_is_made(
    service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIERCHAT_DATA", str(tmp_path))
    monkeypatch.setattr(connections, "_made", {})
    stored_chat(service.store, "Story", 2)
    page, users, keys = Visitor(service, view="settings"), service.store.users, service.store.keys
    assert page.value("hc-drafts-from") == "all"
    page.give("hc-drafts-from", "none", "input")
    assert users.drafts_from(service.user) == "none"
    assert Visitor(service, view="settings").value("hc-drafts-from") == "none"
    keys.add("editor <b>", history=True)
    for access in ("keys", "off"):
        page.give("hc-programs", access, "input")
        assert keys.access() == access
        shown = Visitor(service, view="settings")
        assert shown.value("hc-programs") == access
        for part in ("editor <b>", "/v1 at its end"):
            assert (part in shown.says("hc-program-keys")) is (access == "keys")
    assert "No connections to other machines" in page.says("hc-connections")
    connections.note("hub.example <b>", "hierchat.models.fetch.hub")
    shown = Visitor(service, view="settings").says("hc-connections")
    assert "hub.example <b> 1 time, asked for by hierchat.models.fetch.hub" in shown
    connections.note("the package index of pip", "hierchat.models.fetch.pypi")
    with spoken("de"):
        assert "der Paketindex von pip" in _drawn.connections(connections.attempts())
    until(lambda: re.search(r"Chats and what was learned \S+ \d+ KB", page.says("hc-places")))
    page.click("hc-backup")
    assert "and checked" in page.says("hc-settings-told")
    (copy,) = (tmp_path / "backups").glob("*.db")
    with Store.open(copy) as store:
        assert [c.title for c in store.chats.find(store.users.ensure("local"))] == ["Story"]


@pytest.mark.browser
def test_documents_are_dropped_and_chosen_and_forgetting_everything_asks_twice(
    visitor: Chat, service: FakeService
) -> None:
    stored_chat(service.store, "Secret plans", 2)
    stored_chat(service.store, "Other", 1)
    visitor.open()
    page = visitor.page
    state = page.locator("#hc-texts-state")
    visitor.press("Notes, code and exported chats of yours")
    expect(page.locator("#hc-texts-form .hc-texts-drop")).to_be_visible()
    visitor.drop("#hc-texts-form .hc-texts-drop", ("letter.txt", b"Dear reader"), ("letter.txt", b"Another"))
    expect(state).to_contain_text("Reading letter…")
    assert service.texts.dropped == {"letter.txt": b"Dear reader", "letter (2).txt": b"Another"}
    visitor.press("Stop")
    expect(state).to_have_text("")
    with page.expect_file_chooser() as chooser:
        page.locator("#hc-texts-form").get_by_role("button", name="Choose texts…").click()
    chooser.value.set_files([{"name": "a.md", "mimeType": "text/plain", "buffer": b"# A"}])
    expect(state).to_contain_text("Reading a…")
    assert service.texts.dropped == {"a.md": b"# A"}

    dialog = page.get_by_role("dialog")
    page.get_by_role("button", name="Remove notes").click()
    expect(dialog).to_contain_text("Your own files stay where they are. It frees 3 MB.")
    dialog.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Remove notes").click()
    dialog.get_by_role("button", name="Remove").click()
    expect(page.locator("#hc-texts-said")).to_contain_text("notes drafts no more.")
    for answer in ("no", "forget"):
        visitor.press("Forget everything…")
        expect(dialog).to_contain_text("2 chats with 6 messages")
        assert len(service.store.chats.find(service.user)) == 2
        visitor.press("Go on")
        dialog.get_by_role("textbox").fill(answer)
        visitor.press("Delete")
        expect(dialog).to_have_count(0)
    expect(visitor.live).to_contain_text("Deleted for good: 2 chats with 6 messages")
    expect(page.locator("#hc-list")).to_contain_text("Your chats will appear here.")
    visitor.new()
    visitor.ask("A new beginning")


def test_the_promises_are_checked_in_the_background_and_the_last_result_stays(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, named = Event(), []

    def proved(name: str | None, tell: Callable[[str], object]) -> Proof:
        tell("kills: 2 of 5")
        named.append(name)
        assert go_on.wait(30)
        lines = [Line(one, one != "Nothing leaves", f"about {one}") for one in NAMES]
        return Proof("tiny", tuple(lines), 1.0)

    monkeypatch.setattr("hierchat.checks.prove.prove", proved)
    page = Visitor(service, view="settings")
    assert "two minutes" in page.says("hc-proof")
    page.click("hc-prove")
    while not named:
        sleep(0.01)
    assert "Checking… kills: 2 of 5" in Visitor(service, view="settings").says("hc-proof")
    page.click("hc-prove")  # one run at a time
    go_on.set()
    while "Checking" in (shown := Visitor(service, view="settings").says("hc-proof")):
        sleep(0.05)
    assert "Not proved (tiny," in shown
    assert "Nothing leaves Broken: about Nothing leaves" in shown
    last = Proving(service.data.path.parent / "proof.json").last
    assert last
    assert not last.kept
    assert named == [service.model_status.name]


def test_reading_ahead_can_be_switched_off(service: FakeService) -> None:
    page = Visitor(service, view="settings")
    switch = "Opened chats and attached files are read before you send, while nobody waits"
    assert page.value(switch) is True
    page.give(switch, False, "input")
    assert not service.users.chosen(service.user, "reads_ahead", True)
    assert Visitor(service, view="settings").value(switch) is False
