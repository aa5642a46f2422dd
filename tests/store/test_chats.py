"""Conversations: list, search, titles, copies; what is hidden or incognito goes to the byte."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hierchat.store import FOUND_BEGINS, FOUND_ENDS, NotFound, Store
from hierchat.store.records import NewMessage, NewTurn, SourceCount, TurnFigures
from tests.testing.deleting import delete_for_good, on_disk
from tests.testing.stores import chat_of, drafting, last_replies, replied


def titles(store: Store, user: int, *query: str, archived: bool = False) -> list[str]:
    return [c.title for c in store.chats.find(user, *query, archived=archived)]


@pytest.fixture
def ids(store: Store, user: int) -> dict[str, int]:
    return {title: store.chats.create(user, title) for title in ("chat A", "chat B", "chat C")}


def test_archived_ones_are_found_last_and_draft(store: Store, user: int, ids: dict[str, int]) -> None:
    store.chats.pin(user, ids["chat C"], True)
    store.chats.archive(user, ids["chat C"], True)
    assert titles(store, user) == ["chat B", "chat A"]
    assert store.chats.count_archived(user) == 1
    reply = replied(store, user, ids["chat C"])
    assert drafting(store, user) == [reply]
    assert titles(store, user, "chat") == ["chat B", "chat A", "chat C"]  # and no longer pinned


LONG_AGO = 0.0


def chatted(store: Store, user: int, text: str, **how: Any) -> int:
    return chat_of(store, user, replied(store, user, asked=text, **how))


def waiting(store: Store, model: str = "k", since: float = LONG_AGO) -> list[int]:
    return [chat.id for chat in store.chats.untitled(model, since)]


def test_new_chats_with_a_reply_wait_once_for_each_model(store: Store, user: int) -> None:
    one, two, given = (chatted(store, user, text) for text in ("What is a suffix array?", "A trie?", "A?"))
    store.chats.rename(user, given, "A?")  # the same words, and meant
    chatted(store, user, "Being answered", state="writing")
    store.messages.add(user, store.chats.create(user), NewMessage(None, "Not answered"))
    assert waiting(store) == [one, two]
    assert waiting(store, since=store.chats.get(user, one).created_at) == [two]
    first, second = store.chats.untitled("k", LONG_AGO)
    assert store.chats.title_by_model(first, "k", "Suffix arrays")
    assert not store.chats.title_by_model(second, "k", None)
    assert [store.chats.get(user, chat).title for chat in (one, two)] == ["Suffix arrays", "A trie?"]
    assert waiting(store) == []
    assert waiting(store, "another") == [two]
    (second,) = store.chats.untitled("another", LONG_AGO)
    store.chats.rename(user, two, "Mine")
    assert not store.chats.title_by_model(second, "another", "Its")  # meanwhile it has the user's
    delete_for_good(store, user, two)
    assert not store.chats.title_by_model(second, "another", "Its")


def test_each_user_can_switch_titles_off(store: Store, user: int) -> None:
    bob = store.users.ensure("bob")
    chats = [chatted(store, user, "One?"), chatted(store, bob, "Two?")]
    for number, owner in enumerate((user, bob)):
        assert store.users.chosen(owner, "model_titles", False)
        store.users.choose(owner, model_titles=False)
        assert not store.users.chosen(owner, "model_titles", False)
        assert waiting(store) == [chats[1 - number]]
        store.users.choose(owner, model_titles=True)
    assert waiting(store) == chats
    with store.connection.write() as db:  # from before there were such
        db.execute("UPDATE conversations SET title = 'given', title_given = 0")
    assert waiting(store) == []


FOUND = {
    "moon": ["Tides"],
    "sea MOON": ["Tides"],
    "mo": ["Tides"],
    "mo sea": [],
    "tid": ["Tides"],
    "why": ["Bread", "Tides"],
    "moon sourdough": [],
    "don't": ["Bread"],
    '"why my" sour': ["Bread"],
    "why AND rise": ["Bread"],
    "c++ style": ["Bread"],
    "moon* -sea": ["Tides"],
    "moon ???": ["Tides"],
    "cafe": ["Café"],
    "creme brul": ["Café"],
    "": ["Café", "Bread", "Tides"],
    " \t": ["Café", "Bread", "Tides"],
    '"*-()': [],
}


def test_a_search_finds_chats_and_the_text_around_a_hit(store: Store, user: int) -> None:
    for name, text in [
        ("Tides", "Why does the moon pull the sea?"),
        ("Bread", "I don't know why my sourdough won't rise AND it's flat: C++ style"),
        ("Café", "crème brûlée"),
    ]:
        store.messages.add(user, store.chats.create(user, name), NewMessage(None, text))
    assert {query: titles(store, user, query) for query in FOUND} == FOUND
    text = "before " * 40 + "needles" + " after" * 40
    message = store.messages.add(user, store.chats.create(user, "Long"), NewMessage(None, text))
    (hit,) = store.chats.find(user, "need")
    assert f"{FOUND_BEGINS}needles{FOUND_ENDS}" in hit.snippet
    assert hit.message_id == message
    assert len(hit.snippet) < 120
    (hit,) = store.chats.find(user, "tides")
    assert (hit.snippet, hit.message_id) == ("", None)


def test_the_index_follows_every_change(store: Store, user: int) -> None:
    conversation = store.chats.create(user, "before")
    reply = replied(store, user, conversation, "draft", state="writing")
    assert titles(store, user, "draft") == []
    store.replies.finish(reply, "final", "complete", TurnFigures())
    assert (titles(store, user, "draft"), titles(store, user, "final")) == ([], ["before"])
    store.chats.rename(user, conversation, "after")
    assert (titles(store, user, "before"), titles(store, user, "after")) == ([], ["after"])
    with store.connection.write() as db:  # a second change of a finished message takes the old words out
        db.execute("UPDATE messages SET text = 'other' WHERE id = ?", [reply])
    assert (titles(store, user, "final"), titles(store, user, "other")) == ([], ["after"])
    delete_for_good(store, user, conversation)
    with store.connection.write() as db:
        for table in ("messages_fts", "titles_fts"):
            db.execute(f"INSERT INTO {table} ({table}, rank) VALUES ('integrity-check', 1)")


@settings(max_examples=80, deadline=None)
@given(
    query=st.text(st.characters(exclude_categories=())) | st.text("ab \"'*-+:^(){}[]\0\ud800AND OR NOT NEAR")
)
@example(query='" OR "')
@example(query="a\0b")
@example(query="NEAR(a b, 2)")
@example(query="title : a")
@example(query="a " * 5000)
@example(query="é\u0301 \u0301 ² 中文")
def test_no_query_raises(shared: Store, query: str) -> None:
    user = shared.users.ensure("search")
    if not shared.chats.find(user):
        shared.messages.add(user, shared.chats.create(user), NewMessage(None, "a b AND title 中文字"))
    shared.chats.find(user, query)


FIGURES = TurnFigures(prompt_tokens=4, seconds=2.0, forwards=2, proposed=3, accepted=1, finish="end",
                      sources={"history": SourceCount(3, 1)})  # fmt: skip


def answered(store: Store, user: int, chat: int, parent: int | None, text: str) -> int:
    sources, turn = ["target", "history", "history"], NewTurn("Big model", "k", {"seed": 3}, 3, True)
    return replied(
        store, user, chat, text, asked=f"{text}?", parent=parent, tokens=[1, 2, 3], sources=sources, turn=turn,
        figures=FIGURES,
    )  # fmt: skip


def test_the_path_is_copied_with_all_that_is_known_of_its_replies(store: Store, user: int) -> None:
    conversation = store.chats.create(user, "Tides")
    first = answered(store, user, conversation, None, "one")
    second = answered(store, user, conversation, first, "two")
    answered(store, user, conversation, first, "another branch")
    answered(store, user, conversation, second, "three")
    fork = store.chats.fork(user, second)
    path, copied = store.messages.path(user, conversation, second), store.messages.path(user, fork)
    assert [(m.role, m.text, m.state) for m in copied] == [(m.role, m.text, m.state) for m in path]
    assert [m.parent_id for m in copied] == [None, *(m.id for m in copied[:-1])]
    for original, copy in zip(path[1::2], copied[1::2], strict=True):
        turn, known = store.replies.turn(user, original.id), store.replies.turn(user, copy.id)
        assert (known.begun, known.figures) == (turn.begun, turn.figures)
        assert store.replies.tokens(user, copy.id) == store.replies.tokens(user, original.id)
        assert store.replies.spans(user, copy.id) == store.replies.spans(user, original.id)
    assert store.chats.get(user, fork).title == "Tides (2)"
    assert len(store.messages.path(user, conversation)) == 6  # the old one is as it was


def chat(store: Store, user: int, word: str, incognito: bool = False) -> tuple[int, int, int]:
    """A conversation about `word`; its id, and those of its question and its reply."""
    conversation = (
        store.chats.begin_incognito(user) if incognito else store.chats.create(user, f"About {word}")
    )
    asked, figures = f"What is {word}?", TurnFigures(forwards=3)
    reply = replied(
        store, user, conversation, f"{word} it is", asked=asked, tokens=[1, 2, 3], figures=figures
    )
    store.history.keep_tokens("k", [(reply - 1, [7, 8])])
    return conversation, reply - 1, reply


def seen(store: Store, user: int, conversation: int, question: int, reply: int) -> list[bool]:
    """Whether it is there, for everything that reads."""

    def there(read: object, *ids: int) -> bool:
        try:
            read(user, *ids)  # type: ignore[operator]
        except NotFound:
            return False
        return True

    return [
        conversation in [c.id for c in store.chats.find(user)],
        conversation in [c.id for c in store.chats.find(user, "hops")],
        there(store.chats.get, conversation),
        there(store.messages.path, conversation),
        there(store.messages.get, reply),
        there(store.replies.turn, reply),
        there(store.replies.spans, reply),
        there(store.messages.select_branch, question),
        there(store.chats.fork, reply),
        reply in store.history.ids(user, "k", "written"),
        reply in drafting(store, user),
        question in store.history.ids(user, "k", "asked"),
        question in [id for id, _ in store.history.without_tokens(user, "another", 0, None, 9)],
        reply in last_replies(store, user, "k", 9),
        bool(store.figures.over_time(user, 500).days),
    ]


def test_what_is_hidden_counts_as_missing_everywhere(store: Store, user: int, path: Path) -> None:
    """It is there again once restored, or goes for good."""
    ids = chat(store, user, "hops")
    before = store.users.deletions(user)
    assert all(seen(store, user, *ids))
    for copy in [c.id for c in store.chats.find(user) if c.id != ids[0]]:
        delete_for_good(store, user, copy)
    gone, *_ = chat(store, user, "malt")
    store.chats.hide(user, gone)
    store.learned.keep(user, "k", "kind", b"traces")
    store.chats.hide(user, ids[0])
    assert not any(seen(store, user, *ids))
    assert store.learned.get(user, "k", "kind") is None
    assert store.users.deletions(user) > before
    with pytest.raises(NotFound):
        store.messages.add(user, ids[0], NewMessage(None, "more"))
    hidden = store.users.deletions(user)
    store.chats.restore(user, ids[0])
    assert all(seen(store, user, *ids))
    assert store.users.deletions(user) > hidden  # whatever holds texts in memory looks again
    store.chats.delete_hidden([gone, ids[0]])
    with pytest.raises(NotFound):
        store.chats.restore(user, gone)
    assert (b"malt" in on_disk(path), b"hops" in on_disk(path)) == (False, True)


def test_incognito_ones_stand_nowhere_and_go_to_the_byte(store: Store, user: int, path: Path) -> None:
    kept = store.chats.create(user, "kept")
    conversation, question, reply = chat(store, user, "hops", incognito=True)
    assert [m.id for m in store.messages.path(user, conversation)] == [question, reply]
    assert store.users.drafts_from(user, conversation) == "chat"
    assert [c.id for c in store.chats.find(user)] == [kept]
    assert store.chats.find(user, "hops") == []
    assert drafting(store, user) == drafting(store, user, "asked") == last_replies(store, user, "k", 9) == []
    assert store.history.ids(user, "k", "written") == set()
    assert store.history.without_tokens(user, "another", 0, None, 9) == []
    assert store.figures.over_time(user, 500).days == {}
    assert b"hops" in on_disk(path)
    bob = store.users.ensure("bob")
    with pytest.raises(NotFound):
        store.messages.path(bob, conversation)
    store.chats.end_incognito(bob, conversation)
    assert store.messages.path(user, conversation)  # another user ends nothing
    for one in (kept, conversation, conversation):
        store.chats.end_incognito(user, one)
    with pytest.raises(NotFound):
        store.chats.get(user, conversation)
    assert store.chats.get(user, kept).title == "kept"
    assert b"hops" not in on_disk(path)


def test_an_incognito_one_can_be_kept_after_all(store: Store, user: int) -> None:
    ids = chat(store, user, "hops", incognito=True)
    store.chats.restore(user, ids[0])
    assert store.users.drafts_from(user, ids[0]) == "all"
    assert all(seen(store, user, *ids))
    store.chats.end_incognito(user, ids[0])
    assert store.chats.get(user, ids[0])


def test_what_may_draft_is_chosen_for_each_user(store: Store, user: int) -> None:
    chat, secret, bob = store.chats.create(user), store.chats.begin_incognito(user), store.users.ensure("bob")
    assert [store.users.drafts_from(user), store.users.drafts_from(user, chat)] == ["all", "all"]
    assert store.users.drafts_from(user, secret) == "chat"
    store.users.choose(user, drafts_from="none")
    assert store.users.drafts_from(user, secret) == "none"
    assert store.users.drafts_from(bob) == "all"
    store.users.choose(user, drafts_from="chat")
    assert store.users.drafts_from(user, chat) == "chat"


def test_what_is_changed_of_a_chat_that_is_just_deleted_is_there_when_it_comes_back(
    store: Store, user: int
) -> None:
    """Another page does not know yet that it was deleted."""
    chat, stranger = chatted(store, user, "Kazoo"), store.users.ensure("stranger")
    store.chats.hide(user, chat)
    store.chats.rename(user, chat, "Mine")
    store.chats.pin(user, chat, True)
    with pytest.raises(NotFound):
        store.chats.rename(stranger, chat, "Theirs")
    store.chats.restore(user, chat)
    found = store.chats.get(user, chat)
    assert (found.title, found.pinned) == ("Mine", True)
