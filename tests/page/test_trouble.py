"""What goes wrong on the page ends in a sentence, nothing typed is lost, and the page stays usable."""

import os
import re
import resource
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gradio as gr
import pytest
from playwright.sync_api import Browser, expect

from hierchat.chat.in_progress import ReplyInProgress
from hierchat.page.page_app import build_app, serve
from hierchat.page.page_sessions import Session, Sessions
from hierchat.runtime.prompt import MessageTooLong
from hierchat.store.connection import Connection
from hierchat.store.errors import translated
from tests.isolation.visitor import Visitor as RequestVisitor
from tests.page.stored import stored_chat
from tests.testing import browser as driving
from tests.testing.browser import PATIENCE_MS, Chat
from tests.testing.deleting import delete_for_good
from tests.testing.fake_service import FakeService, SlotStatus, make
from tests.testing.raw import ask
from tests.testing.secrets import rows_of
from tests.testing.visitor import Visitor

GONE = "This chat was deleted in another tab."


def sane(chat: Chat) -> None:
    """Nothing of Gradio's own: no notice, no layer over a part; and it can be clicked."""
    for theirs in ('[data-testid="toast-body"]', ".error", ".wrap.pending", "#hc-trouble"):
        expect(chat.page.locator(theirs)).to_have_count(0)
    chat.new()
    chat.ask("And it goes on")
    expect(chat.questions).to_have_text(["And it goes on"])


def said(chat: Chat, sentence: str) -> None:
    expect(chat.page.locator("#hc-live [role=alert], #hc-live [role=status]")).to_contain_text(sentence)


def delete_elsewhere(service: FakeService) -> None:
    for conversation in service.store.chats.find(service.user):
        delete_for_good(service.store, service.user, conversation.id)


def test_chats_that_never_were(service: FakeService) -> None:
    for address in ("999999", "abc", "-1", "9" * 5000, "\0"):
        page = Visitor(service, c=address)
        assert "There is no chat at this address." in page.says("hc-live")
        assert not page.hidden("hc-empty")


@pytest.mark.parametrize("act", ["send", "hc_edit", "hc_again", "hc_sources", "hc_open", "hc_delete"])
def test_every_control_of_a_chat_that_was_deleted_in_another_tab(service: FakeService, act: str) -> None:
    page = Visitor(service)
    page.ask("Question")
    (chat,) = service.store.chats.find(service.user)
    question, reply = service.store.messages.path(service.user, chat.id)
    delete_elsewhere(service)
    told = "" if act == "hc_delete" else GONE
    if act == "send":
        page.send("Typed")
    else:
        ids = {"hc_open": chat.id, "hc_delete": chat.id, "hc_sources": reply.id}
        page.press(act, id=ids.get(act, question.id), text="Typed" if act == "hc_edit" else "")
    assert told in page.says("hc-live")
    assert not page.hidden("hc-empty")
    assert page.says("hc-list") == "Projects New project Your chats will appear here."
    if act in ("send", "hc_edit"):
        assert f"{GONE} Your message is still in the box" in page.says("hc-live")
        assert "Typed" in page.ask("Typed")


@contextmanager
def full_database() -> Iterator[None]:
    """The store fails in everything that it writes, as SQLite would."""
    full = sqlite3.OperationalError("database or disk is full")
    full.sqlite_errorcode = sqlite3.SQLITE_FULL

    @contextmanager
    def write(self: Connection) -> Iterator[None]:
        with translated(self.path):
            raise full
        yield

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "write", write)
        yield


@pytest.mark.browser
def test_chats_that_are_deleted_and_a_store_that_fails_in_mid_reply_and_before_it(
    chat: Chat, service: FakeService
) -> None:
    service.script.hold()
    chat.begin("Long story")
    delete_elsewhere(service)
    chat.idle()
    said(chat, GONE)
    service.slot.status = SlotStatus("SmolLM2 135M", "loading")
    chat.send("Early")
    said(chat, "Loading SmolLM2 135M")
    delete_elsewhere(service)
    service.script.release()
    service.slot.status = SlotStatus("SmolLM2 135M", "ready")
    said(chat, GONE)
    sane(chat)
    with full_database():
        chat.send("Kept")
        said(chat, "Free some disk space")
        expect(chat.box).to_have_value("Kept")
    service.script.hold()
    chat.begin("Story")
    with full_database():
        said(chat, "Free some disk space")
        chat.idle()
        expect(chat.replies.last).to_contain_text("interrupted")
        expect(chat.words.last).to_contain_text("Here")
    service.script.release()
    chat.page.reload()
    expect(chat.replies.last).to_contain_text("interrupted", timeout=PATIENCE_MS)
    sane(chat)


@contextmanager
def full_disk(service: FakeService) -> Iterator[None]:
    """No file can be written, whoever asks."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def read_only_folder(service: FakeService) -> Iterator[None]:
    """Files are opened anew, by a program that is not root's."""
    folder = service.store.path.parent
    for _ in range(len(service.store.connection._idle)):
        service.store.connection._idle.pop().close()
    places = {path: path.stat().st_mode & 0o777 for path in (folder, *folder.rglob("*"))}
    for path in places:
        path.chmod(0o555 if path.is_dir() else 0o444)
    user = os.getuid()
    os.setresuid(user or 65534, user or 65534, user)
    try:
        yield
    finally:
        os.setresuid(user, user, user)
        for path, mode in places.items():
            path.chmod(mode)


@pytest.mark.parametrize("fault", [full_disk, read_only_folder])
def test_what_cannot_be_written_is_told_by_the_server_of_the_page(
    open_folder: Path, fault: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request is answered in a sentence; nothing is lost, and once it can be written all goes on."""
    monkeypatch.setenv("HIERCHAT_DATA", str(open_folder))
    service = make(open_folder)
    service.script.seconds = 0
    log_ins = driving.log_ins_of(service.store, ("ann", "the password of ann"))
    with (
        driving.files_wait_in(open_folder / "transfer"),
        driving.serving(service, log_ins=log_ins) as address,
    ):
        page = RequestVisitor(address, "ann", "the password of ann")
        page.open()
        (user,) = (id for name, id in service.store.users.ids().items() if name == "ann")

        def answers() -> dict[str, str]:
            *_, question, _reply = path
            found = {
                event: (page.act("hc_dismiss", {}), page.act(event, {"id": 0, "text": "", **data}))[1]
                for event, data in {
                    "hc_rename": {"id": chat, "text": "Renamed"},
                    "hc_edit": {"id": question.id, "text": "Asked otherwise"},
                    "hc_example": {"text": "Asked"},
                    "hc_export": {"id": chat, "text": "json"},
                }.items()
            }
            for method, to in (("POST", "/transfer/in?name=x.json"), ("PUT", f"/models/{len(sent)}.gguf")):
                answer = ask(address, method, to, page.headers, raw=b"GGUF" + bytes(9000))
                sent.append(answer.status)
                found[to] = answer.text
            return found

        sent: list[int] = []
        page.act("hc_example", {"text": "First"})
        chat = service.store.chats.find(user)[0].id
        path = service.store.messages.path(user, chat)
        answers()  # all that is imported on the way is by now
        path = service.store.messages.path(user, chat)
        before = rows_of(service.store, user)
        with fault(service):
            told = answers()
        assert {act: said[-1500:] for act, said in told.items() if not TOLD.search(said)} == {}
        assert sent == [200, 201, 507, 507]
        assert rows_of(service.store, user) == before
        assert not any(map(TOLD.search, answers().values()))
        assert sent[4:] == [200, 201]
        with service.store.connection.read() as db:
            assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    service.store.close()


TOLD = re.compile("Free some disk space|writable|could not be (kept|written)")


@pytest.mark.browser
def test_a_page_is_loaded_again_when_the_server_does_not_know_it_or_comes_back(
    chromium: Browser, fresh: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a long sleep of the computer: by itself, and its message must not begin another chat. What is sent
    before the server knows the page, as while a model loads beside it, waits."""
    made: list[Sessions] = []
    opens = threading.Event()

    class Kept(Sessions):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

        def open(self, key: str | None) -> Session:
            opens.wait(30)
            return super().open(key)

    def launch(port: int | None = None) -> tuple[gr.Blocks, str]:
        app = build_app(fresh)  # type: ignore[arg-type]
        return app, serve(app, port=port)[0]

    monkeypatch.setattr("hierchat.page.guard.Sessions", Kept)
    opened = stored_chat(fresh.store, "Opened by its address", 1)
    app, address = launch()
    port = int(address.rstrip("/").rsplit(":", 1)[1])
    try:
        with driving.visiting(chromium, address) as chat:
            loads: list[object] = []
            chat.page.on("load", lambda page: loads.append(page))
            chat.page.goto(f"{address}?c={opened}")
            chat.send("In a hurry")
            chat.page.wait_for_timeout(2_000)  # long enough to count its tokens, and to load the page anew
            expect(chat.box).to_have_value("In a hurry")
            expect(chat.page.locator("#hc-empty")).to_be_hidden()  # there is a chat at this address
            opens.set()
            expect(chat.questions.last).to_have_text("In a hurry")
            expect(chat.box).to_have_value("")
            chat.idle()
            assert len(loads) == 1
            assert [text for text, _ in fresh.asked] == ["In a hurry"]
            assert fresh.store.messages.path(fresh.user, opened)[-2].text == "In a hurry"
            chat.new()
            chat.ask("Before")
            chat.box.fill("And now?")
            for key in list(made[0]._sessions):
                made[0].close(key)
            chat.until(lambda: len(loads) == 2)
            expect(chat.box).to_have_value("And now?")
            chat.page.locator("#hc-send").click()
            expect(chat.questions).to_have_text(["Before", "And now?"])
            chat.idle()
            chat.box.fill("Half a thought")
            app.close(verbose=False)
            lost = chat.page.locator("#hc-trouble")
            expect(lost).to_contain_text("The connection to hierchat was lost", timeout=PATIENCE_MS)
            expect(chat.page.locator('[data-testid="toast-body"]')).to_be_hidden()
            app, _ = launch(port)
            expect(lost).to_have_count(0, timeout=PATIENCE_MS)
            expect(chat.questions).to_have_text(["Before", "And now?"], timeout=PATIENCE_MS)
            expect(chat.box).to_have_value("Half a thought")
            chat.page.locator("#hc-send").click()
            expect(chat.questions).to_have_text(["Before", "And now?", "Half a thought"])
            chat.idle()
            sane(chat)
    finally:
        app.close(verbose=False)


def test_chats_that_were_forgotten_in_a_terminal(service: FakeService) -> None:
    """The page's user is gone: nothing can be written for it, until the page is loaded again."""
    page = Visitor(service)
    page.ask("Question")
    assert service.store.users.forget(service.user)
    page.press("hc_new")
    page.ask("Another")
    assert "All chats of this user were deleted. Reload the page." in page.says("hc-live")
    assert "And it goes on" in Visitor(service).ask("And it goes on")


def test_a_reply_that_cannot_begin_says_why_however_soon_it_ends(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have ended before the page has drawn it. Its question stays."""
    begin = service.in_progress.begin

    def begin_and_end(reply: ReplyInProgress, *rest: Any, **more: Any) -> bool:
        begun = begin(reply, *rest, **more)
        assert reply.ended.wait(20)
        return begun

    monkeypatch.setattr(service.in_progress, "begin", begin_and_end)
    service.script.raises = MessageTooLong("Too long.")
    page = Visitor(service)
    page.ask("Is anybody there?")
    assert "Too long." in page.says("hc-live")
    assert page.value("hc-box") == ""
    assert page.says("hc-thread").startswith("You Is anybody there? Not answered")
