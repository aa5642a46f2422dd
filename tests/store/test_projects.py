"""Projects: named, changed, filled with chats, and deleted with them; notes about the user."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hierchat.store import NotFound, Store, StoreError
from hierchat.store.records import ChatSettings, NewMessage, Project
from tests.testing.deleting import on_disk


def create(store: Store, user: int, name: str) -> int:
    return store.projects.save(user, Project(0, name))


def names(store: Store, user: int) -> list[tuple[str, int]]:
    return [(project.name, project.chats) for project in store.projects.all(user)]


def test_a_project_is_made_changed_and_renamed(store: Store, user: int) -> None:
    terse = store.presets.create(user, "terse", ChatSettings("Be terse.", {}))
    thesis = store.projects.save(user, Project(0, "  The\nthesis ", "Quote.", "tiny", terse))
    assert store.projects.get(user, thesis) == Project(thesis, "The thesis", "Quote.", "tiny", terse)
    assert store.projects.save(user, Project(thesis, "<b>bold</b>", preset_id=10**6)) == thesis
    create(store, user, "apples")
    assert names(store, user) == [("<b>bold</b>", 0), ("apples", 0)]
    assert store.projects.get(user, thesis) == Project(thesis, "<b>bold</b>")
    store.projects.save(user, Project(thesis, "The thesis", preset_id=terse))
    store.presets.delete(user, terse)
    assert store.projects.get(user, thesis) == Project(thesis, "The thesis")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (" \n\0", "A project needs a name. Type one."),
        ("x" * 300, "A project name has at most 100 characters. Take a shorter one."),
        ("Garden", "There is a project called “Garden” already. Take another name."),
    ],
)
def test_a_name_that_cannot_be_taken_is_refused(store: Store, user: int, name: str, said: str) -> None:
    create(store, user, "Garden")
    other = create(store, user, "Other")
    for id in (0, other):
        with pytest.raises(StoreError, match=re.escape(said)):
            store.projects.save(user, Project(id, name))
    assert names(store, user) == [("Garden", 0), ("Other", 0)]
    create(store, store.users.ensure("bob"), "Garden")
    store.projects.save(user, Project(other, "Other"))


def test_chats_move_in_and_out(store: Store, user: int) -> None:
    garden = create(store, user, "Garden")
    inside, outside = store.chats.create(user, "in", garden), store.chats.create(user, "out")
    store.chats.set_tags(user, inside, ["green"])

    def listed(**which: int) -> list[int]:
        return [chat.id for chat in store.chats.find(user, **which)]

    assert (listed(project=garden), listed(project=0)) == ([inside], [outside])
    assert sorted(listed()) == [inside, outside]
    assert [chat.id for chat in store.chats.find(user, "tag:green", project=0)] == [inside]
    store.projects.move(user, outside, garden)
    assert names(store, user) == [("Garden", 2)]
    message = store.messages.add(user, outside, NewMessage(None, "Hello"))
    assert store.chats.get(user, store.chats.fork(user, message)).project_id == garden
    store.projects.move(user, inside, None)
    assert store.chats.get(user, inside).project_id is None
    with pytest.raises(NotFound, match="deleted in another tab"):
        store.projects.move(user, inside, garden + 1)
    with pytest.raises(NotFound):
        store.chats.create(user, "", garden + 1)


def test_a_deleted_project_comes_back_with_its_chats(store: Store, user: int) -> None:
    garden = create(store, user, "Garden")
    kept, gone = store.chats.create(user, "kept", garden), store.chats.create(user, "gone", garden)
    store.chats.hide(user, gone)
    hidden = store.chats.hide_project(user, garden)
    assert (hidden, store.projects.all(user), store.chats.find(user)) == ([kept], [], [])
    for act in (store.projects.get, store.chats.hide_project):
        with pytest.raises(NotFound):
            act(user, garden)
    store.chats.restore_project(user, garden, hidden)
    assert names(store, user) == [("Garden", 1)]
    store.chats.delete_hidden()
    assert [chat.id for chat in store.chats.find(user, project=garden)] == [kept]
    with pytest.raises(NotFound, match="deleted for good"):
        store.chats.restore_project(user, garden + 1, [])


@pytest.mark.parametrize("ends", ["deleted", "closed", "killed"])
def test_nothing_of_a_deleted_project_is_left_in_the_file(path: Path, ends: str) -> None:
    with Store.open(path) as store:
        user = store.users.ensure("ann")
        garden = store.projects.save(user, Project(0, "Garden zinnia", "Think of zinnias."))
        chat = store.chats.create(user, "A zinnia", garden)
        store.messages.add(user, chat, NewMessage(None, "Where does the zinnia grow?"))
        other = store.chats.create(user, "An oak")
        hidden = store.chats.hide_project(user, garden)
        if ends == "deleted":
            store.chats.delete_hidden(hidden, garden)
            assert b"zinnia" not in on_disk(path)
        if ends == "killed":
            store.chats._hidden.clear()
            store.chats._hidden_projects.clear()
            with store.connection.write() as db:
                for table in ("conversations", "projects"):
                    db.execute(f"UPDATE {table} SET hider_started = 1 WHERE hidden_by IS NOT NULL")
    with Store.open(path) as store:
        assert b"zinnia" not in on_disk(path)
        assert [chat.id for chat in store.chats.find(user)] == [other]


def test_notes_are_kept_and_go_with_the_user(store: Store, user: int, path: Path) -> None:
    bob = store.users.ensure("bob")
    store.users.set_notes(user, "\n I grow zinnias.\n")
    assert (store.users.notes(user), store.users.notes(bob)) == ("I grow zinnias.", "")
    with pytest.raises(StoreError, match="at most 4,000 characters, and these have 5,000"):
        store.users.set_notes(user, "x" * 5_000)
    assert store.users.notes(user) == "I grow zinnias."
    assert store.users.forget(user)
    assert b"zinnias" not in on_disk(path)


def test_a_chat_leaves_the_notes_out(store: Store, user: int) -> None:
    chat = store.chats.create(user)
    message = store.messages.add(user, chat, NewMessage(None, "Hello"))
    store.chats.set_settings(user, chat, ChatSettings("", {}, notes=False))
    for one in (chat, store.chats.fork(user, message)):
        assert store.chats.settings(user, one) == ChatSettings("", {}, notes=False)
