"""Presets, and what a chat sets for its replies."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from hierchat.store import Store, StoreError
from hierchat.store.records import ChatSettings, NewMessage
from tests.testing.deleting import delete_for_good

TERSE = ChatSettings("Be terse.", {"temperature": 0.5, "seed": None, "stop": ["\n\n", "é"]})


LOUD = ChatSettings("SHOUT!", {"temperature": 1.5, "seed": 7, "stop": []})


def test_a_preset_is_kept_changed_renamed_and_deleted(store: Store, user: int, path: Path) -> None:
    terse = store.presets.create(user, "terse", TERSE)
    store.presets.create(user, "Loud", LOUD)
    with Store.open(path) as again:
        loud, kept = again.presets.all(user)
    assert (loud.name, kept.name, kept.id) == ("Loud", "terse", terse)
    assert (kept.settings.system_prompt, kept.settings.sampling) == (TERSE.system_prompt, TERSE.sampling)
    store.presets.change(user, terse, LOUD)
    store.presets.rename(user, terse, "Terse no more")
    assert store.presets.get(user, terse).settings.system_prompt == "SHOUT!"
    assert [preset.name for preset in store.presets.all(user)] == ["Loud", "Terse no more"]
    store.presets.delete(user, terse)
    assert [preset.name for preset in store.presets.all(user)] == ["Loud"]
    with pytest.raises(StoreError, match="was deleted"):
        store.presets.get(user, terse)


def test_a_name_is_taken_once_for_each_user(store: Store, user: int) -> None:
    terse, loud = store.presets.create(user, "terse", TERSE), store.presets.create(user, "loud", LOUD)
    with pytest.raises(StoreError, match="called “terse” already"):
        store.presets.create(user, "terse", LOUD)
    with pytest.raises(StoreError, match="called “terse” already"):
        store.presets.rename(user, loud, "terse")
    store.presets.rename(user, terse, "terse")
    store.presets.create(store.users.ensure("bob"), "terse", TERSE)
    assert len(store.presets.all(user)) == 2


def test_one_preset_at_most_is_the_default(store: Store, user: int) -> None:
    terse, loud = store.presets.create(user, "terse", TERSE), store.presets.create(user, "loud", LOUD)
    bob = store.users.ensure("bob")
    store.presets.set_default(bob, store.presets.create(bob, "mine", TERSE))
    for chosen in (terse, loud, None):
        store.presets.set_default(user, chosen)
        defaults = [preset.id for preset in store.presets.all(user) if preset.is_default]
        assert defaults == ([] if chosen is None else [chosen])
    assert [preset.is_default for preset in store.presets.all(bob)] == [True]


def test_a_chat_keeps_what_it_took_from_a_preset(store: Store, user: int) -> None:
    chat = store.chats.create(user)
    assert store.chats.settings(user, chat) is None
    terse = store.presets.create(user, "terse", TERSE)
    store.chats.set_settings(user, chat, ChatSettings("Be terse.", {"seed": None}, terse))
    store.chats.set_settings(user, chat, ChatSettings("Be very terse.", {"seed": 3}, terse))
    store.presets.change(user, terse, LOUD)
    assert store.chats.settings(user, chat) == ChatSettings("Be very terse.", {"seed": 3}, terse)
    store.presets.delete(user, terse)
    assert store.chats.settings(user, chat) == ChatSettings("Be very terse.", {"seed": 3}, None)


def test_a_fork_takes_the_settings_along(store: Store, user: int) -> None:
    chat = store.chats.create(user)
    message = store.messages.add(user, chat, NewMessage(None, "Hello"))
    plain = store.chats.fork(user, message)
    assert store.chats.settings(user, plain) is None
    store.chats.set_settings(user, chat, LOUD)
    assert store.chats.settings(user, store.chats.fork(user, message)) == LOUD


def test_what_was_deleted_is_not_in_the_file(store: Store, user: int, path: Path) -> None:
    chat = store.chats.create(user)
    store.chats.set_settings(user, chat, ChatSettings("the secret of the chat", {}))
    delete_for_good(store, user, chat)
    bob = store.users.ensure("bob")
    store.presets.create(bob, "mine", ChatSettings("the secret of the preset", {}))
    store.users.forget(bob)
    store.close()
    assert b"the secret" not in path.read_bytes()
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT count(*) FROM presets").fetchone() == (0,)


def test_lone_surrogates_are_taken(store: Store, user: int) -> None:
    preset = store.presets.create(user, "\ud800", ChatSettings("\udfff", {"stop": ["\ud800"]}))
    assert store.presets.get(user, preset).settings == ChatSettings("?", {"stop": ["?"]}, preset)
