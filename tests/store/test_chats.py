"""Conversations: list, search, tags, titles, copies; what is hidden or incognito goes to the byte."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hierchat.store import FOUND_BEGINS, FOUND_ENDS, NotFound, Store
from hierchat.store.records import NewMessage, NewTurn, SourceCount, TurnFigures
from tests.testing.deleting import delete_for_good, on_disk
from tests.testing.stores import chat_of, drafting, replied


def titles(store: Store, user: int, *query: str, archived: bool = False) -> list[str]:
    return [c.title for c in store.chats.find(user, *query, archived=archived)]


@pytest.fixture
def ids(store: Store, user: int) -> dict[str, int]:
    return {title: store.chats.create(user, title) for title in ("chat A", "chat B", "chat C")}


def test_pinned_ones_come_first(store: Store, user: int, ids: dict[str, int]) -> None:
    store.chats.pin(user, ids["chat A"], True)
    assert titles(store, user) == ["chat A", "chat C", "chat B"]
    assert [c.pinned for c in store.chats.find(user)] == [True, False, False]
    store.chats.pin(user, ids["chat A"], False)
    assert titles(store, user) == ["chat C", "chat B", "chat A"]


def test_archived_ones_leave_the_list_and_are_found(store: Store, user: int, ids: dict[str, int]) -> None:
    store.chats.pin(user, ids["chat C"], True)
    store.chats.archive(user, ids["chat C"], True)
    assert titles(store, user) == ["chat B", "chat A"]
    assert titles(store, user, archived=True) == ["chat C"]
    assert store.chats.count_archived(user) == 1
    reply = replied(store, user, ids["chat C"])
    assert drafting(store, user) == [reply]
    assert titles(store, user, "chat") == ["chat B", "chat A", "chat C"]  # last, and no longer pinned
    store.chats.archive(user, ids["chat C"], False)
    assert titles(store, user) == ["chat C", "chat B", "chat A"]
    assert not store.chats.get(user, ids["chat C"]).pinned
    assert store.chats.count_archived(user) == 0


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


def test_a_tag_is_one_short_line_and_goes_with_a_fork(store: Store, user: int, ids: dict[str, int]) -> None:
    store.chats.set_tags(user, ids["chat A"], [' #a\n"b" ', "", "  ", "x" * 99, "X" * 99, "\0"])
    assert store.chats.get(user, ids["chat A"]).tags == ("a b", "x" * 40)
    message = store.messages.add(user, ids["chat A"], NewMessage(None, "?"))
    assert store.chats.get(user, store.chats.fork(user, message)).tags == ("a b", "x" * 40)


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


LONG_AGO = 0.0


def chatted(store: Store, user: int, text: str, **how: Any) -> int:
    return chat_of(store, user, replied(store, user, asked=text, **how))


def waiting(store: Store, model: str = "k", since: float = LONG_AGO) -> list[int]:
    return [chat.id for chat in store.chats.untitled(model, since)]


def title(store: Store, user: int, chat: int) -> str:
    return store.chats.get(user, chat).title


def test_new_chats_with_a_reply_wait_each_once_for_each_model(store: Store, user: int) -> None:
    one, two = chatted(store, user, "What is a suffix array?"), chatted(store, user, "And a trie?")
    chatted(store, user, "Being answered", state="writing")
    store.messages.add(user, store.chats.create(user), NewMessage(None, "Not answered"))
    assert waiting(store) == [one, two]
    assert waiting(store, since=store.chats.get(user, one).created_at) == [two]
    first, second = store.chats.untitled("k", LONG_AGO)
    assert store.chats.title_by_model(first, "k", "Suffix arrays")
    assert not store.chats.title_by_model(second, "k", None)
    assert [title(store, user, chat) for chat in (one, two)] == ["Suffix arrays", "And a trie?"]
    assert waiting(store) == []
    assert waiting(store, "another") == [two]


def test_no_title_of_the_user_is_replaced(store: Store, user: int) -> None:
    before, meanwhile, gone = (chatted(store, user, text) for text in ("One?", "Two?", "Three?"))
    store.chats.rename(user, before, "One?")  # the same words, and meant
    assert waiting(store) == [meanwhile, gone]
    found = {chat.id: chat for chat in store.chats.untitled("k", LONG_AGO)}
    store.chats.rename(user, meanwhile, "Mine")
    assert not store.chats.title_by_model(found[meanwhile], "k", "Its")
    assert title(store, user, meanwhile) == "Mine"
    delete_for_good(store, user, gone)
    assert not store.chats.title_by_model(found[gone], "k", "Its")


def test_a_title_from_before_there_were_such_is_kept(store: Store, user: int) -> None:
    chat = chatted(store, user, "One?")
    with store.connection.write() as db:
        db.execute("UPDATE conversations SET title = 'given', title_given = 0 WHERE id = ?", [chat])
    assert waiting(store) == []


@pytest.mark.parametrize("name", ["ann", "bob"])
def test_each_user_can_switch_it_off(store: Store, user: int, name: str) -> None:
    chats = {"ann": chatted(store, user, "One?")}
    bob = store.users.ensure("bob")
    chats["bob"] = chatted(store, bob, "Two?")
    assert store.users.model_titles(user)
    assert store.users.model_titles(bob)
    store.users.choose(store.users.ids()[name], model_titles=False)
    assert not store.users.model_titles(store.users.ids()[name])
    assert waiting(store) == [chat for other, chat in chats.items() if other != name]
    store.users.choose(store.users.ids()[name], model_titles=True)
    assert waiting(store) == list(chats.values())


def found(store: Store, user: int, query: str) -> list[str]:
    return [conversation.title for conversation in store.chats.find(user, query)]


@pytest.fixture
def library(store: Store, user: int) -> Store:
    for title, text in [
        ("Tides", "Why does the moon pull the sea?"),
        ("Bread", "I don't know why my sourdough won't rise AND it's flat: C++ style"),
        ("Café", "crème brûlée"),
    ]:
        store.messages.add(user, store.chats.create(user, title), NewMessage(None, text))
    return store


@pytest.mark.parametrize(
    ("query", "titles"),
    [
        ("moon", ["Tides"]),
        ("sea MOON", ["Tides"]),
        ("mo", ["Tides"]),
        ("mo sea", []),
        ("tid", ["Tides"]),
        ("why", ["Bread", "Tides"]),
        ("moon sourdough", []),
        ("don't", ["Bread"]),
        ('"why my" sour', ["Bread"]),
        ("why AND rise", ["Bread"]),
        ("c++ style", ["Bread"]),
        ("moon* -sea", ["Tides"]),
        ("moon ???", ["Tides"]),
        ("cafe", ["Café"]),
        ("creme brul", ["Café"]),
        ("", ["Café", "Bread", "Tides"]),
        (" \t", ["Café", "Bread", "Tides"]),
        ('"*-()', []),
    ],
)
def test_search(library: Store, user: int, query: str, titles: list[str]) -> None:
    assert found(library, user, query) == titles


def test_a_hit_comes_with_the_text_around_it(library: Store, user: int) -> None:
    conversation = library.chats.create(user, "Long")
    text = "before " * 40 + "needles" + " after" * 40
    message = library.messages.add(user, conversation, NewMessage(None, text))
    (hit,) = library.chats.find(user, "need")
    assert f"{FOUND_BEGINS}needles{FOUND_ENDS}" in hit.snippet
    assert hit.message_id == message
    assert len(hit.snippet) < 120
    assert library.chats.find(user, "tides")[0].snippet == ""
    assert library.chats.find(user, "tides")[0].message_id is None


def test_the_index_follows_every_change(store: Store, user: int) -> None:
    conversation = store.chats.create(user, "before")
    reply = replied(store, user, conversation, "draft", state="writing")
    assert found(store, user, "draft") == []
    store.replies.finish(reply, "final", "complete", TurnFigures())
    assert (found(store, user, "draft"), found(store, user, "final")) == ([], ["before"])
    store.chats.rename(user, conversation, "after")
    assert (found(store, user, "before"), found(store, user, "after")) == ([], ["after"])
    with store.connection.write() as db:  # a second change of a finished message takes the old words out
        db.execute("UPDATE messages SET text = 'other' WHERE id = ?", [reply])
    assert (found(store, user, "final"), found(store, user, "other")) == ([], ["after"])
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
    assert store.chats.get(user, store.chats.fork(user, copied[-1].id)).title == "Tides (3)"
    assert store.chats.find(user)[1].id == fork
    assert len(store.messages.path(user, conversation)) == 6  # the old one is as it was
    with pytest.raises(NotFound):
        store.chats.fork(store.users.ensure("bob"), second)


def test_a_copy_counts_only_once_its_original_is_gone(store: Store, user: int) -> None:
    conversation = store.chats.create(user)
    original = answered(store, user, conversation, None, "one")
    forks = [store.chats.fork(user, original)]
    forks.append(store.chats.fork(user, store.messages.path(user, forks[0])[-1].id))  # a copy of a copy
    copies = [store.messages.path(user, fork)[-1].id for fork in forks]
    assert drafting(store, user) == [original]
    assert store.figures.totals(user).replies == len(store.replies.last(user, "k", 9)) == 1
    assert store.history.without_tokens(user, "k", 0, None, 9) == [(original - 1, "one?")]
    store.chats.hide(user, conversation)
    assert drafting(store, user) == []  # it may come back
    store.chats.delete_hidden()
    assert drafting(store, user) == copies[:1]  # not one less, not one more
    delete_for_good(store, user, forks[0])
    assert drafting(store, user) == copies[1:]
    assert store.replies.tokens(user, copies[1]) == [1, 2, 3]


def test_a_copy_does_not_count_beside_an_original_that_came_back(store: Store, user: int) -> None:
    original = replied(store, user)
    store.chats.fork(user, original)
    there = chat_of(store, user, original)
    store.chats.hide(user, there)
    store.chats.restore(user, there)
    assert drafting(store, user) == [original]


def test_a_copy_that_is_continued_is_one_no_more(store: Store, user: int) -> None:
    original = answered(store, user, store.chats.create(user), None, "one")
    copy = store.messages.path(user, store.chats.fork(user, original))[-1].id
    store.replies.resume(user, copy)
    store.replies.append(copy, "one more", [9], ["target"])
    store.replies.finish(copy, "one more", "complete", FIGURES)
    assert drafting(store, user) == [original, copy]


def test_a_reply_that_is_being_written_is_copied_as_far_as_it_is(store: Store, user: int) -> None:
    reply = replied(store, user, text="so far", state="writing")
    copy = store.messages.path(user, store.chats.fork(user, reply))[-1]
    assert (copy.text, copy.state) == ("so far", "interrupted")


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
        reply in store.replies.last(user, "k", 9),
        store.figures.totals(user).replies > 0,
        bool(store.figures.over_time(user).days),
    ]


def test_what_is_hidden_counts_as_missing_everywhere(store: Store, user: int) -> None:
    ids = chat(store, user, "hops")
    store.learned.keep(user, "k", "kind", b"traces")
    before = store.users.deletions(user)
    assert all(seen(store, user, *ids))
    for copy in [c.id for c in store.chats.find(user) if c.id != ids[0]]:
        delete_for_good(store, user, copy)
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


def test_it_goes_for_good_and_what_was_restored_stays(store: Store, user: int, path: Path) -> None:
    gone, *_ = chat(store, user, "hops")
    kept, *_ = chat(store, user, "malt")
    for conversation in (gone, kept):
        store.chats.hide(user, conversation)
    store.chats.restore(user, kept)
    store.chats.delete_hidden([gone, kept])
    assert [c.id for c in store.chats.find(user)] == [kept]
    with pytest.raises(NotFound):
        store.chats.restore(user, gone)
    data = on_disk(path)
    assert b"hops" not in data
    assert b"malt" in data


@pytest.mark.parametrize("incognito", [False, True])
def test_closing_deletes_what_is_hidden_or_incognito(path: Path, incognito: bool) -> None:
    with Store.open(path) as store:
        user = store.users.ensure("ann")
        made, *_ = chat(store, user, WORD, incognito)
        assert WORD.encode() in on_disk(path)
        if not incognito:
            store.chats.hide(user, made)
    assert WORD.encode() not in on_disk(path)
    with Store.open(path) as store, store.connection.read() as db:
        assert db.table("conversations").count == 0


def test_the_next_start_deletes_what_a_process_left_that_died(store: Store, user: int, path: Path) -> None:
    mine, theirs = chat(store, user, "hops")[0], chat(store, user, "malt")[0]
    for conversation in (mine, theirs):
        store.chats.hide(user, conversation)
    with store.connection.write() as db:  # no process began at that time
        db.execute("UPDATE conversations SET hider_started = 5 WHERE id = ?", [theirs])
    with Store.open(path) as again, again.connection.read() as db:
        assert db.table("conversations").count == 1
    store.chats.restore(user, mine)  # another process that starts leaves alone what can be undone here
    with pytest.raises(NotFound):
        store.chats.restore(user, theirs)


WORD = "quincunx"


def test_it_can_be_talked_in_and_stands_nowhere(store: Store, user: int) -> None:
    conversation, question, reply = chat(store, user, WORD, incognito=True)
    assert [m.id for m in store.messages.path(user, conversation)] == [question, reply]
    assert store.users.drafts_from(user, conversation) == "chat"
    assert store.chats.find(user) == []
    assert store.chats.find(user, WORD) == []
    assert store.history.ids(user, "k", "written") == set()
    assert drafting(store, user, "asked") == []
    assert store.history.without_tokens(user, "another", 0, None, 9) == []
    assert store.figures.totals(user).replies == 0
    assert store.figures.over_time(user).days == {}
    assert store.replies.last(user, "k", 9) == []
    with pytest.raises(NotFound):
        store.messages.path(store.users.ensure("bob"), conversation)


def test_it_goes_to_the_byte(store: Store, user: int, path: Path) -> None:
    kept = store.chats.create(user, "kept")
    conversation, *_ = chat(store, user, WORD, incognito=True)
    assert WORD.encode() in on_disk(path)  # or the test below could not fail
    store.chats.end_incognito(store.users.ensure("bob"), conversation)
    assert store.messages.path(user, conversation)  # another user ends nothing
    store.chats.end_incognito(user, kept)
    store.chats.end_incognito(user, conversation)
    store.chats.end_incognito(user, conversation)
    with pytest.raises(NotFound):
        store.chats.get(user, conversation)
    assert store.chats.get(user, kept).title == "kept"
    assert WORD.encode() not in on_disk(path)


def test_what_a_killed_process_left_goes_at_the_next_start(path: Path) -> None:
    if not (child := os.fork()):
        store = Store.open(path)
        chat(store, store.users.ensure("ann"), WORD, incognito=True)
        os._exit(9)
    os.waitpid(child, 0)
    assert WORD.encode() in on_disk(path)
    with Store.open(path) as store:
        assert WORD.encode() not in on_disk(path)
        assert store.users.ids() == {"ann": 1}


def test_it_can_be_kept_after_all(store: Store, user: int) -> None:
    conversation, _, reply = chat(store, user, WORD, incognito=True)
    store.chats.restore(user, conversation)
    assert store.users.drafts_from(user, conversation) == "all"
    assert [c.id for c in store.chats.find(user, WORD)] == [conversation]
    assert reply in store.history.ids(user, "k", "written")
    store.chats.end_incognito(user, conversation)
    assert store.chats.get(user, conversation)


def test_what_may_draft_is_chosen_for_each_user(store: Store, user: int) -> None:
    chat, secret, bob = store.chats.create(user), store.chats.begin_incognito(user), store.users.ensure("bob")
    assert [store.users.drafts_from(user), store.users.drafts_from(user, chat)] == ["all", "all"]
    assert store.users.drafts_from(user, secret) == "chat"
    store.users.choose(user, drafts_from="none")
    assert store.users.drafts_from(user, secret) == "none"
    assert store.users.drafts_from(bob) == "all"
    store.users.choose(user, drafts_from="chat")
    assert store.users.drafts_from(user, chat) == "chat"
