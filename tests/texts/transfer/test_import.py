"""Nothing twice, only what is new, back again after a deletion; and what the store makes of imported messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hierchat.store import NewMessage, NewTurn, Store, TurnFigures
from tests.testing.deleting import delete_for_good

from .files import (
    branches,
    gpt_chat,
    gpt_node,
    gpt_sums,
    imported,
    open_branch,
    saved,
    studio_chat,
    studio_version,
    webui_chat,
)


def without_id(value: dict[str, Any]) -> dict[str, Any]:
    return {key: inside for key, inside in value.items() if key not in ("id", "conversation_id", "createdAt")}


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("made", [gpt_sums, webui_chat, studio_chat])
def test_the_same_again_is_left_out(store: Store, user: int, tmp_path: Path, made: Any, known: bool) -> None:
    value = made() if known else without_id(made())
    file = saved(tmp_path / "c.json", [value, value])
    assert imported(store, user, file).outcomes == {"new": 1, "same": 1}
    before = [store.transfer.export_chat(user, one.id) for one in store.chats.find(user)]
    again = imported(store, user, file)
    assert (again.outcomes, again.messages, again.characters) == ({"same": 2}, 0, 0)
    assert [store.transfer.export_chat(user, one.id) for one in store.chats.find(user)] == before


def test_another_user_has_copies_of_his_own(store: Store, user: int, tmp_path: Path) -> None:
    bob = store.users.ensure("bob")
    file = saved(tmp_path / "c.json", [gpt_sums()])
    for owner in (user, bob):
        assert imported(store, owner, file).outcomes == {"new": 1}
    (mine,), (his,) = store.chats.find(user), store.chats.find(bob)
    delete_for_good(store, user, mine.id)
    assert len(store.messages.path(bob, his.id)) == 4


def grown() -> dict[str, Any]:
    value = gpt_sums(update_time=1_700_009_999)
    value["mapping"] |= [
        gpt_node("q3", "a2", "user", ["And 3 + 3?"], create_time=1_700_009_000),
        gpt_node("a4", "q3", "assistant", ["6"], create_time=1_700_009_001),
    ]
    return value | {"current_node": "a4"}


def test_one_that_has_grown_gains_what_is_new(store: Store, user: int, tmp_path: Path) -> None:
    imported(store, user, saved(tmp_path / "c.json", [gpt_sums()]))
    (chat,) = store.chats.find(user)
    store.chats.rename(user, chat.id, "mine")
    done = imported(store, user, saved(tmp_path / "c.json", [grown()]))
    assert (done.outcomes, done.messages, done.characters) == ({"grown": 1}, 2, 11)
    assert [text for _, text in open_branch(store, user, chat.id)][-3:] == ["4", "And 3 + 3?", "6"]
    (after,) = store.chats.find(user)
    assert (after.title, after.updated_at) == ("mine", 1_700_009_999)
    assert len(branches(store, user, chat.id)) == 2


def test_what_was_said_here_since_stays_open(store: Store, user: int, tmp_path: Path) -> None:
    imported(store, user, saved(tmp_path / "c.json", [gpt_sums()]))
    (chat,) = store.chats.find(user)
    leaf = store.messages.path(user, chat.id)[-1].id
    store.messages.add(user, chat.id, NewMessage(leaf, "said here"))
    imported(store, user, saved(tmp_path / "c.json", [grown()]))
    assert open_branch(store, user, chat.id)[-1] == ("user", "said here")
    assert len(branches(store, user, chat.id)) == 3


def test_versions_that_lm_studio_adds(store: Store, user: int, tmp_path: Path) -> None:
    value = studio_chat()
    imported(store, user, saved(tmp_path / "c.json", value))
    value["messages"][1]["versions"].append(studio_version("assistant", "Later"))
    value["messages"][1]["currentlySelected"] = 2
    value["messages"][2] = {"versions": [], "currentlySelected": 0}
    assert imported(store, user, saved(tmp_path / "c.json", value)).outcomes == {"grown": 1}
    (chat,) = store.chats.find(user)
    assert ("Tell a joke", "Later") in branches(store, user, chat.id)


def test_a_deleted_one_comes_back(store: Store, user: int, tmp_path: Path) -> None:
    file = saved(tmp_path / "c.json", [gpt_sums()])
    imported(store, user, file)
    (chat,) = store.chats.find(user)
    before = branches(store, user, chat.id)
    delete_for_good(store, user, chat.id)
    assert imported(store, user, file).outcomes == {"new": 1}
    (again,) = store.chats.find(user)
    assert branches(store, user, again.id) == before


def test_one_whose_deletion_can_be_undone_comes_back(store: Store, user: int, tmp_path: Path) -> None:
    file = saved(tmp_path / "c.json", [gpt_sums()])
    imported(store, user, file)
    (chat,) = store.chats.find(user)
    before = branches(store, user, chat.id)
    store.chats.hide(user, chat.id)
    assert imported(store, user, file).outcomes == {"same": 1}
    store.chats.delete_hidden()
    (again,) = store.chats.find(user)
    assert branches(store, user, again.id) == before


def test_a_deleted_one_leaves_nothing_in_the_file(
    store: Store, user: int, path: Path, tmp_path: Path
) -> None:
    words = [f"xylophone{number:03d}" for number in range(200)]
    chat = gpt_chat(
        *[
            gpt_node(word, words[place - 1] if place else None, "user", [word])
            for place, word in enumerate(words)
        ],
        current=words[-1],
        title=words[7],
        conversation_id="uniquesource",
    )
    imported(store, user, saved(tmp_path / "c.json", [chat]))
    assert b"xylophone" in path.read_bytes() + path.with_name(path.name + "-wal").read_bytes()
    delete_for_good(store, user, store.chats.find(user)[0].id)
    data = path.read_bytes() + path.with_name(path.name + "-wal").read_bytes()
    assert b"xylophone" not in data
    assert b"uniquesource" not in data


def test_it_is_found_by_its_words(store: Store, user: int, tmp_path: Path) -> None:
    imported(store, user, saved(tmp_path / "c.json", [gpt_sums(), webui_chat()]))
    assert [one.title for one in store.chats.find(user, "four")] == ["Sums"]


def test_it_can_be_continued_here(store: Store, user: int, tmp_path: Path) -> None:
    imported(store, user, saved(tmp_path / "c.json", [gpt_sums()]))
    (chat,) = store.chats.find(user)
    question = store.messages.add(
        user, chat.id, NewMessage(store.messages.path(user, chat.id)[-1].id, "go on")
    )
    reply = store.replies.begin(user, chat.id, question, NewTurn("tiny", "k", {}, 7, True))
    store.replies.append(reply, "gladly", [1], ["target"])
    store.replies.finish(reply, "gladly", "complete", TurnFigures())
    assert [text for _, text in open_branch(store, user, chat.id)][-3:] == ["4", "go on", "gladly"]
    assert imported(store, user, saved(tmp_path / "c.json", [gpt_sums()])).outcomes == {"same": 1}


def test_its_texts_draft_as_those_that_no_model_wrote_here(store: Store, user: int, tmp_path: Path) -> None:
    imported(store, user, saved(tmp_path / "c.json", [gpt_sums()]))
    found = store.history.without_tokens(user, "k", 0, None, 100)
    assert [text for _, text in found] == ["What is 1 + 1?", "2", "And 2 + 2?", "4", "Four."]
    store.history.keep_tokens("k", [(id, [1, 2]) for id, _ in found])
    assert [len(store.history.ids(user, "k", kind)) for kind in ("written", "asked")] == [3, 2]  # type: ignore[arg-type]
