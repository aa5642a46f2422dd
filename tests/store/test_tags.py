"""Tags of conversations: given, found, copied, forgotten."""

from __future__ import annotations

import pytest

from hierchat.store import NewMessage, NotFound, Store
from tests.testing.deleting import delete_for_good


@pytest.fixture
def ids(store: Store, user: int) -> dict[str, int]:
    return {title: store.chats.create(user, title) for title in ("chat A", "chat B", "chat C")}


def titles(store: Store, user: int, query: str) -> list[str]:
    return [c.title for c in store.chats.find(user, query)]


def test_a_search_finds_by_tags_and_words(store: Store, user: int, ids: dict[str, int]) -> None:
    store.chats.set_tags(user, ids["chat A"], ["work", "Two words"])
    store.chats.set_tags(user, ids["chat B"], ["WORK"])
    store.chats.archive(user, ids["chat B"], True)
    assert store.chats.tags(user) == ["Two words", "work"]
    assert store.chats.get(user, ids["chat A"]).tags == ("Two words", "work")
    assert [c.tags for c in store.chats.find(user)] == [(), ("Two words", "work")]
    assert titles(store, user, "tag:Work") == ["chat A", "chat B"]  # archived ones last
    assert titles(store, user, 'tag:work tag:"two words"') == ["chat A"]
    assert titles(store, user, 'chat tag:"two words"') == ["chat A"]
    assert titles(store, user, "tag:work nothing") == []
    assert titles(store, user, "tag:other") == []
    assert titles(store, user, "tag:") == []  # a word as any other, until there is a name
    store.chats.set_tags(user, ids["chat A"], ["work"])
    assert titles(store, user, 'tag:"two words"') == []
    assert store.chats.tags(user) == ["work"]


def test_a_tag_is_one_short_line(store: Store, user: int, ids: dict[str, int]) -> None:
    store.chats.set_tags(user, ids["chat A"], [' #a\n"b" ', "", "  ", "x" * 99, "X" * 99, "\0"])
    assert store.chats.get(user, ids["chat A"]).tags == ("a b", "x" * 40)


def test_tags_are_ones_own_and_go_with_the_chat(store: Store, user: int, ids: dict[str, int]) -> None:
    bob = store.users.ensure("bob")
    store.chats.set_tags(user, ids["chat A"], ["work"])
    with pytest.raises(NotFound):
        store.chats.set_tags(bob, ids["chat A"], ["mine"])
    assert store.chats.tags(bob) == []
    store.chats.hide(user, ids["chat A"])
    assert store.chats.tags(user) == []
    store.chats.restore(user, ids["chat A"])
    assert store.chats.tags(user) == ["work"]
    delete_for_good(store, user, ids["chat A"])
    assert store.chats.tags(user) == []


def test_a_fork_has_the_tags_of_its_chat(store: Store, user: int, ids: dict[str, int]) -> None:
    store.chats.set_tags(user, ids["chat A"], ["work"])
    message = store.messages.add(user, ids["chat A"], NewMessage(None, "?"))
    assert store.chats.get(user, store.chats.fork(user, message)).tags == ("work",)
