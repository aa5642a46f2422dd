"""Projects, presets, what a chat sets for its replies, and notes about the user."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from hierchat.store import NotFound, Store, StoreError
from hierchat.store.records import ChatSettings, NewMessage, Project
from tests.testing.stores import project


def names(store: Store, user: int) -> list[tuple[str, int]]:
    return [(project.name, project.chats) for project in store.projects.all(user)]


def test_a_project_is_made_changed_and_renamed(store: Store, user: int) -> None:
    terse = store.presets.create(user, "terse", ChatSettings("Be terse.", {}))
    thesis = store.projects.save(user, Project(0, "  The\nthesis ", "Quote.", "tiny", terse))
    assert store.projects.get(user, thesis) == Project(thesis, "The thesis", "Quote.", "tiny", terse)
    assert store.projects.save(user, Project(thesis, "<b>bold</b>", preset_id=10**6)) == thesis
    project(store, user, "apples")
    assert names(store, user) == [("<b>bold</b>", 0), ("apples", 0)]
    assert store.projects.get(user, thesis) == Project(thesis, "<b>bold</b>")
    store.projects.save(user, Project(thesis, "The thesis", preset_id=terse))
    store.presets.delete(user, terse)
    assert store.projects.get(user, thesis) == Project(thesis, "The thesis")


def test_a_name_that_cannot_be_taken_is_refused(store: Store, user: int) -> None:
    project(store, user, "Garden")
    other = project(store, user, "Other")
    for name, said in (
        (" \n\0", "A project needs a name. Type one."),
        ("x" * 300, "A project name has at most 100 characters. Take a shorter one."),
        ("Garden", "There is a project called “Garden” already. Take another name."),
    ):
        for id in (0, other):
            with pytest.raises(StoreError, match=re.escape(said)):
                store.projects.save(user, Project(id, name))
    assert names(store, user) == [("Garden", 0), ("Other", 0)]
    project(store, store.users.ensure("bob"), "Garden")
    store.projects.save(user, Project(other, "Other"))


def test_chats_move_in_and_out(store: Store, user: int) -> None:
    garden = project(store, user, "Garden")
    inside, outside = store.chats.create(user, "in", garden), store.chats.create(user, "out")

    def listed(*query: str, **which: int) -> list[int]:
        return [chat.id for chat in store.chats.find(user, *query, **which)]

    assert (listed(project=garden), listed(project=0)) == ([inside], [outside])
    store.projects.move(user, outside, garden)
    assert names(store, user) == [("Garden", 2)]
    with pytest.raises(NotFound, match="deleted in another tab"):
        store.projects.move(user, inside, garden + 1)
    with pytest.raises(NotFound):
        store.chats.create(user, "", garden + 1)
    with pytest.raises(NotFound, match="deleted for good"):
        store.chats.restore_project(user, garden + 1, [])


def test_notes_are_kept(store: Store, user: int) -> None:
    bob = store.users.ensure("bob")
    store.users.set_notes(user, "\n I grow zinnias.\n")
    assert (store.users.notes(user), store.users.notes(bob)) == ("I grow zinnias.", "")
    with pytest.raises(StoreError, match="at most 4,000 characters, and these have 5,000"):
        store.users.set_notes(user, "x" * 5_000)
    assert store.users.notes(user) == "I grow zinnias."


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


def test_a_name_is_taken_once_for_each_user_and_one_is_the_default(store: Store, user: int) -> None:
    terse, loud = store.presets.create(user, "terse", TERSE), store.presets.create(user, "loud", LOUD)
    bob = store.users.ensure("bob")
    store.presets.set_default(bob, store.presets.create(bob, "terse", TERSE))
    with pytest.raises(StoreError, match="called “terse” already"):
        store.presets.create(user, "terse", LOUD)
    with pytest.raises(StoreError, match="called “terse” already"):
        store.presets.rename(user, loud, "terse")
    store.presets.rename(user, terse, "terse")
    for chosen in (terse, loud, None):
        store.presets.set_default(user, chosen)
        defaults = [preset.id for preset in store.presets.all(user) if preset.is_default]
        assert defaults == ([] if chosen is None else [chosen])
    assert len(store.presets.all(user)) == 2
    assert [preset.is_default for preset in store.presets.all(bob)] == [True]


def test_a_chat_and_its_fork_keep_what_they_took_from_a_preset(store: Store, user: int) -> None:
    chat = store.chats.create(user)
    message = store.messages.add(user, chat, NewMessage(None, "Hello"))
    assert store.chats.settings(user, chat) is None
    assert store.chats.settings(user, store.chats.fork(user, message)) is None
    terse = store.presets.create(user, "terse", TERSE)
    store.chats.set_settings(user, chat, ChatSettings("Be terse.", {"seed": None}, terse))
    store.chats.set_settings(user, chat, ChatSettings("Be very terse.", {"seed": 3}, terse, notes=False))
    store.presets.change(user, terse, LOUD)
    taken = ChatSettings("Be very terse.", {"seed": 3}, terse, notes=False)
    for one in (chat, store.chats.fork(user, message)):
        assert store.chats.settings(user, one) == taken
    store.presets.delete(user, terse)
    assert store.chats.settings(user, chat) == replace(taken, preset_id=None)


def test_lone_surrogates_are_taken(store: Store, user: int) -> None:
    preset = store.presets.create(user, "\ud800", ChatSettings("\udfff", {"stop": ["\ud800"]}))
    assert store.presets.get(user, preset).settings == ChatSettings("?", {"stop": ["?"]}, preset)
