"""Generated texts: whose they are, from which questions, and that nothing is left when they are deleted."""

import numpy as np

from hierchat.store import GeneratedSize, GeneratedText, Mark, Store
from hierchat.store.records import Attachment, NewMessage
from tests.testing.deleting import delete_for_good, on_disk

MODEL = "m"
IDS = tuple(range(70_000, 70_040))
BYTES = np.array(IDS, "<i4").tobytes()


def asked(store: Store, user: int, text: str = "Where does it end?", **named) -> tuple[int, int]:
    """A chat that begins with a question: conversation and message."""
    chat = store.chats.create(user)
    return chat, store.messages.add(user, chat, NewMessage(None, text, **named))


def keep(
    store: Store, user: int, key: str = "a", origin: int | None = None, ids=IDS, done=True, turn=0
) -> bool:
    reply = GeneratedText(turn, ids, done)
    return store.generated.keep(user, MODEL, key, reply, origin, deletions=store.users.deletions(user))


def texts(store: Store, user: int, model: str = MODEL) -> list[bytes]:
    return [one.tokens for one in store.history.texts(user, model, "self", Mark())[0]]


def test_what_is_asked_for_is_kept(store: Store, user: int) -> None:
    assert store.users.with_idle_generation() == []
    store.users.choose(user, learns=True)
    assert store.users.with_idle_generation() == [user]
    store.users.choose(user, drafts_from="chat")
    assert store.users.with_idle_generation() == []  # nothing would draft from it
    guest = store.users.ensure(store.guests.begin())
    store.users.choose(guest, learns=True)
    assert store.users.with_idle_generation() == []
    assert (store.users.is_guest(guest), store.users.is_guest(user)) == (True, False)


def test_finished_replies_draft_for_one_user_and_model(store: Store, user: int) -> None:
    other = store.users.ensure("other")
    assert keep(store, user, "a", ids=IDS[:5], done=False)
    assert texts(store, user) == []
    assert store.generated.replies(user, MODEL) == {"a": 0}
    _, mark = store.history.texts(user, MODEL, "self", Mark())
    assert keep(store, user, "a")
    assert store.generated.texts(user, MODEL, "a") == [GeneratedText(0, IDS, True)]
    new, mark = store.history.texts(user, MODEL, "self", mark)
    assert [one.tokens for one in new] == [BYTES]
    assert store.history.ids(user, MODEL, "self") == {one.id for one in new}
    assert store.history.texts(user, MODEL, "self", mark)[0] == []
    assert texts(store, other) == texts(store, user, "another") == []
    assert store.history.texts(user, MODEL, "written", Mark())[0] == []
    assert store.generated.size(user) == GeneratedSize(1, 40, 160)
    assert store.generated.size(other) == store.generated.size(user, "another") == GeneratedSize()
    assert store.chats.find(user) == []


def test_questions_open_chats_and_stand_for_themselves(store: Store, user: int) -> None:
    chat, first = asked(store, user)
    store.messages.add(user, chat, NewMessage(first, "And then, what happens?"))
    asked(store, user, "Sum this up, please.", files=[Attachment("a.txt", 3, "abc")])
    asked(store, user, "x" * 500)
    asked(store, user, "Hi")
    system = store.chats.create(user)
    above = store.messages.add(user, system, NewMessage(None, "Be brief, whatever is asked.", "system"))
    second = store.messages.add(user, system, NewMessage(above, "Why is it so?"))
    incognito = store.chats.begin_incognito(user)
    store.messages.add(user, incognito, NewMessage(None, "What nobody should know?"))
    asked(store, store.users.ensure("other"), "What is another's question?")
    assert store.generated.questions(user) == [(second, "Why is it so?"), (first, "Where does it end?")]
    store.chats.hide(user, chat)
    assert [id for id, _ in store.generated.questions(user)] == [second]


def test_a_deleted_chat_takes_along_what_was_made_from_it(store: Store, user: int) -> None:
    """At once out of the drafts, and back with it; out of the file when it is deleted for good."""
    chat, question = asked(store, user)
    keep(store, user, "made", question)
    keep(store, user, "shipped", ids=(1, 2, 3))
    store.chats.hide(user, chat)
    assert len(texts(store, user)) == 1
    store.chats.restore(user, chat)
    assert len(texts(store, user)) == 2
    assert BYTES in on_disk(store.path)
    delete_for_good(store, user, chat)
    assert store.generated.replies(user, MODEL) == {"shipped": 1}
    assert BYTES not in on_disk(store.path)


def test_late_writing_is_refused(store: Store, user: int) -> None:
    """What was begun before a deletion, for a user who is gone, or from another's message."""
    chat, question = asked(store, user)
    _, others = asked(store, store.users.ensure("other"))
    before = store.users.deletions(user)
    assert not keep(store, user, origin=others)
    delete_for_good(store, user, chat)
    late = GeneratedText(0, IDS, True)
    assert not store.generated.keep(user, MODEL, "a", late, question, deletions=before)
    assert not store.generated.keep(user, MODEL, "a", late, None, deletions=before)
    assert not keep(store, user, origin=question)
    store.users.forget(user)
    assert not store.generated.keep(user, MODEL, "a", late, None, deletions=0)


def test_deleting_leaves_no_byte(store: Store, user: int) -> None:
    for number in range(50):
        keep(store, user, f"key {number}", done=number % 2 == 0)
        keep(store, user, f"key {number}", done=True)
    assert BYTES in on_disk(store.path)
    assert b"key 17" in on_disk(store.path)
    before = store.users.deletions(user)
    assert store.generated.delete(user)
    assert store.users.deletions(user) > before  # whoever holds them looks
    assert BYTES not in on_disk(store.path)
    assert b"key 17" not in on_disk(store.path)
    assert BYTES[:24] not in on_disk(store.path)
