"""Files that were sent with messages: whose they are, where they are found, when they go."""

from __future__ import annotations

from pathlib import Path

import pytest

from hierchat.store import Attachment, NewMessage, NotFound, Store
from tests.testing.deleting import delete_for_good

REPORT = Attachment("report.pdf", 12_345, "The lighthouse of Alexandria was tall.")
CODE = Attachment("code.py", 20, "def zymurgy():\n    pass\n")


def asked(store: Store, user: int, text: str = "What is it?") -> tuple[int, int]:
    chat = store.chats.create(user)
    return chat, store.messages.add(user, chat, NewMessage(None, text, files=[REPORT, CODE]))


def test_they_come_back_in_order_and_their_texts_apart(store: Store, user: int) -> None:
    chat, message = asked(store, user)
    (read,) = store.messages.path(user, chat)
    assert [(head.name, head.size) for head in read.attachments] == [("report.pdf", 12_345), ("code.py", 20)]
    assert store.messages.get(user, message).attachments == read.attachments
    assert store.messages.attachments(user, message) == [REPORT, CODE]
    assert store.messages.attachment(user, read.attachments[1].id) == CODE


def test_a_message_of_files_alone_is_called_after_the_first(store: Store, user: int) -> None:
    chat, _ = asked(store, user, "")
    assert store.chats.get(user, chat).title == "report.pdf"


def test_nobody_else_reads_them(store: Store, user: int) -> None:
    _, message = asked(store, user)
    bob = store.users.ensure("bob")
    id = store.messages.get(user, message).attachments[0].id
    for peek in (
        lambda: store.messages.attachments(bob, message),
        lambda: store.messages.attachment(bob, id),
    ):
        with pytest.raises(NotFound):
            peek()
    with pytest.raises(NotFound):
        store.messages.attachment(user, id + 100)
    assert store.chats.find(bob, "lighthouse") == []


def test_the_search_finds_their_words_and_names(store: Store, user: int) -> None:
    chat, message = asked(store, user)
    for query in ("lighthouse", "zymurgy", "report.pdf"):
        (found,) = store.chats.find(user, query)
        assert (found.id, found.message_id) == (chat, message)
    (found,) = store.chats.find(user, "alexandria tall")
    assert "\x02Alexandria\x03" in found.snippet
    (found,) = store.chats.find(user, "what")
    assert found.snippet == "\x02What\x03 is it?"
    store.chats.hide(user, chat)
    assert store.chats.find(user, "lighthouse") == []


def test_nothing_of_them_is_left_after_the_chat(store: Store, user: int, path: Path) -> None:
    chat, message = asked(store, user)
    id = store.messages.get(user, message).attachments[0].id
    delete_for_good(store, user, chat)
    data = path.read_bytes() + path.with_name(path.name + "-wal").read_bytes()
    assert [word for word in (b"ighthouse", b"zymurgy", b"report.pdf") if word in data] == []
    with pytest.raises(NotFound):
        store.messages.attachment(user, id)


def test_a_fork_has_its_own(store: Store, user: int) -> None:
    chat, message = asked(store, user)
    fork = store.chats.fork(user, message)
    delete_for_good(store, user, chat)
    (copy,) = store.messages.path(user, fork)
    assert store.messages.attachments(user, copy.id) == [REPORT, CODE]
    assert [found.id for found in store.chats.find(user, "zymurgy")] == [fork]


def test_they_move_with_the_chat(store: Store, user: int) -> None:
    chat, _ = asked(store, user, "")
    bob = store.users.ensure("bob")
    whole = store.transfer.export_chat(user, chat)
    assert list(whole.messages[0].attachments) == [REPORT, CODE]
    assert store.transfer.import_chat(bob, whole)[0] == "new"
    (there,) = store.chats.find(bob)
    (message,) = store.messages.path(bob, there.id)
    assert store.messages.attachments(bob, message.id) == [REPORT, CODE]
    assert there.title == "report.pdf"
