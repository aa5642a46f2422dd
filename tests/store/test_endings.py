"""What lives no longer than the process that made it: hidden and incognito chats, deleted projects, guests."""

from collections.abc import Callable
from pathlib import Path

import pytest

from hierchat.store import Store
from hierchat.store.records import ChatSettings, NewMessage, Project
from tests.testing.deleting import on_disk
from tests.testing.secrets import SECRET, fill
from tests.testing.stores import killed, new_store


def hidden_chat(store: Store, user: int) -> None:
    chat = store.chats.create(user, SECRET)
    store.chats.set_settings(user, chat, ChatSettings(SECRET, {}))
    store.messages.add(user, chat, NewMessage(None, SECRET))
    store.chats.hide(user, chat)


def incognito_chat(store: Store, user: int) -> None:
    store.messages.add(user, store.chats.begin_incognito(user), NewMessage(None, SECRET))


def hidden_project(store: Store, user: int) -> None:
    project = store.projects.save(user, Project(0, SECRET, SECRET))
    store.messages.add(user, store.chats.create(user, SECRET, project), NewMessage(None, SECRET))
    store.chats.hide_project(user, project)


def guest(store: Store, user: int) -> None:
    fill(store, store.guests.begin())


@pytest.mark.parametrize("makes", [hidden_chat, incognito_chat, hidden_project, guest])
@pytest.mark.parametrize("is_killed", [False, True])
def test_it_goes_when_the_store_closes_or_at_the_next_start(
    path: Path, makes: Callable[[Store, int], None], is_killed: bool
) -> None:
    def begins() -> Store:
        store = new_store(path)
        user = store.users.ensure("ann")
        store.chats.create(user, "kept")
        makes(store, user)
        with Store.open(path):  # another command over the same file leaves it alone
            assert SECRET.encode() in on_disk(path)
        return store

    if is_killed:
        killed(begins)
        assert SECRET.encode() in on_disk(path)
    else:
        begins().close()
        assert SECRET.encode() not in on_disk(path)
    with Store.open(path) as store:
        assert SECRET.encode() not in on_disk(path)
        assert list(store.users.ids()) == ["ann"]
        assert [chat.title for chat in store.chats.find(store.users.ensure("ann"))] == ["kept"]


@pytest.mark.parametrize("again", [False, True])
def test_a_guest_who_left_before_leaves_nothing_either(path: Path, again: bool) -> None:
    with new_store(path) as store:
        guest = store.guests.begin()
        assert store.guests.begin() != guest
        store.users.forget(fill(store, guest).user)
        assert SECRET.encode() not in on_disk(path)
        if again:  # a request that was on its way makes the user once more
            fill(store, guest)
    assert SECRET.encode() not in on_disk(path)
    with Store.open(path) as store:
        assert store.users.ids() == {}
