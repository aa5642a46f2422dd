"""Presets, and what a chat sets for its replies."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from hierchat.store import ChatSettings, NotFound, Store, StoreError
from tests.testing.deleting import delete_for_good

TERSE = ChatSettings("Be terse.", {"temperature": 0.5, "seed": None, "stop": ["\n\n", "é"]})
LOUD = ChatSettings("SHOUT!", {"temperature": 1.5, "seed": 7, "stop": []})


def test_a_preset_is_kept_changed_renamed_and_deleted(store: Store, user: int, path: Path) -> None:
    terse = store.create_preset(user, "terse", TERSE)
    store.create_preset(user, "Loud", LOUD)
    with Store.open(path) as again:
        loud, kept = again.presets(user)
    assert (loud.name, kept.name, kept.id) == ("Loud", "terse", terse)
    assert (kept.settings.system_prompt, kept.settings.sampling) == (TERSE.system_prompt, TERSE.sampling)
    store.change_preset(user, terse, LOUD)
    store.rename_preset(user, terse, "Terse no more")
    assert store.preset(user, terse).settings.system_prompt == "SHOUT!"
    assert [preset.name for preset in store.presets(user)] == ["Loud", "Terse no more"]
    store.delete_preset(user, terse)
    assert [preset.name for preset in store.presets(user)] == ["Loud"]
    with pytest.raises(StoreError, match="was deleted"):
        store.preset(user, terse)


def test_a_name_is_taken_once_for_each_user(store: Store, user: int) -> None:
    terse, loud = store.create_preset(user, "terse", TERSE), store.create_preset(user, "loud", LOUD)
    with pytest.raises(StoreError, match="called “terse” already"):
        store.create_preset(user, "terse", LOUD)
    with pytest.raises(StoreError, match="called “terse” already"):
        store.rename_preset(user, loud, "terse")
    store.rename_preset(user, terse, "terse")
    store.create_preset(store.ensure_user("bob"), "terse", TERSE)
    assert len(store.presets(user)) == 2


def test_one_preset_at_most_is_the_default(store: Store, user: int) -> None:
    terse, loud = store.create_preset(user, "terse", TERSE), store.create_preset(user, "loud", LOUD)
    bob = store.ensure_user("bob")
    store.set_default_preset(bob, store.create_preset(bob, "mine", TERSE))
    for chosen in (terse, loud, None):
        store.set_default_preset(user, chosen)
        defaults = [preset.id for preset in store.presets(user) if preset.is_default]
        assert defaults == ([] if chosen is None else [chosen])
    assert [preset.is_default for preset in store.presets(bob)] == [True]


def test_a_chat_keeps_what_it_took_from_a_preset(store: Store, user: int) -> None:
    chat = store.create_conversation(user)
    assert store.chat_settings(user, chat) is None
    terse = store.create_preset(user, "terse", TERSE)
    store.set_chat_settings(user, chat, ChatSettings("Be terse.", {"seed": None}, terse))
    store.set_chat_settings(user, chat, ChatSettings("Be very terse.", {"seed": 3}, terse))
    store.change_preset(user, terse, LOUD)
    assert store.chat_settings(user, chat) == ChatSettings("Be very terse.", {"seed": 3}, terse)
    store.delete_preset(user, terse)
    assert store.chat_settings(user, chat) == ChatSettings("Be very terse.", {"seed": 3}, None)


def test_nobody_reaches_another_users_presets_and_chats(store: Store, user: int) -> None:
    terse, chat = store.create_preset(user, "terse", TERSE), store.create_conversation(user)
    bob = store.ensure_user("bob")
    for act in (
        lambda: store.preset(bob, terse),
        lambda: store.change_preset(bob, terse, LOUD),
        lambda: store.rename_preset(bob, terse, "mine"),
        lambda: store.delete_preset(bob, terse),
        lambda: store.set_default_preset(bob, terse),
    ):
        with pytest.raises(StoreError, match="was deleted"):
            act()
    with pytest.raises(NotFound):
        store.chat_settings(bob, chat)
    with pytest.raises(NotFound):
        store.set_chat_settings(bob, chat, LOUD)
    own = store.create_conversation(bob)
    store.set_chat_settings(bob, own, ChatSettings("", {}, terse))
    settings = store.chat_settings(bob, own)
    assert settings
    assert settings.preset_id is None
    assert store.preset(user, terse).name == "terse"
    assert not store.preset(user, terse).is_default


def test_a_fork_takes_the_settings_along(store: Store, user: int) -> None:
    chat = store.create_conversation(user)
    message = store.add_message(user, chat, None, "user", "Hello")
    plain = store.fork_conversation(user, message)
    assert store.chat_settings(user, plain) is None
    store.set_chat_settings(user, chat, LOUD)
    assert store.chat_settings(user, store.fork_conversation(user, message)) == LOUD


def test_what_was_deleted_is_not_in_the_file(store: Store, user: int, path: Path) -> None:
    chat = store.create_conversation(user)
    store.set_chat_settings(user, chat, ChatSettings("the secret of the chat", {}))
    delete_for_good(store, user, chat)
    bob = store.ensure_user("bob")
    store.create_preset(bob, "mine", ChatSettings("the secret of the preset", {}))
    store.forget_user(bob)
    store.close()
    assert b"the secret" not in path.read_bytes()
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT count(*) FROM presets").fetchone() == (0,)


def test_lone_surrogates_are_taken(store: Store, user: int) -> None:
    preset = store.create_preset(user, "\ud800", ChatSettings("\udfff", {"stop": ["\ud800"]}))
    assert store.preset(user, preset).settings == ChatSettings("?", {"stop": ["?"]}, preset)
