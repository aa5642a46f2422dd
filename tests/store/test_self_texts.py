"""What a model wrote for itself: whose it is, from which questions, and that nothing is left when it is deleted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hierchat.store import (
    Attachment,
    IdleSettings,
    Mark,
    NewTurn,
    Origin,
    SelfSize,
    SelfText,
    Store,
    SuffixRun,
    TurnFigures,
)
from tests.testing.deleting import delete_for_good

MODEL = "m"
IDS = tuple(range(70_000, 70_040))
BYTES = np.array(IDS, "<i4").tobytes()


def asked(store: Store, user: int, text: str = "Where does it end?", **named) -> tuple[int, int]:
    """A chat that begins with a question: conversation and message."""
    chat = store.create_conversation(user)
    return chat, store.add_message(user, chat, None, "user", text, **named)


def keep(
    store: Store, user: int, key: str = "a", origin: int | None = None, ids=IDS, done=True, turn=0
) -> bool:
    reply = SelfText(turn, ids, done)
    return store.keep_self_text(user, MODEL, key, reply, origin, deletions=store.deletions(user))


def texts(store: Store, user: int, model: str = MODEL) -> list[bytes]:
    return [ids for _, ids in store.drafting_texts(user, model, "self", Mark())[0]]


def on_disk(store: Store) -> bytes:
    return b"".join(path.read_bytes() for path in store.path.parent.glob(store.path.name + "*"))


def test_what_is_asked_for_is_kept(store: Store, user: int) -> None:
    assert store.learning(user) == IdleSettings(False, 10.0, 500_000)
    store.set_learning(user, IdleSettings(True, 5.0, 7))
    assert store.learning(user) == IdleSettings(True, 5.0, 7)
    assert store.learners() == [user]
    store.set_drafts_from(user, "chat")
    assert store.learners() == []  # nothing would draft from it
    guest = store.ensure_user(store.begin_guest())
    store.set_learning(guest, IdleSettings(True))
    assert (store.learners(), store.is_guest(guest), store.is_guest(user)) == ([], True, False)


def test_finished_replies_draft_for_one_user_and_model(store: Store, user: int) -> None:
    other = store.ensure_user("other")
    assert keep(store, user, "a", ids=IDS[:5], done=False)
    assert texts(store, user) == []
    assert store.self_replies(user, MODEL) == {"a": 0}
    _, mark = store.drafting_texts(user, MODEL, "self", Mark())
    assert keep(store, user, "a")
    assert store.self_texts(user, MODEL, "a") == [SelfText(0, IDS, True)]
    new, mark = store.drafting_texts(user, MODEL, "self", mark)
    assert [ids for _, ids in new] == [BYTES]
    assert store.drafting_ids(user, MODEL, "self") == {id for id, _ in new}
    assert store.drafting_texts(user, MODEL, "self", mark)[0] == []
    assert texts(store, other) == texts(store, user, "another") == []
    assert store.drafting_texts(user, MODEL, "written", Mark())[0] == []
    assert store.self_size(user) == SelfSize(1, 40, 160)
    assert store.self_size(other) == store.self_size(user, "another") == SelfSize()
    assert store.conversations(user) == []


def test_questions_open_chats_and_stand_for_themselves(store: Store, user: int) -> None:
    chat, first = asked(store, user)
    store.add_message(user, chat, first, "user", "And then, what happens?")
    asked(store, user, "Sum this up, please.", files=[Attachment("a.txt", 3, "abc")])
    asked(store, user, "x" * 500)
    asked(store, user, "Hi")
    system = store.create_conversation(user)
    above = store.add_message(user, system, None, "system", "Be brief, whatever is asked.")
    second = store.add_message(user, system, above, "user", "Why is it so?")
    incognito = store.begin_incognito(user)
    store.add_message(user, incognito, None, "user", "What nobody should know?")
    asked(store, store.ensure_user("other"), "What is another's question?")
    assert store.own_questions(user) == [(second, "Why is it so?"), (first, "Where does it end?")]
    store.hide_conversation(user, chat)
    assert [id for id, _ in store.own_questions(user)] == [second]


def test_a_deleted_chat_takes_along_what_was_made_from_it(store: Store, user: int) -> None:
    """At once out of the drafts, and back with it; out of the file when it is deleted for good."""
    chat, question = asked(store, user)
    keep(store, user, "made", question)
    keep(store, user, "shipped", ids=(1, 2, 3))
    names = dict(store.drafting_texts(user, MODEL, "self", Mark())[0])
    lengths = np.array([[name, len(ids) // 4] for name, ids in names.items()], np.int64)
    order = np.array([*range(40), 41, 42, 43], np.int32)
    run = SuffixRun(lengths, order)
    assert run.sound
    assert store.keep_suffix_runs(user, MODEL, "self", [run], deletions=store.deletions(user))
    store.hide_conversation(user, chat)
    assert len(texts(store, user)) == 1
    (left,) = store.suffix_runs(user, MODEL, "self")
    assert left.texts[:, 1].tolist() == [3]
    store.restore_conversation(user, chat)
    assert len(texts(store, user)) == 2
    assert BYTES in on_disk(store)
    delete_for_good(store, user, chat)
    assert store.self_replies(user, MODEL) == {"shipped": 1}
    assert BYTES not in on_disk(store)


def test_late_writing_is_refused(store: Store, user: int) -> None:
    """What was begun before a deletion, for a user who is gone, or from another's message."""
    chat, question = asked(store, user)
    _, others = asked(store, store.ensure_user("other"))
    before = store.deletions(user)
    assert not keep(store, user, origin=others)
    delete_for_good(store, user, chat)
    late = SelfText(0, IDS, True)
    assert not store.keep_self_text(user, MODEL, "a", late, question, deletions=before)
    assert not store.keep_self_text(user, MODEL, "a", late, None, deletions=before)
    assert not keep(store, user, origin=question)
    store.forget_user(user)
    assert not store.keep_self_text(user, MODEL, "a", late, None, deletions=0)


@pytest.mark.parametrize("forget", [False, True])
def test_deleting_leaves_no_byte(store: Store, user: int, forget: bool) -> None:
    for number in range(50):
        keep(store, user, f"key {number}", done=number % 2 == 0)
        keep(store, user, f"key {number}", done=True)
    assert BYTES in on_disk(store)
    assert b"key 17" in on_disk(store)
    before = store.deletions(user)
    assert store.forget_user(user) if forget else store.delete_self_texts(user)
    assert forget or store.deletions(user) > before  # whoever holds them looks
    assert BYTES not in on_disk(store)
    assert b"key 17" not in on_disk(store)
    assert BYTES[:24] not in on_disk(store)


def test_a_backup_holds_them_and_an_export_does_not(store: Store, user: int, tmp_path: Path) -> None:
    chat, question = asked(store, user)
    keep(store, user, origin=question)
    store.backup(tmp_path / "copy.db")
    with Store.open(tmp_path / "copy.db") as copy:
        assert texts(copy, user) == [BYTES]
    assert [message.text for message in store.chat(user, chat).messages] == ["Where does it end?"]


def test_what_it_was_worth_is_counted(store: Store, user: int) -> None:
    """Of drafted replies since the first text; the tokens whose draft was found there."""

    def reply(found: int, drafted: bool = True) -> None:
        chat, question = asked(store, user)
        turn = NewTurn(MODEL, MODEL, {}, 0, drafted)
        message = store.begin_reply(user, chat, question, turn)
        sources = [*["history"] * found, *["target"] * (10 - found)]
        origins = [*[Origin("self", 3, 0.5)] * found, *[Origin()] * (10 - found)]
        store.append_reply(message, "x", list(range(10)), sources, origins)
        store.finish_reply(message, "x", "complete", TurnFigures(forwards=6, tokens_per_forward=10 / 6))

    reply(0)
    assert store.drafted_from_self(user).tokens == 0
    keep(store, user)
    reply(4)
    reply(0)
    reply(3, drafted=False)
    found = store.drafted_from_self(user, MODEL)
    assert (found.tokens, found.forwards, found.found) == (20, 12, 4)
    assert store.drafted_from_self(user, "another").tokens == 0
