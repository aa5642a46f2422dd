"""What replies teach: kept over a restart, written seldom, never in a reply's way, gone with a conversation."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hierchat.drafting.acceptance import Acceptance
from hierchat.drafting.source import TOP
from hierchat.runtime import served_model as module
from hierchat.runtime.served_model import ACCEPTANCE, LEVELS, MOST, SUCCESSORS, Learned, LearnedState
from hierchat.store import Store, StoreError
from tests.drafting.databases import followers
from tests.testing.deleting import delete_for_good
from tests.testing.stores import new_store

from ..chat.conftest import Talk, talk_on

ROW = np.arange(TOP, dtype=np.int32)[None]


def user_of(store: Store, name: str = "ann") -> int:
    return store.users.ensure(name)


def taught(learned: Learned, user: int, model: str = "m", token: int = 5) -> LearnedState:
    state = learned.held(user, model)
    state.successors.update([3, token], ROW)
    return state


def test_it_lives_from_reply_to_reply_and_over_a_restart(tmp_path: Path) -> None:
    """What databases below draft models learned, too."""
    with new_store(tmp_path / "a.db") as store:
        user, learned = user_of(store), Learned(store)
        state = taught(learned, user)
        state.levels["small"] = below = Acceptance()
        below.curve += 3
        assert learned.held(user, "m") is state
        assert followers(learned.held(user, "other").successors, 5) == []
        assert followers(learned.held(user_of(store, "bob"), "m").successors, 5) == []
        assert learned.save(now=True)
    with Store.open(tmp_path / "a.db") as store:
        again = Learned(store).held(user, "m")
        assert followers(again.successors, 3, 5) == ROW[0].tolist()
        assert again.acceptance.to_bytes() == state.acceptance.to_bytes()
        assert {name: one.to_bytes() for name, one in again.levels.items()} == {"small": below.to_bytes()}
        assert Learned(store).held(user, "other").levels == {}


def test_it_is_written_seldom(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    user, learned = user_of(store), Learned(store)
    taught(learned, user)
    clock[0] = 29.0
    assert not learned.save()
    assert store.learned.get(user, "m", SUCCESSORS) is None
    clock[0] = 31.0
    assert learned.save()
    first = store.learned.get(user, "m", SUCCESSORS)
    assert first
    taught(learned, user, token=6)
    assert not learned.save()
    assert store.learned.get(user, "m", SUCCESSORS) == first


@pytest.mark.parametrize("elsewhere", [False, True])
def test_it_goes_with_a_conversation_here_and_in_the_store(store: Store, elsewhere: bool) -> None:
    """Also where another process deletes that."""
    user, learned, other_user = user_of(store), Learned(store), user_of(store, "bob")
    conversation = store.chats.create(user)
    taught(learned, other_user)
    state = taught(learned, user)
    state.levels["small"] = Acceptance()
    learned.save(now=True)
    assert store.learned.get(user, "m", LEVELS)
    taught(learned, user, token=6)
    with Store.open(store.path) as there:
        delete_for_good(there if elsewhere else store, user, conversation)
    learned.save(now=True)  # as at the end of a reply that ran meanwhile
    for kind in (SUCCESSORS, ACCEPTANCE, LEVELS):
        assert store.learned.get(user, "m", kind) is None
    fresh = learned.held(user, "m")
    assert fresh is not state
    assert followers(fresh.successors, 5) == []
    assert followers(learned.held(other_user, "m").successors, 5) == ROW[0].tolist()
    taught(learned, user, token=7)
    assert learned.save(now=True)
    assert followers(Learned(store).held(user, "m").successors, 7) == ROW[0].tolist()


@pytest.mark.parametrize(
    "value", [b"", b"damaged", b'{"sources": 3}', b'{"small": "bm8="}', b"HCsu\x09" + bytes(20)]
)
def test_damage_is_a_fresh_start(store: Store, value: bytes) -> None:
    user = user_of(store)
    for kind in (ACCEPTANCE, SUCCESSORS, LEVELS):
        store.learned.keep(user, "m", kind, value)
    state = Learned(store).held(user, "m")
    assert state.acceptance.to_bytes() == LearnedState(0).acceptance.to_bytes()
    assert followers(state.successors, 5) == []
    assert state.levels == {}


def test_only_a_few_are_held_and_none_is_lost(store: Store) -> None:
    learned = Learned(store)
    users = [user_of(store, str(number)) for number in range(MOST + 2)]
    for user in users:
        taught(learned, user)
    assert len(learned._held) == MOST
    for user in users:
        assert followers(learned.held(user, "m").successors, 5) == ROW[0].tolist()


def test_a_full_disk_is_not_heard_of(store: Store) -> None:
    user, learned = user_of(store), Learned(store)
    state = taught(learned, user)
    random = np.random.default_rng(0)
    state.successors.update([1, *random.permutation(9000)], random.integers(0, 9000, (9000, TOP), np.int32))
    db = store.connection._idle[-1]
    db.execute(f"PRAGMA max_page_count = {db.execute('PRAGMA page_count').fetchone()[0]}")
    learned.save(now=True)
    assert store.learned.get(user, "m", SUCCESSORS) is None
    assert learned.held(user, "m") is state


def test_a_reply_writes_it_down_after_its_last_frame(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be written does not touch it."""
    monkeypatch.setattr(module, "SAVE_SECONDS", 0.0)
    kept = []

    def keep(*values: Any, **more: Any) -> bool:
        kept.append(talk.messages()[-1].state)
        raise StoreError("The disk is full.")

    monkeypatch.setattr(talk.store.learned, "keep", keep)
    frames = []
    for frame in talk.sending("hello"):
        frames.append(frame)
        assert kept == []
    assert frames[-1].finish == "length"
    assert set(kept) == {"complete"}
    assert talk.messages()[-1].state == "complete"


def test_closing_writes_it_down(talk: Talk) -> None:
    key = talk.model.model_key
    talk.send("hello hello hello hello")
    assert talk.store.learned.get(talk.user, key, ACCEPTANCE) is None
    talk.service.close()
    kept = talk.store.learned.get(talk.user, key, ACCEPTANCE)
    assert kept
    state = talk_on(talk.store, talk.service.slot).service._learned.held(talk.user, key)
    assert state.acceptance.to_bytes() == kept


def test_closing_does_not_wait_for_a_reply(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hierchat.chat.service.CLOSE_SECONDS", 0.01)
    frames = talk.sending("hello")
    next(frames)
    next(frames)
    talk.service.close()
    assert talk.store.learned.get(talk.user, talk.model.model_key, ACCEPTANCE) is None
    frames.close()
