"""Files beside the message: chosen, dropped, pasted, refused, sent, shown, kept over a reload."""

import base64
import re
import secrets
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

from hierchat.chat.spare_time import NextQuestion
from hierchat.page.page_sessions import KeptFiles
from hierchat.page.screen import Attached
from hierchat.store.records import Attachment
from hierchat.texts.attachments import MOST_BYTES
from tests.testing import browser as driving
from tests.testing.browser import Chat
from tests.testing.fake_service import FakeService
from tests.testing.pdfs import pdf
from tests.testing.visitor import Visitor

NOTES = b"# Notes\n\n<b>not bold</b> and `code`\n"
CODE = b"def f():\n    return 1\n"


def files(chat: Chat) -> Locator:
    return chat.page.get_by_role("list", name="Attached files").get_by_role("listitem")


def choose(chat: Chat, **given: bytes) -> None:
    """By the button; a name's last underscore stands for its dot."""
    with chat.page.expect_file_chooser() as chooser:
        chat.press("Attach files")
    chooser.value.set_files(
        [
            {"name": ".".join(name.rsplit("_", 1)), "mimeType": "", "buffer": raw}
            for name, raw in given.items()
        ]
    )


def paste(chat: Chat, text: str) -> None:
    chat.page.evaluate(
        """(text) => {
            const data = new DataTransfer();
            data.setData('text/plain', text);
            document.querySelector('#hc-box textarea').dispatchEvent(
                new ClipboardEvent('paste', { clipboardData: data, bubbles: true, cancelable: true }));
        }""",
        text,
    )


def stored(service: FakeService) -> list[list[str]]:
    """Names of the files of each question of the newest chat."""
    messages = service.store.messages.path(service.user, service.store.chats.find(service.user)[0].id)
    of = service.store.messages.attachments
    return [[file.name for file in of(service.user, one.id)] for one in messages if one.role == "user"]


READ = re.compile("bytes|[kKM]B")
"""The size of a file, which stands beside its name once it is read."""
FIRST_IS_SLOW = """() => {
    const read = FileReader.prototype.readAsDataURL;
    FileReader.prototype.readAsDataURL = function (file) {
        FileReader.prototype.readAsDataURL = read;
        setTimeout(() => this.readAsDataURL(file), 1500);
    };
}"""
"""The browser reads the first file last."""


@pytest.mark.browser
def test_files_are_attached_and_pasted_sent_in_order_shown_and_stay_with_their_chat(
    chat: Chat, service: FakeService
) -> None:
    uploads: list[str] = []  # what is attached never becomes a file, so that no address leads to it
    chat.page.on("request", lambda request: uploads.append(request.url) if "/upload" in request.url else None)
    choose(chat, notes_md=NOTES, code_py=CODE)
    expect(files(chat)).to_contain_text(["notes.md", "code.py"])
    expect(files(chat).first).to_contain_text("bytes")
    expect(chat.box).to_be_focused()
    chat.drop("#hc-main", ("report.pdf", pdf("A page of the report")))
    expect(files(chat).nth(2)).to_contain_text(READ, timeout=driving.PATIENCE_MS)
    names = ["notes.md", "code.py", "report.pdf"]
    chat.until(lambda: [file.name for file in service.read[-1].files] == names)
    chat.press("Remove code.py")
    expect(files(chat)).to_have_count(2)
    chat.page.evaluate(FIRST_IS_SLOW)
    choose(chat, slow_md=CODE, quick_py=CODE)
    chat.ask("What do they say?")  # and waits for the slow one
    expect(files(chat)).to_have_count(0)
    sent = chat.page.locator(".hc-sent button")
    text = chat.page.get_by_role("region", name="Text of notes.md")
    sent.first.click()
    expect(text).to_have_text(NOTES.decode())
    assert text.inner_text() == NOTES.decode()
    sent.first.click()
    expect(text).to_have_count(0)
    sent.nth(1).click()
    expect(chat.page.get_by_role("region", name="Text of report.pdf")).to_contain_text("A page of the report")
    assert stored(service) == [["notes.md", "report.pdf", "slow.md", "quick.py"]]
    assert uploads == []

    open_one = service.store.chats.find(service.user)[0].id
    chat.new()
    chat.until(lambda: service.read[-1] == NextQuestion(service.user, None, None, []))
    expect(chat.page).not_to_have_url(re.compile("c="))  # Back would lead past the chat
    chat.page.go_back()
    expect(sent).to_have_count(4)
    chat.until(lambda: service.read[-1].chat == open_one)
    chat.new()
    paste(chat, "short")
    assert files(chat).count() == 0
    long = "A line that was pasted.\n" * 300
    chat.box.fill("About this: ")
    paste(chat, long)
    expect(files(chat)).to_contain_text("Pasted text")
    chat.press("Insert as text")
    expect(files(chat)).to_have_count(0)
    expect(chat.box).to_have_value("About this: " + long)
    chat.box.fill("")
    paste(chat, long)
    expect(files(chat)).to_have_count(1)
    chat.box.press("Enter")  # a file alone is a message
    expect(chat.replies).to_have_count(1)
    expect(chat.page.locator("#hc-title")).to_have_text("Pasted text")
    choose(chat, notes_md=NOTES)
    expect(files(chat)).to_have_count(1)
    chat.new()
    expect(files(chat)).to_have_count(0)
    choose(chat, code_py=CODE)
    expect(files(chat)).to_contain_text(re.compile("code.py.*bytes"))  # read: a reload before would lose it
    chat.page.reload()
    expect(files(chat)).to_contain_text("code.py", timeout=driving.PATIENCE_MS)
    chat.go_to("Pasted text")
    expect(files(chat)).to_contain_text("notes.md")
    chat.ask("Sent")
    assert stored(service) == [["Pasted text"], ["notes.md"]]
    expect(files(chat)).to_have_count(0)
    chat.new()
    expect(files(chat)).to_contain_text("code.py")


REFUSED = [
    ("<img src=x>.bin", b"\0\1\2", "<img src=x>.bin is neither text nor PDF"),
    ("huge.txt", b"x" * 20_000_001, "huge.txt has 20 MB; files of up to 20 MB can be attached."),
    ("long.txt", b"word " * 500_000, "long.txt holds more than 2,000,000 characters"),
]


def sent(name: str, raw: bytes) -> dict[str, Any]:
    """A file as the page sends it."""
    data = {} if len(raw) > MOST_BYTES else {"data": base64.b64encode(raw).decode()}
    return {"key": secrets.token_hex(16), "chat": 0, "name": name, "size": len(raw), **data}


def test_what_cannot_be_read_or_is_too_long_is_refused_and_nothing_is_lost(service: FakeService) -> None:
    page = Visitor(service)
    page.give("hc-box", "Five more words than that")
    for name, raw, said in REFUSED:
        page.press("hc_attached", **sent(name, raw))
        assert said in page.says("hc-live")
        assert "<li" not in page.html("hc-tray")
    service.script.window = 100
    page.press("hc_attached", **sent("notes.md", b"word " * 120))
    page.send()
    assert "This message is 29 tokens too long." in page.says("hc-live")
    assert page.value("hc-box") == "Five more words than that"
    assert "notes.md" in page.says("hc-tray")
    assert service.store.chats.find(service.user) == []
    service.script.window = 1000
    page.send()
    assert stored(service) == [["notes.md"]]


def test_only_so_much_is_kept_and_each_user_finds_his_own() -> None:
    kept = KeptFiles(most=10)
    one, two = (Attached(key, key, file=Attachment(key, 6, "x" * 6)) for key in ("a", "b"))
    kept.keep(1, one)
    assert kept.find(1, "a") is one
    assert kept.find(2, "a") is None
    kept.keep(1, two)
    assert (kept.find(1, "a"), kept.find(1, "b")) == (None, two)
    kept.drop(1, [two])
    assert kept.find(1, "b") is None
