"""Chats as the door knows them: what the list holds, deletion with its deadline, change events, settings."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing

import pytest

from hierchat.chat import conversations
from hierchat.chat.conversations import Conversations
from hierchat.chat.in_progress import ChangeEvents, InProgress
from hierchat.config import GenerationSettings
from hierchat.store import NotFound, Store
from hierchat.store.records import ChatSettings


@pytest.fixture
def changes(store: Store) -> ChangeEvents:
    return store.changes


@pytest.fixture
def chats(store: Store, changes: ChangeEvents) -> Conversations:
    hot = GenerationSettings(temperature=0.7)
    return Conversations(
        store, changes, InProgress(store, changes), lambda name: hot if name else GenerationSettings()
    )


def in_file(store: Store, chat: int) -> bool:
    with closing(sqlite3.connect(store.path)) as db:
        return bool(db.execute("SELECT 1 FROM conversations WHERE id = ?", [chat]).fetchone())


def test_the_list_has_its_tags_and_says_whether_there_are_more(chats: Conversations, user: int) -> None:
    made = [chats.create(user) for _ in range(3)]
    chats.set_tags(user, made[0], ["work"])
    chats.archive(user, made[1], True)
    found = chats.find(user, "", 1)
    assert (len(found.conversations), found.more, found.archived, found.tags) == (1, True, 1, ["work"])
    assert [chat.id for chat in chats.find(user, "", 9, archived=True).conversations] == [made[1]]
    chats.archive(user, made[1], False)
    assert len(chats.find(user, "", 9, archived=True).conversations) == 3  # none is archived: all are listed


def test_a_deleted_chat_is_out_of_sight_and_can_be_brought_back(
    chats: Conversations, store: Store, user: int, changes: ChangeEvents
) -> None:
    chat = chats.create(user)
    chats.rename(user, chat, "Oslo")
    seen = changes.count(user)
    deleted = chats.delete(user, chat)
    assert (deleted.title, deleted.seconds) == ("Oslo", conversations.UNDO_SECONDS)
    assert not chats.has(user, chat)
    assert in_file(store, chat)
    assert changes.count(user) > seen
    chats.restore(user, chat)
    assert chats.title(user, chat) == "Oslo"
    assert chats.delete(user, 999) is None


@pytest.mark.parametrize("by", ["time", "another deletion"])
def test_a_deletion_becomes_final(
    chats: Conversations, store: Store, user: int, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    monkeypatch.setattr(conversations, "UNDO_SECONDS", 0.01 if by == "time" else 60.0)
    first, second = chats.create(user), chats.create(user)
    other = chats.create(store.users.ensure("ben"))
    chats.delete(user, first)
    if by == "another deletion":
        chats.delete(store.users.ensure("ben"), other)  # of another user: it ends nothing of ann's
        assert in_file(store, first)
        chats.delete(user, second)
    wait_until_gone(store, first)
    with pytest.raises(NotFound):
        chats.restore(user, first)


def wait_until_gone(store: Store, chat: int) -> None:
    for _ in range(500):
        if not in_file(store, chat):
            return
        threading.Event().wait(0.02)
    raise AssertionError("It is still in the file.")


def test_another_user_reaches_nothing(chats: Conversations, store: Store, user: int) -> None:
    chat, other = chats.create(user), store.users.ensure("ben")
    assert not chats.has(other, chat)
    assert chats.delete(other, chat) is None
    for act in (chats.get, chats.title, chats.messages, chats.restore, chats.keep_incognito):
        with pytest.raises(NotFound):
            act(other, chat)
    with pytest.raises(NotFound):
        chats.rename(other, chat, "mine")
    assert chats.has(user, chat)


def test_an_incognito_chat_is_erased_or_kept(chats: Conversations, store: Store, user: int) -> None:
    erased, kept = chats.create(user, incognito=True), chats.create(user, incognito=True)
    chats.keep_incognito(user, kept)
    chats.end_incognito(user, erased)
    wait_until_gone(store, erased)
    assert [chat.id for chat in chats.find(user, "", 9).conversations] == [kept]


def test_settings_follow_the_model_until_they_differ_and_presets_begin_new_chats(
    chats: Conversations, store: Store, user: int, changes: ChangeEvents
) -> None:
    presets, chat = store.presets, chats.create(user)
    own = chats.settings(user, chat)
    assert own == chats.model_settings()
    assert chats.model_settings("hot").sampling["temperature"] == 0.7
    assert chats.keep_settings(user, chat, own) is None
    short = ChatSettings("Be brief.", own.sampling)
    number = chats.keep_settings(user, chat, short)
    assert number == changes.settings_changed(user, chat)
    assert chats.settings(user, chat) == short
    preset = presets.create(user, "Brief", short)
    presets.set_default(user, preset)
    assert chats.settings(user, None).system_prompt == "Be brief."
    assert changes.settings_changed(user) > number
    presets.rename(user, preset, "Shorter")
    presets.delete(user, preset)
    assert presets.all(user) == []
