"""Documents of a chat: dropped in its settings, quoted by a reply, opened from it, removed."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, expect

from hierchat.store.records import Project
from tests.testing import browser as driving
from tests.testing.browser import Chat
from tests.testing.fake_service import FakeService
from tests.testing.office_files import docx
from tests.testing.visitor import Visitor

RULES = docx("# Quiet", "Quiet after ten &lt;b&gt;o'clock&lt;/b&gt;, [2](http://x).", "# Pets", "No dogs.")
NOTES = ("# Parking\nBehind the **house** it is quiet.\n" + "Long line of notes. " * 30).encode()
REPLY = "After ten [1, 2]. Not `[1]`, not [7].\n\n    [1]\n"
NAMED = "a document with a long name of many words"


def rows(chat: Chat) -> Locator:
    return chat.page.locator("#hc-documents .hc-texts li")


def drop(chat: Chat, *files: tuple[str, bytes]) -> None:
    """Open the chat's settings, drop files there, and wait until they are read."""
    chat.press("Chat settings")
    before = rows(chat).count()
    chat.drop("#hc-documents .hc-texts-drop", *files)
    expect(rows(chat)).to_have_count(before + len(files))
    expect(chat.page.locator("#hc-documents [data-act=hc_documents_stop]")).to_have_count(0)


@pytest.mark.browser
def test_a_reply_quotes_what_was_dropped_and_all_fits_a_narrow_screen(
    chromium: Browser, server: tuple[FakeService, str], service: FakeService
) -> None:
    with driving.visiting(chromium, server[1], 390, 844) as chat:
        chat.open()
        drop(chat, ("rules.docx", RULES), (f"{NAMED}.md", NOTES))
        said = rows(chat).locator("span").all_inner_texts()
        assert [row.split(" · ")[1] for row in said] == ["1 passage", "2 passages"]
        chat.drop("#hc-documents .hc-texts-drop", ("broken.docx", RULES[:300]))
        expect(chat.page.locator("#hc-documents .hc-error")).to_contain_text("broken.docx: it is damaged")
        chat.press("Close the settings")
        service.script.reply = REPLY
        chat.ask("Quiet after ten, or behind the house?")
        expect(chat.page.locator(".hc-thought")).to_have_count(0)  # both passages are named
        cited = chat.words.last.locator("button")
        assert cited.all_inner_texts() == ["1", "2", "Copy"]
        chat.words.last.get_by_role("button", name="rules.docx, Quiet").click()
        passage = chat.page.locator(".hc-cited").get_by_role("region")
        expect(passage).to_have_text("Quiet after ten <b>o'clock</b>, [2](http://x).")
        expect(passage).to_be_in_viewport()
        assert passage.locator("*").count() == 0
        named = [label[4:] for label in chat.page.locator(".hc-cited > button").all_inner_texts()]
        assert sorted(named) == [f"{NAMED}.md, Parking", "rules.docx, Quiet"]
        assert chat.page.evaluate("document.documentElement.scrollWidth") <= 390
        chat.page.reload()
        expect(cited).to_have_count(3)
        chat.press("Chat settings")
        chat.press("Remove rules.docx")
        chat.page.locator("dialog").get_by_role("button", name="Remove").click()
        expect(rows(chat)).to_have_count(1)
        expect(cited).to_have_count(2)  # what is gone is a number again
        chat.press("Close the settings")
        service.script.reply = "Behind the house it is quiet."
        chat.ask("Is it quiet behind the house?")
        expect(chat.words.last.locator(".hc-rests")).to_have_count(1)
        copy = chat.replies.last.locator("[data-act=hc_copy]")
        # The text stays as the model wrote it.
        expect(copy).to_have_attribute("data-text", service.script.reply)


def test_what_cannot_be_read_and_a_path(service: FakeService, tmp_path: Path) -> None:
    page = Visitor(service)
    page.press("hc_documents_add", text="nowhere")
    assert "Type the whole path of a file or folder" in page.says("hc-documents")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.md").write_bytes(NOTES)
    page.press("hc_documents_add", text=str(tmp_path / "folder"))
    assert service.documents.readings[service.user].ended.wait(20)
    page.tick()
    assert "· 1 passage" in page.says("hc-documents")
    page.press("hc_new")
    assert "· 1 passage" not in page.says("hc-documents")
    assert len(service.store.chats.find(service.user)) == 1


def test_the_page_of_a_project_shows_its_instructions_files_and_chats(
    service: FakeService, tmp_path: Path
) -> None:
    garden = service.projects.save(service.user, Project(0, "Garden", "Speak of <plants>."))
    inside = service.chats.create(service.user, incognito=False, project=garden)
    service.chats.rename(service.user, inside, "Roses")
    page = Visitor(service)
    assert page.says("hc-project-page") == ""
    page.press("hc_project_new", id=garden)
    for part in ("Instructions Speak of <plants>.", "Files", "Chats Roses"):
        assert part in page.says("hc-project-page")
    page.press("hc_project_files", text="a.md", tickets=[page.ticket("a.md", NOTES)])
    assert service.documents.readings[service.user].ended.wait(20)
    page.tick()
    assert "a.md" in page.says("hc-project-page")
    (stored,) = service.documents.listed(service.user, None, garden)
    assert stored.in_project
    assert page.says("hc-title") == "New chat in Garden"  # the next message begins a chat, not the file
    assert service.projects.get(service.user, garden).chats == 1
    page.press("hc_open", id=inside)
    assert page.says("hc-project-page") == ""
