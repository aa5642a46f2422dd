"""Projects in a real browser: made, filled, begun with, deleted and brought back; and notes about the user."""

import json
from pathlib import Path

import pytest
from playwright.sync_api import APIResponse, Locator, Route, expect

from hierchat.store.records import ChatSettings, Project
from tests.page.stored import stored_chat
from tests.testing.browser import Chat
from tests.testing.fake_service import FakeService
from tests.testing.visitor import Visitor

HOSTILE = "<b>Garden</b>"


def inside(chat: Chat) -> Locator:
    """The chats of the project that is unfolded."""
    return chat.page.locator(".hc-project li .hc-title")


def project_menu(chat: Chat, item: str) -> None:
    chat.page.locator(".hc-project").hover()
    chat.page.locator(".hc-project > .hc-tools button").click()
    chat.page.get_by_role("menuitem", name=item).click()


@pytest.mark.browser
def test_a_project_is_made_filled_and_begun_with(visitor: Chat, service: FakeService) -> None:
    page, user = visitor.page, service.user
    warm = ChatSettings("Be kind.", {"temperature": 0.5, "seed": None})
    preset = service.presets.create(user, "Warm", warm)
    ids = {title: stored_chat(service.store, title, 1) for title in ("Roses", "Oaks")}
    visitor.open()
    visitor.press("New project")
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_be_visible()  # without a name
    dialog.get_by_label("Name").fill(HOSTILE)
    dialog.get_by_label("System prompt").fill("Speak of plants.")
    dialog.get_by_label("Model").select_option("Qwen3 0.6B")
    dialog.get_by_label("Preset").select_option("Warm")
    dialog.get_by_label("Name").press("Control+Enter")
    expect(page.locator(".hc-folder")).to_have_text(HOSTILE)
    (made,) = service.projects.all(user)
    assert made == Project(made.id, HOSTILE, "Speak of plants.", "Qwen3 0.6B", preset)

    visitor.menu("Roses", "Move to a project")
    dialog.get_by_role("button", name=HOSTILE).click()
    expect(inside(visitor)).to_have_text(["Roses"])
    visitor.menu("Roses", "Move to a project")
    dialog.get_by_role("button", name="No project").click()
    expect(inside(visitor)).to_have_count(0)
    assert service.chats.get(user, ids["Roses"]).project_id is None
    visitor.menu("Roses", "Move to a project")
    dialog.get_by_role("button", name=HOSTILE).click()
    expect(inside(visitor)).to_have_text(["Roses"])

    page.locator(".hc-new-inside").click()
    expect(page.locator("#hc-title")).to_have_text(f"New chat in {HOSTILE}")
    expect(page.locator("#hc-model input")).to_have_value("Qwen3 0.6B")
    visitor.ask("When do tulips bloom?")
    expect(inside(visitor)).to_have_count(2)
    settings = service.chats.settings(user, service.chats.find(user, "tulips", 5).conversations[0].id)
    assert (settings.system_prompt, settings.sampling["temperature"]) == ("Speak of plants.", 0.5)

    with page.expect_download() as fetched:
        project_menu(visitor, "Export as JSON")
    first, *chats = json.loads(Path(fetched.value.path()).read_text())
    assert (first["project"], first["begins_with"], len(chats)) == (HOSTILE, "Warm", 2)

    page.locator(".hc-folder").press("Delete")
    expect(page.locator(".hc-folder")).to_have_count(0)
    expect(visitor.titles).to_have_text(["Oaks"])
    page.locator("#hc-undo").get_by_role("button", name="Undo").click()
    expect(page.locator(".hc-folder")).to_have_text(HOSTILE)
    assert service.projects.get(user, made.id).chats == 2


def test_a_project_that_another_tab_deletes(service: FakeService) -> None:
    garden = service.projects.save(service.user, Project(0, "Garden"))
    page, other = Visitor(service), Visitor(service)
    page.press("hc_project", id=garden)
    page.press("hc_project_new", id=garden)
    assert page.says("hc-title") == "New chat in Garden"
    other.press("hc_project_delete", id=garden)
    page.look()
    assert "Garden" not in page.says("hc-list")
    assert page.says("hc-title") == "New chat"
    page.ask("Where are we?")
    assert [one.project_id for one in service.chats.find(service.user, "", 5).conversations] == [None]
    with pytest.raises(Exception, match="deleted in another tab"):
        service.projects.get(service.user, garden)


@pytest.mark.browser
def test_notes_that_are_typed_before_the_panel_was_filled_stay(chat: Chat, service: FakeService) -> None:
    held: list[tuple[Route, APIResponse]] = []
    chat.page.route("**/run/*", lambda route: held.append((route, route.fetch())), times=1)
    chat.view("Settings")
    notes = chat.page.locator("#hc-panel-settings .hc-notes textarea")
    notes.fill("I am a gardener.")
    chat.until(lambda: bool(held))
    ((route, answer),) = held
    route.fulfill(response=answer)  # with the notes as they were
    chat.until(lambda: service.users.notes(service.user) == "I am a gardener.")
    expect(notes).to_have_value("I am a gardener.")


@pytest.mark.browser
def test_notes_are_typed_and_left_out(chat: Chat, service: FakeService) -> None:
    page, user = chat.page, service.user
    chat.view("Settings")
    notes = page.locator("#hc-panel-settings .hc-notes textarea")
    notes.fill("I am a gardener.")
    chat.until(lambda: service.users.notes(user) == "I am a gardener.")
    chat.new()
    chat.ask("Hello")
    chat.press("Chat settings")
    drawer, wrong = page.locator("#hc-drawer"), list[str]()
    page.on("pageerror", lambda error: wrong.append(str(error)))
    expect(drawer.locator(".hc-notes textarea")).to_have_value("I am a gardener.")
    drawer.get_by_label("Tell the model my notes in this chat").uncheck()
    (here,) = service.chats.find(user, "", 5).conversations
    chat.until(lambda: not service.chats.settings(user, here.id).notes)
    drawer.locator(".hc-notes textarea").fill("x" * 5_000)
    expect(chat.live).to_contain_text("Notes have at most 4,000 characters")
    assert not wrong
    assert service.users.notes(user) == "I am a gardener."
