"""Chats as the door knows them: what the list holds, deletion with its deadline, change events, settings, projects."""

import threading
import time
from typing import Any

import pytest

from hierchat.chat import conversations, user_data
from hierchat.chat.conversations import Conversations
from hierchat.chat.in_progress import InProgress
from hierchat.config import GenerationSettings
from hierchat.store import NotFound, Store
from hierchat.store.backups import backups_of, require_whole
from hierchat.store.records import ChatSettings, NewMessage, Project


@pytest.fixture
def chats(store: Store) -> Conversations:
    hot = GenerationSettings(temperature=0.7)
    return Conversations(store, InProgress(store), lambda name: hot if name else GenerationSettings())


def in_file(store: Store, id: int, table: str = "conversations") -> bool:
    with store.connection.read() as db:
        return bool(db.execute(f"SELECT 1 FROM {table} WHERE id = ?", [id]).fetchone())


def test_the_list_says_whether_there_are_more(chats: Conversations, user: int) -> None:
    made = [chats.create(user) for _ in range(3)]
    chats.archive(user, made[1], True)
    found = chats.find(user, "", 1)
    assert (len(found.conversations), found.more, found.archived) == (1, True, 1)
    assert [chat.id for chat in chats.find(user, "", 9, archived=True).conversations] == [made[1]]
    chats.archive(user, made[1], False)
    assert len(chats.find(user, "", 9, archived=True).conversations) == 3  # none is archived: all are listed


def test_a_deleted_chat_is_out_of_sight_and_can_be_brought_back(
    chats: Conversations, store: Store, user: int
) -> None:
    chat, changes = chats.create(user), store.changes
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


def test_a_deletion_reaches_the_backups_at_once_where_that_is_wanted(
    chats: Conversations, store: Store, user: int
) -> None:
    """Not what was deleted before without that wish."""
    words = ("a kazoo", "a theremin", "a banjo")
    kept, earlier, gone = (chats.create(user) for _ in words)
    for chat, word in zip((kept, earlier, gone), words, strict=True):
        store.messages.add(user, chat, NewMessage(None, word))
    copy = store.backups.make()
    chats.delete(user, earlier)
    chats.delete(user, gone)
    wait_until_gone(store, earlier)
    told: list[tuple[int, list[int]]] = []
    chats._gone = lambda user, chats: told.append((user, [*chats]))
    assert chats.delete_from_backups(user)
    assert (user, [gone]) in told
    assert not in_file(store, gone)
    assert not chats.can_undo(user)
    assert [word for word in words if word.encode() in copy.read_bytes()] == list(words[:2])
    assert chats.delete_from_backups(user)  # there is nothing more


@pytest.mark.parametrize("by", ["time", "another deletion"])
def test_a_deletion_becomes_final(
    chats: Conversations, store: Store, user: int, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    monkeypatch.setattr(conversations, "UNDO_SECONDS", 0.01 if by == "time" else 60.0)
    ben, first, second = store.users.ensure("ben"), chats.create(user), chats.create(user)
    chats.delete(user, first)
    if by == "another deletion":
        chats.delete(ben, chats.create(ben))  # of another user: it ends nothing of ann's
        assert in_file(store, first)
        chats.delete(user, second)
    wait_until_gone(store, first)
    with pytest.raises(NotFound):
        chats.restore(user, first)


def wait_until_gone(store: Store, id: int, table: str = "conversations") -> None:
    """A thread deletes it."""
    for _ in range(500):
        if not in_file(store, id, table):
            return
        time.sleep(0.02)
    raise AssertionError("It is still in the file.")


def test_an_incognito_chat_is_erased_or_kept(chats: Conversations, store: Store, user: int) -> None:
    erased, kept = chats.create(user, incognito=True), chats.create(user, incognito=True)
    chats.keep_incognito(user, kept)
    chats.end_incognito(user, erased)
    wait_until_gone(store, erased)
    assert [chat.id for chat in chats.find(user, "", 9).conversations] == [kept]


def test_settings_follow_the_model_until_they_differ_and_presets_begin_new_chats(
    chats: Conversations, store: Store, user: int
) -> None:
    presets, changes, chat = store.presets, store.changes, chats.create(user)
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


def test_a_new_chat_begins_as_its_project_says(chats: Conversations, store: Store, user: int) -> None:
    warm = store.presets.create(user, "Warm", ChatSettings("Be kind.", {"temperature": 0.5, "seed": None}))
    usual = store.presets.create(user, "Usual", ChatSettings("Be brief.", {"seed": 3}))
    store.presets.set_default(user, usual)
    for project, prompt, preset in (
        (Project(0, "A"), "Be brief.", usual),
        (Project(0, "B", "Of plants."), "Of plants.", usual),
        (Project(0, "C", preset_id=warm), "Be kind.", warm),
        (Project(0, "D", "Of plants.", preset_id=warm), "Of plants.", warm),
    ):
        begins = chats.settings(user, None, store.projects.save(user, project))
        assert (begins.system_prompt, begins.preset_id) == (prompt, preset)
    assert chats.settings(user, None, 10**6).preset_id == usual  # deleted in another tab


def test_a_deleted_project_can_be_brought_back_until_the_next_deletion(
    chats: Conversations, store: Store, user: int
) -> None:
    garden, empty = (store.projects.save(user, Project(0, name)) for name in ("Garden", "Empty"))
    inside = chats.create(user, project=garden)
    store.messages.add(user, inside, NewMessage(None, "one"))
    deleted = chats.delete_project(user, garden)
    assert (deleted.title, deleted.project, chats.has(user, inside)) == ("Garden", True, False)
    chats.restore_project(user, garden)
    assert [one.id for one in chats.find(user, "", 9, unfolded=garden).inside] == [inside]
    chats.delete_project(user, garden)
    chats.delete_project(user, empty)  # the other deletion is final now
    wait_until_gone(store, garden, "projects")
    with pytest.raises(NotFound, match="deleted for good"):
        chats.restore_project(user, garden)
    with pytest.raises(NotFound):
        chats.restore_project(store.users.ensure("ben"), empty)
    chats.restore_project(user, empty)
    assert [one.name for one in store.projects.all(user)] == ["Empty"]


def test_a_backup_is_made_by_itself_and_what_keeps_it_from_that_is_told_once(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried, hindered, made = threading.Semaphore(0), [OSError("no room")] * 3, store.backups.make

    def make() -> Any:
        try:
            if hindered:
                raise hindered.pop()
            return made()
        finally:
            tried.release()

    monkeypatch.setattr(store.backups, "make", make)
    monkeypatch.setattr(user_data, "BACKUP_SECONDS", 0.01)
    data = user_data.UserData(store)
    data.back_up_daily()
    for _ in range(4):
        assert tried.acquire(timeout=30)
    data.close()
    (copy,) = backups_of(store.path)
    require_whole(copy)
    told = [one for one in caplog.records if one.name == user_data.__name__]
    assert [one.levelname for one in told] == ["WARNING"]
