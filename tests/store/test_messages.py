"""Messages: a tree against a dictionary of parents, edited replies, attachments, questions that wait."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hierchat.store import NotFound, Store, StoreError
from hierchat.store.records import Attachment, NewMessage, NewTurn, TurnFigures
from hierchat.store.repository import title_of
from tests.testing.deleting import delete_for_good, on_disk
from tests.testing.stores import chat_of, child, drafting, last_replies, new_store, replied

TURN = NewTurn(model="tiny", model_key="k", settings={}, seed=0, drafted=True)


@settings(max_examples=60, deadline=None)
@given(text=st.text(st.characters(exclude_categories=())))
def test_text_comes_back_as_it_went_in(shared: Store, text: str) -> None:
    user = shared.users.ensure("text")
    message = shared.messages.add(user, shared.chats.create(user, text), NewMessage(None, text))
    stored = shared.messages.get(user, message).text
    assert stored == "".join("?" if "\ud800" <= c <= "\udfff" else c for c in text)


def test_the_first_user_message_gives_the_title(store: Store, user: int) -> None:
    conversation = store.chats.create(user)
    system = store.messages.add(user, conversation, NewMessage(None, "Be brief.", "system"))
    store.messages.add(user, conversation, NewMessage(system, "  How do\n tides work? "))
    store.messages.add(user, conversation, NewMessage(system, "another"))
    assert store.chats.find(user)[0].title == "How do tides work?"
    store.chats.rename(user, conversation, "Tides")
    assert store.chats.find(user)[0].title == "Tides"
    assert title_of("word " * 40) == "word " * 11 + "word…"
    assert title_of("x" * 90) == "x" * 60 + "…"


def test_the_latest_changed_comes_first_and_takes_no_leaf_of_another(store: Store, user: int) -> None:
    one, two = store.chats.create(user, "one"), store.chats.create(user, "two")
    assert [c.id for c in store.chats.find(user)] == [two, one]
    message = store.messages.add(user, one, NewMessage(None, "hello"))
    assert [c.id for c in store.chats.find(user)] == [one, two]
    assert [c.id for c in store.chats.find(user, limit=1)] == [one]
    with pytest.raises(NotFound):
        store.messages.add(user, two, NewMessage(message, "hello"))
    with pytest.raises(NotFound):
        store.messages.path(user, two, message)
    assert store.messages.path(user, two) == []


def test_a_conversation_deeper_than_any_limit_can_be_deleted(store: Store, user: int) -> None:
    conversation = store.chats.create(user)
    parent = None
    with store.connection.write() as db:
        for _ in range(1500):
            parent = store.messages.insert(db, user, conversation, NewMessage(parent, "on"))
    assert len(store.messages.path(user, conversation)) == 1500
    delete_for_good(store, user, conversation)
    assert store.chats.find(user) == []


def test_an_edited_reply_drafts_as_the_users_text_and_counts_as_nothing(store: Store, user: int) -> None:
    """So does its copy, once the original is gone."""
    figures = TurnFigures(forwards=1, proposed=1, accepted=1)
    reply = replied(store, user, text="text", turn=TURN, figures=figures)
    chat, days = (
        chat_of(store, user, reply),
        store.figures.over_time(user, 500),
    )
    edited = store.messages.edit_reply(user, reply, "better text")
    path = store.messages.path(user, chat)
    assert [message.id for message in path] == [reply - 1, edited]
    assert path[-1].siblings == (reply, edited)
    assert (path[-1].edited, path[-1].model, path[-1].role) == (True, "", "assistant")
    before = store.messages.get(user, reply)
    assert (before.text, before.edited, before.model) == ("text", False, "tiny")
    with pytest.raises(StoreError, match="Only a reply"):
        store.messages.edit_reply(user, reply - 1, "no")
    assert (edited, "better text") in store.history.without_tokens(user, "k", 0, None, 9)
    store.history.keep_tokens("k", [(edited, [7, 8]), (reply - 1, [9])])
    assert set(drafting(store, user, "written")) == {reply}
    assert set(drafting(store, user, "asked")) == {reply - 1, edited}
    assert store.history.ids(user, "k", "asked") == {reply - 1, edited}
    assert last_replies(store, user, "k", 9) == [reply]
    assert store.figures.over_time(user, 500) == days
    assert days.whole.replies == 1
    assert store.replies.turn(user, edited) is None
    fork = store.chats.fork(user, edited)
    delete_for_good(store, user, chat)
    copy = store.messages.path(user, fork)[-1]
    assert copy.edited
    store.history.keep_tokens("k", [(copy.id, [7])])
    assert copy.id in drafting(store, user, "asked")
    assert copy.id not in drafting(store, user, "written")


REPORT = Attachment("report.pdf", 12_345, "The lighthouse of Alexandria was tall.")
CODE = Attachment("code.py", 20, "def zymurgy():\n    pass\n")


def test_attachments_are_found_forked_and_gone_with_their_chat(store: Store, user: int, path: Path) -> None:
    chat = store.chats.create(user)
    message = store.messages.add(user, chat, NewMessage(None, "", files=[REPORT, CODE]))
    assert store.chats.get(user, chat).title == "report.pdf"  # of files alone: called after the first
    (read,) = store.messages.path(user, chat)
    assert [(head.name, head.size) for head in read.attachments] == [("report.pdf", 12_345), ("code.py", 20)]
    assert store.messages.get(user, message).attachments == read.attachments
    assert store.messages.attachments(user, message) == [REPORT, CODE]
    assert store.messages.attachment(user, read.attachments[1].id) == CODE
    for query in ("lighthouse", "zymurgy", "report.pdf"):
        (found,) = store.chats.find(user, query)
        assert (found.id, found.message_id) == (chat, message)
    assert "\x02Alexandria\x03" in store.chats.find(user, "alexandria tall")[0].snippet
    fork = store.chats.fork(user, message)
    store.chats.hide(user, chat)
    assert [found.id for found in store.chats.find(user, "lighthouse")] == [fork]
    store.chats.delete_hidden()
    (copy,) = store.messages.path(user, fork)
    assert store.messages.attachments(user, copy.id) == [REPORT, CODE]
    assert [found.id for found in store.chats.find(user, "zymurgy")] == [fork]
    delete_for_good(store, user, fork)
    data = on_disk(path)
    assert [word for word in (b"ighthouse", b"zymurgy", b"report.pdf") if word in data] == []
    with pytest.raises(NotFound):
        store.messages.attachment(user, read.attachments[0].id)


def waits(path: Path, say: Callable[..., None]) -> Store:
    """Leave questions that wait: in a new chat, behind a reply, as another version, in chats that nobody should see."""
    store = new_store(path)
    user = store.users.ensure("ann")

    def enqueue(chat: int, text: str, parent: int | None = None, *, file: str, at_end: bool) -> int | None:
        files = [Attachment(f"{file}.txt", 1, f"text of {file}")]
        return store.messages.enqueue(user, chat, NewMessage(parent, text, files=files), at_end=at_end)

    fresh, busy, edited, hidden = (store.chats.create(user) for _ in range(4))
    enqueue(fresh, "A first question", file="a", at_end=False)
    reply = replied(store, user, busy, "so far", state="writing")
    enqueue(busy, "Second", reply - 1, file="b", at_end=True)
    enqueue(busy, "Third", reply - 1, file="c", at_end=True)
    store.messages.add(user, edited, NewMessage(None, "before"))
    enqueue(edited, "edited", file="d", at_end=False)
    enqueue(hidden, "a hidden pangolin", file="e", at_end=False)
    store.chats.hide(user, hidden)
    assert enqueue(store.chats.begin_incognito(user), "a secret pangolin", file="f", at_end=False) is None
    say(fresh, busy, edited)
    return store


def test_after_a_kill_questions_that_wait_stand_in_their_chats_without_a_reply(path: Path) -> None:
    with child(partial(waits, path)) as process:
        fresh, busy, edited = map(int, process.said.readline().split())
        with Store.open(path) as beside:  # it still runs: they are its own
            user = beside.users.ensure("ann")
            assert beside.messages.path(user, fresh) == []
            assert {c.id for c in beside.chats.find(user)} == {edited, busy, fresh}
    for _ in range(2):  # the second start finds nothing more to do
        with Store.open(path) as store:
            (question,) = store.messages.path(user, fresh)
            assert (question.role, question.text, question.state) == ("user", "A first question", "complete")
            assert store.messages.attachments(user, question.id) == [Attachment("a.txt", 1, "text of a")]
            assert store.chats.get(user, fresh).title == "A first question"
            assert [c.id for c in store.chats.find(user, "first")] == [fresh]
            _, reply, question = store.messages.path(user, busy)
            assert (reply.text, reply.state) == ("so far", "interrupted")
            assert (question.text, question.parent_id) == ("Second\n\nThird", reply.id)
            assert [file.name for file in store.messages.attachments(user, question.id)] == ["b.txt", "c.txt"]
            (question,) = store.messages.path(user, edited)
            assert (question.text, len(question.siblings)) == ("edited", 2)
            assert len(store.chats.find(user)) == 3
    assert b"pangolin" not in on_disk(path)


def test_closing_makes_messages_of_what_this_store_holds(store: Store, user: int, path: Path) -> None:
    mine, theirs = store.chats.create(user), store.chats.create(user)
    store.messages.enqueue(user, mine, NewMessage(None, "mine"), at_end=True)
    with Store.open(path) as other:
        other.messages.enqueue(user, theirs, NewMessage(None, "theirs"), at_end=True)
    assert store.messages.path(user, mine) == []
    assert [message.text for message in store.messages.path(user, theirs)] == ["theirs"]


def test_it_becomes_a_message_once(store: Store, user: int) -> None:
    conversation = store.chats.create(user)
    held = store.messages.enqueue(user, conversation, NewMessage(None, "question"), at_end=True)
    store.messages.add(user, conversation, NewMessage(None, "question"), [held])
    with pytest.raises(NotFound):
        store.messages.add(user, conversation, NewMessage(None, "question"), [held])
    store.messages.dequeue(held)
    store.close()
    with Store.open(store.path) as again:
        assert [message.text for message in again.messages.path(user, conversation)] == ["question"]


@pytest.mark.parametrize("with_its_chat", [False, True])
def test_a_question_that_is_taken_back_is_in_no_file(
    store: Store, user: int, path: Path, with_its_chat: bool
) -> None:
    conversation, files = store.chats.create(user), [Attachment("long.txt", 1, "quagga " * 5_000)]
    question = NewMessage(None, "about an okapi", files=files)
    held = store.messages.enqueue(user, conversation, question, at_end=True) or 0
    assert b"okapi" in on_disk(path)
    assert not store.chats.discard(user, conversation)  # one waits in it
    if with_its_chat:
        delete_for_good(store, user, conversation)
    else:
        store.messages.dequeue(held)
        assert store.chats.discard(user, conversation)
    assert b"okapi" not in on_disk(path)
    assert b"quagga" not in on_disk(path)
    with pytest.raises(NotFound):
        store.messages.add(user, conversation, question, [held])
    with pytest.raises(NotFound):
        store.messages.enqueue(user, conversation, NewMessage(None, "more"), at_end=True)
