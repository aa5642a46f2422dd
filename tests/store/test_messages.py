"""Messages: a tree against a dictionary of parents, edited replies, attachments, questions that wait."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hierchat.store import NotFound, Store, StoreError
from hierchat.store.connection import title_of
from hierchat.store.records import Attachment, NewMessage, NewTurn, TurnFigures
from tests.testing.deleting import delete_for_good, on_disk
from tests.testing.stores import drafting, replied

TURN = NewTurn(model="tiny", model_key="k", settings={}, seed=0, drafted=True)


def test_an_edit_and_a_regeneration_are_siblings(store: Store, user: int) -> None:
    conversation = store.chats.create(user)
    question = store.messages.add(user, conversation, NewMessage(None, "one?"))
    first = store.messages.add(user, conversation, NewMessage(question, "1", "assistant"))
    second = store.replies.begin(user, conversation, question, TURN)
    assert [m.id for m in store.messages.path(user, conversation)] == [question, second]
    assert store.messages.get(user, first).siblings == (first, second)
    edited = store.messages.add(user, conversation, NewMessage(None, "two?"))
    assert [m.text for m in store.messages.path(user, conversation)] == ["two?"]
    assert store.messages.path(user, conversation)[0].siblings == (question, edited)
    assert store.messages.select_branch(user, question) == second
    assert store.messages.select_branch(user, first) == first
    assert [m.text for m in store.messages.path(user, conversation)] == ["one?", "1"]
    assert [m.id for m in store.messages.path(user, conversation, edited)] == [edited]


@settings(max_examples=40, deadline=None)
@given(parents=st.lists(st.integers(min_value=-1), max_size=25), chosen=st.integers(min_value=0))
def test_any_tree(shared: Store, parents: list[int], chosen: int) -> None:
    user = shared.users.ensure("tree")
    conversation = shared.chats.create(user)
    tree: dict[int, int | None] = {}
    for number in parents:
        parent = list(tree)[number % len(tree)] if tree and number >= 0 else None
        tree[shared.messages.add(user, conversation, NewMessage(parent, str(number)))] = parent
    shown = shared.messages.path(user, conversation)
    assert [m.id for m in shown] == (path_to(tree, max(tree)) if tree else [])
    for message in shown:
        assert message.siblings == tuple(id for id in tree if tree[id] == message.parent_id)
    for id in tree:
        assert [m.id for m in shared.messages.path(user, conversation, id)] == path_to(tree, id)
    if tree:
        node = list(tree)[chosen % len(tree)]
        leaf = shared.messages.select_branch(user, node)
        assert leaf == max(id for id in tree if node in path_to(tree, id))
        assert leaf not in tree.values()
        assert [m.id for m in shared.messages.path(user, conversation)] == path_to(tree, leaf)


def path_to(tree: dict[int, int | None], node: int | None) -> list[int]:
    return [] if node is None else [*path_to(tree, tree[node]), node]


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


def test_the_latest_changed_comes_first(store: Store, user: int) -> None:
    one, two = store.chats.create(user, "one"), store.chats.create(user, "two")
    assert [c.id for c in store.chats.find(user)] == [two, one]
    store.messages.add(user, one, NewMessage(None, "hello"))
    assert [c.id for c in store.chats.find(user)] == [one, two]
    assert [c.id for c in store.chats.find(user, limit=1)] == [one]


def test_a_parent_or_leaf_of_another_conversation_is_refused(store: Store, user: int) -> None:
    one, two = store.chats.create(user), store.chats.create(user)
    message = store.messages.add(user, one, NewMessage(None, "hello"))
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


@pytest.fixture
def reply(store: Store, user: int) -> int:
    figures, turn = TurnFigures(forwards=1, proposed=1, accepted=1), NewTurn("tiny", "k", {}, 0, True)
    return replied(
        store, user, text="text", tokens=[1, 2], sources=["target", "context"], turn=turn, figures=figures
    )


def test_it_is_a_version_beside_the_reply(store: Store, user: int, reply: int) -> None:
    edited = store.messages.edit_reply(user, reply, "better text")
    chat = store.messages.get(user, reply).conversation_id
    path = store.messages.path(user, chat)
    assert [message.id for message in path] == [reply - 1, edited]
    assert path[-1].siblings == (reply, edited)
    assert (path[-1].edited, path[-1].model, path[-1].role) == (True, "", "assistant")
    before = store.messages.get(user, reply)
    assert (before.text, before.edited, before.model) == ("text", False, "tiny")
    with pytest.raises(NotFound):
        store.messages.edit_reply(store.users.ensure("bob"), reply, "mine")
    with pytest.raises(StoreError, match="Only a reply"):
        store.messages.edit_reply(user, reply - 1, "no")


def test_it_drafts_as_the_users_text_and_counts_as_nothing(store: Store, user: int, reply: int) -> None:
    figures, days = store.figures.totals(user), store.figures.over_time(user)
    edited = store.messages.edit_reply(user, reply, "better text")
    assert (edited, "better text") in store.history.without_tokens(user, "k", 0, None, 9)
    store.history.keep_tokens("k", [(edited, [7, 8]), (reply - 1, [9])])
    assert set(drafting(store, user, "written")) == {reply}
    assert set(drafting(store, user, "asked")) == {reply - 1, edited}
    assert store.history.ids(user, "k", "asked") == {reply - 1, edited}
    assert store.replies.last(user, "k", 9) == [reply]
    assert store.figures.totals(user) == figures
    assert figures.replies == 1
    assert store.figures.over_time(user) == days
    assert store.replies.turn(user, edited) is None


def test_its_copy_is_one_too(store: Store, user: int, reply: int) -> None:
    edited = store.messages.edit_reply(user, reply, "better text")
    fork = store.chats.fork(user, edited)
    original = store.messages.get(user, edited).conversation_id
    assert store.messages.path(user, fork)[-1].edited
    delete_for_good(store, user, original)
    copy = store.messages.path(user, fork)[-1].id
    store.history.keep_tokens("k", [(copy, [7])])
    assert copy in drafting(store, user, "asked")
    assert copy not in drafting(store, user, "written")


REPORT = Attachment("report.pdf", 12_345, "The lighthouse of Alexandria was tall.")


CODE = Attachment("code.py", 20, "def zymurgy():\n    pass\n")


def asked(store: Store, user: int, text: str = "What is it?") -> tuple[int, int]:
    chat = store.chats.create(user)
    return chat, store.messages.add(user, chat, NewMessage(None, text, files=[REPORT, CODE]))


def test_they_come_back_in_order_and_their_texts_apart(store: Store, user: int) -> None:
    chat, message = asked(store, user, "")
    assert store.chats.get(user, chat).title == "report.pdf"  # of files alone: called after the first
    (read,) = store.messages.path(user, chat)
    assert [(head.name, head.size) for head in read.attachments] == [("report.pdf", 12_345), ("code.py", 20)]
    assert store.messages.get(user, message).attachments == read.attachments
    assert store.messages.attachments(user, message) == [REPORT, CODE]
    assert store.messages.attachment(user, read.attachments[1].id) == CODE


def test_the_search_finds_their_words_and_names(store: Store, user: int) -> None:
    chat, message = asked(store, user)
    for query in ("lighthouse", "zymurgy", "report.pdf"):
        (found,) = store.chats.find(user, query)
        assert (found.id, found.message_id) == (chat, message)
    (found,) = store.chats.find(user, "alexandria tall")
    assert "\x02Alexandria\x03" in found.snippet
    (found,) = store.chats.find(user, "what")
    assert found.snippet == "\x02What\x03 is it?"
    store.chats.hide(user, chat)
    assert store.chats.find(user, "lighthouse") == []


def test_nothing_of_them_is_left_after_the_chat(store: Store, user: int, path: Path) -> None:
    chat, message = asked(store, user)
    id = store.messages.get(user, message).attachments[0].id
    delete_for_good(store, user, chat)
    data = on_disk(path)
    assert [word for word in (b"ighthouse", b"zymurgy", b"report.pdf") if word in data] == []
    with pytest.raises(NotFound):
        store.messages.attachment(user, id)


def test_a_fork_has_its_own(store: Store, user: int) -> None:
    chat, message = asked(store, user)
    fork = store.chats.fork(user, message)
    delete_for_good(store, user, chat)
    (copy,) = store.messages.path(user, fork)
    assert store.messages.attachments(user, copy.id) == [REPORT, CODE]
    assert [found.id for found in store.chats.find(user, "zymurgy")] == [fork]


WAITS = """
import sys
from pathlib import Path
from hierchat.store import Store
from hierchat.store.records import Attachment, NewMessage, NewTurn
store = Store.open(Path(sys.argv[1]))
user = store.users.ensure("ann")
fresh = store.chats.create(user)
first = NewMessage(None, "A first question", files=[Attachment("a.txt", 1, "text of a")])
store.messages.enqueue(user, fresh, first, at_end=False)

busy = store.chats.create(user)
asked = store.messages.add(user, busy, NewMessage(None, "asked"))
reply = store.replies.begin(user, busy, asked, NewTurn("tiny", "k", {}, 0, True))
for text, name in (("Second", "b"), ("Third", "c")):
    files = [Attachment(f"{name}.txt", 1, f"text of {name}")]
    store.messages.enqueue(user, busy, NewMessage(asked, text, files=files), at_end=True)
store.replies.append(reply, "so far", [1], ["target"])

edited = store.chats.create(user)
root = store.messages.add(user, edited, NewMessage(None, "before"))
store.messages.enqueue(user, edited, NewMessage(None, "edited"), at_end=False)

hidden = store.chats.create(user)
store.messages.enqueue(user, hidden, NewMessage(None, "a hidden pangolin"), at_end=False)
store.chats.hide(user, hidden)
secret = store.chats.begin_incognito(user)
assert store.messages.enqueue(user, secret, NewMessage(None, "a secret pangolin"), at_end=False) is None
print(fresh, busy, edited, flush=True)
sys.stdin.read()
"""


def test_after_a_kill_they_stand_in_their_chats_without_a_reply(path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WAITS, str(path)],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    fresh, busy, edited = map(int, process.stdout.readline().split())
    with Store.open(path) as beside:  # it still runs: they are its own
        user = beside.users.ensure("ann")
        assert beside.messages.path(user, fresh) == []
        assert [c.id for c in beside.chats.find(user)] == [edited, busy, fresh]
    process.kill()
    process.wait()
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


def test_what_was_taken_back_is_in_no_file(store: Store, user: int, path: Path) -> None:
    conversation = store.chats.create(user)
    file = Attachment("long.txt", 1, "quagga " * 5_000)
    held = store.messages.enqueue(
        user, conversation, NewMessage(None, "about an okapi", files=[file]), at_end=True
    )
    assert b"okapi" in on_disk(path)
    assert not store.chats.discard(user, conversation)  # one waits in it
    store.messages.dequeue(held)
    assert store.chats.discard(user, conversation)
    assert b"okapi" not in on_disk(path)
    assert b"quagga" not in on_disk(path)


def test_it_goes_with_its_chat(store: Store, user: int, path: Path) -> None:
    conversation = store.chats.create(user)
    held = store.messages.enqueue(user, conversation, NewMessage(None, "about an okapi"), at_end=True)
    store.chats.hide(user, conversation)
    store.chats.delete_hidden()
    assert b"okapi" not in on_disk(path)
    with pytest.raises(NotFound):
        store.messages.add(user, conversation, NewMessage(None, "about an okapi"), [held or 0])
    with pytest.raises(NotFound):
        store.messages.enqueue(user, conversation, NewMessage(None, "more"), at_end=True)
