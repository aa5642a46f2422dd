"""Files beside the message, in a real browser: chosen, dropped, pasted, refused, sent, shown, kept over a reload."""

from __future__ import annotations

import base64

import pytest
from playwright.sync_api import Locator, expect

from hierchat.page.page_sessions import Attached, KeptFiles
from hierchat.store import Attachment
from tests.testing import browser as driving
from tests.testing.browser import Chat
from tests.testing.fake_service import FakeService
from tests.testing.pdfs import encrypted, pdf

pytestmark = pytest.mark.browser
NOTES = b"# Notes\n\n<b>not bold</b> and `code`\n"
CODE = b"def f():\n    return 1\n"


def files(chat: Chat) -> Locator:
    return chat.page.get_by_role("list", name="Attached files").get_by_role("listitem")


def box(chat: Chat) -> Locator:
    return chat.page.get_by_role("textbox", name="Message", exact=True)


def choose(chat: Chat, **given: bytes) -> None:
    """By the button; a name's last underscore stands for its dot."""
    with chat.page.expect_file_chooser() as chooser:
        chat.page.get_by_role("button", name="Attach files").click()
    chooser.value.set_files(
        [
            {"name": ".".join(name.rsplit("_", 1)), "mimeType": "", "buffer": raw}
            for name, raw in given.items()
        ]
    )


def drop(chat: Chat, name: str, raw: bytes) -> None:
    chat.page.evaluate(
        """([name, data]) => {
            const dropped = new DataTransfer();
            dropped.items.add(new File([Uint8Array.from(atob(data), (c) => c.charCodeAt(0))], name));
            const main = document.querySelector('#hc-main');
            for (const type of ['dragover', 'drop'])
                main.dispatchEvent(new DragEvent(type, { dataTransfer: dropped, bubbles: true, cancelable: true }));
        }""",
        [name, base64.b64encode(raw).decode()],
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


def stored(service: FakeService) -> list[list[Attachment]]:
    """The files of the questions of the newest chat."""
    store, user = service.store, service.store.users.ensure("local")
    messages = store.messages.path(user, store.chats.find(user)[0].id)
    return [store.messages.attachments(user, message.id) for message in messages if message.role == "user"]


def test_files_are_attached_sent_and_shown(chat: Chat, service: FakeService) -> None:
    service.script.seconds = 0
    choose(chat, notes_md=NOTES, code_py=CODE)
    expect(files(chat)).to_have_count(2)
    expect(files(chat).nth(1)).to_contain_text("code.py")
    expect(files(chat).first).to_contain_text("notes.md")
    expect(files(chat).first).to_contain_text("tokens")
    expect(box(chat)).to_be_focused()
    drop(chat, "report.pdf", pdf("A page of the report"))
    expect(files(chat)).to_have_count(3, timeout=driving.PATIENCE_MS)
    expect(files(chat).nth(2)).to_contain_text("tokens", timeout=driving.PATIENCE_MS)
    chat.shot("attached")
    chat.page.get_by_role("button", name="Remove code.py").click()
    expect(files(chat)).to_have_count(2)
    chat.ask("What do they say?")
    expect(files(chat)).to_have_count(0)
    sent = chat.page.locator(".hc-sent button")
    expect(sent).to_have_text(["notes.md · 36 bytes", "report.pdf · 602 bytes"])
    assert [[file.name for file in files] for files in stored(service)] == [["notes.md", "report.pdf"]]
    assert "A page of the report" in stored(service)[0][1].text
    text = chat.page.get_by_role("region", name="Text of notes.md")
    expect(text).to_have_count(0)
    sent.first.click()
    expect(text).to_have_text(NOTES.decode())
    assert text.inner_text() == NOTES.decode()
    expect(sent.first).to_have_attribute("aria-expanded", "true")
    chat.shot("attached-shown")
    sent.first.click()
    expect(text).to_have_count(0)


FIRST_IS_SLOW = """() => {
    const read = FileReader.prototype.readAsDataURL;
    FileReader.prototype.readAsDataURL = function (file) {
        FileReader.prototype.readAsDataURL = read;
        setTimeout(() => this.readAsDataURL(file), 1500);
    };
}"""
"""The browser reads the first file last."""


def test_files_chosen_at_once_stand_in_the_order_of_their_choice(chat: Chat, service: FakeService) -> None:
    service.script.seconds = 0
    chat.page.evaluate(FIRST_IS_SLOW)
    choose(chat, slow_md=NOTES, quick_py=CODE)
    chat.send("Both")  # and waits for the slow one
    expect(chat.replies).to_have_count(1)
    assert [[file.name for file in files] for files in stored(service)] == [["slow.md", "quick.py"]]


REFUSED = [
    ("photo.png", b"\x89PNG\r\n\x1a\n", "photo.png is a picture. Only text can be read so far."),
    ("letter.docx", b"PK\x03\x04", "Save what you need of it as PDF or as text."),
    ("secret.pdf", encrypted(pdf("x"), "p"), "secret.pdf is protected by a password."),
    ("<img src=x>.bin", b"\0\1\2", "<img src=x>.bin is neither text nor PDF"),
    ("huge.txt", b"x" * 20_000_001, "huge.txt has 20 MB; files of up to 20 MB can be attached."),
    ("long.txt", b"word " * 500_000, "long.txt holds more than 2,000,000 characters"),
]


def test_what_cannot_be_read_is_refused_with_a_sentence(chat: Chat) -> None:
    chat.page.locator("#hc-box textarea").fill("Kept")
    for name, raw, said in REFUSED:
        drop(chat, name, raw)
        alert = chat.page.locator("#hc-live").get_by_role("alert")
        expect(alert).to_contain_text(said)
        expect(files(chat)).to_have_count(0)
        expect(box(chat)).to_have_value("Kept")
    chat.ask("Sent all the same")


def test_a_message_waits_for_its_file(chat: Chat, service: FakeService) -> None:
    service.script.seconds = 0
    drop(chat, "slow.pdf", pdf("Read slowly"))
    chat.send("Before it is read")
    expect(chat.replies).to_have_count(1, timeout=driving.PATIENCE_MS)
    assert [[file.name for file in files] for files in stored(service)] == [["slow.pdf"]]


def test_long_pasted_text_becomes_a_file_and_text_again(chat: Chat, service: FakeService) -> None:
    service.script.seconds = 0
    paste(chat, "short")
    assert files(chat).count() == 0
    long = "A line that was pasted.\n" * 300
    box(chat).fill("About this: ")
    paste(chat, long)
    expect(files(chat)).to_have_count(1)
    expect(files(chat)).to_contain_text("Pasted text")
    chat.shot("pasted")
    chat.page.get_by_role("button", name="Insert as text").click()
    expect(files(chat)).to_have_count(0)
    expect(box(chat)).to_have_value("About this: " + long)
    box(chat).fill("")
    paste(chat, long)
    expect(files(chat)).to_have_count(1)
    box(chat).press("Enter")  # a file alone is a message
    expect(chat.replies).to_have_count(1)
    assert [[file.text for file in files] for files in stored(service)] == [[long]]
    expect(chat.page.locator("#hc-title")).to_have_text("Pasted text")


def test_they_belong_to_their_chat_and_outlive_a_reload(chat: Chat, service: FakeService) -> None:
    service.script.seconds = 0
    chat.ask("Here")
    choose(chat, notes_md=NOTES)
    expect(files(chat)).to_have_count(1)
    box(chat).fill("Not sent yet")
    chat.page.locator("#hc-new").click()
    expect(files(chat)).to_have_count(0)
    choose(chat, code_py=CODE)
    expect(files(chat)).to_contain_text("code.py")
    chat.page.reload()
    expect(files(chat)).to_contain_text("code.py", timeout=driving.PATIENCE_MS)
    chat.page.get_by_role("button", name="Here", exact=True).click()
    expect(files(chat)).to_contain_text("notes.md")
    expect(box(chat)).to_have_value("Not sent yet")
    box(chat).press("Enter")
    expect(chat.replies).to_have_count(2)
    assert [[file.name for file in files] for files in stored(service)] == [[], ["notes.md"]]
    chat.page.reload()
    expect(chat.replies).to_have_count(2, timeout=driving.PATIENCE_MS)
    expect(files(chat)).to_have_count(0)  # it was sent
    chat.page.locator("#hc-new").click()
    expect(files(chat)).to_contain_text("code.py")


def test_what_is_too_long_keeps_text_and_files_and_is_not_stored(chat: Chat, service: FakeService) -> None:
    service.script.seconds, service.script.window = 0, 100
    choose(chat, notes_md=b"word " * 120)
    expect(files(chat)).to_have_count(1)
    chat.send("Five more words than that")
    expect(chat.page.locator("#hc-live").get_by_role("alert")).to_contain_text(
        "This message is 29 tokens too long."
    )
    expect(box(chat)).to_have_value("Five more words than that")
    expect(files(chat)).to_have_count(1)
    expect(chat.page.locator("#hc-list li")).to_have_count(0)
    count = chat.page.locator("#hc-count")
    expect(count).to_contain_text("of 100 tokens")
    expect(count).to_contain_text("too many")
    chat.shot("too-long-with-file")
    service.script.window = 1000
    chat.page.locator("#hc-send").click()
    expect(chat.replies).to_have_count(1)


def test_no_file_is_left_for_others(chat: Chat) -> None:
    """What is attached never becomes a file, so that no address leads to it."""
    uploads: list[str] = []
    chat.page.on("request", lambda request: uploads.append(request.url) if "/upload" in request.url else None)
    choose(chat, notes_md=NOTES)
    expect(files(chat)).to_have_count(1)
    assert uploads == []


def test_only_so_much_is_kept_and_each_user_finds_his_own() -> None:
    kept = KeptFiles(most=10)
    one, two = (Attached(key, key, Attachment(key, 6, "x" * 6)) for key in ("a", "b"))
    kept.keep(1, one)
    assert kept.find(1, "a") is one
    assert kept.find(2, "a") is None
    kept.keep(1, two)
    assert (kept.find(1, "a"), kept.find(1, "b")) == (None, two)
    kept.drop(1, [two])
    assert kept.find(1, "b") is None
