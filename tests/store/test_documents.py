"""Documents and their passages: found by words, by their own user and chat alone, and gone to the byte."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from hierchat.store import NotFound, Store
from hierchat.store.documents import BATCH, Documents
from hierchat.store.records import Attachment, Document, NewMessage, Passage
from tests.testing.deleting import delete_for_good, on_disk
from tests.testing.stores import project

HOUSE = [
    Passage("house.md", "Heating", "The boiler is serviced each October by the plumber."),
    Passage("house.md", "Garden", "Tomatoes are planted in May. The plumber has no part in it."),
    Passage("house.md", "Roof", "The roof was tiled in 1987."),
]


def document(
    store: Store,
    user: int,
    chat: int,
    passages: Iterable[Passage],
    name: str = "house.md",
    shared: bool = False,
) -> int:
    documents = Documents(store.connection)
    assert documents.add(user, Document(0, name, 100, 0, False, shared), chat, iter(passages))
    return max(one.id for one in documents.listed(user, chat))


def places(store: Store, user: int, chat: int, question: str, *before: str) -> list[str]:
    return [found.place for found in Documents(store.connection).find(user, chat, question, before, 5)]


def test_what_shares_most_with_the_question_comes_first(store: Store, user: int) -> None:
    chat = store.chats.create(user)
    document(store, user, chat, HOUSE)
    assert places(store, user, chat, "When does a plumber service your boiler?") == ["Heating", "Garden"]
    assert places(store, user, chat, "and your GARDEN?") == ["Garden"]  # a heading counts, in any case
    assert places(store, user, chat, "And when?", "Who tiled your roof?") == ["Roof"]
    assert places(store, user, chat, "boiler", "roof roof roof") == ["Heating", "Roof"]
    assert places(store, user, chat, "elephants") == places(store, user, chat, '" OR NEAR(') == []
    found = Documents(store.connection).find(user, chat, "boiler", [], 5)[0]
    assert (found.name, found.place, found.text) == ("house.md", "Heating", HOUSE[0].text)
    assert found.score > 0


def test_of_many_passages_those_with_a_rare_word_are_ranked(
    store: Store, user: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Common words rank those alone; where all words are common, both of the two rarest have to be there."""
    monkeypatch.setattr("hierchat.store.documents.RANKED", 20)
    monkeypatch.setattr("hierchat.store.documents.SAMPLE", 5)
    chat, apart = store.chats.create(user), store.chats.create(user)
    common = [Passage("a.md", f"{n}", f"The common {'one' if n % 4 else 'pair'} {n}.") for n in range(200)]
    rare = [Passage("b.md", "Rare", "A quagga."), Passage("b.md", "Both", "A quagga pair.")]
    document(store, user, chat, [*common, *rare])
    assert places(store, user, chat, "A pair of quaggas?") == ["Both", "Rare"]
    assert places(store, user, chat, "And that?", "A pair of quaggas.") == ["Both", "Rare"]
    paired = places(store, user, chat, "common pair")
    assert len(paired) == 5
    assert not any(int(place) % 4 for place in paired)
    document(store, user, apart, HOUSE)
    few = places(store, user, apart, "The common roof")
    assert few == ["Roof", "Heating", "Garden"]  # all words find them
    monkeypatch.setattr("hierchat.store.documents.READ", 10)
    assert places(store, user, chat, "A pair of quaggas?") == ["Rare", "Both"]  # by the rare word alone


def test_writing_without_blanks_is_found(store: Store, user: int) -> None:
    chat = store.chats.create(user)
    passages = [Passage("本.md", "一", "東京は日本の首都です。"), Passage("本.md", "二", "猫が好き。")]
    document(store, user, chat, passages)
    assert places(store, user, chat, "日本の首都は?") == ["一"]
    assert places(store, user, chat, "猫") == places(store, user, chat, "猫が") == ["二"]


def test_documents_are_those_of_the_chat_and_its_project(store: Store, user: int) -> None:
    one, two, apart = (store.chats.create(user) for _ in range(3))
    project(store, user, "p", one, two)
    shared = document(store, user, one, [Passage("rules.md", "Rules", "Quiet after ten.")], shared=True)
    own = document(store, user, one, HOUSE)
    listed = Documents(store.connection).listed
    found = [(doc.id, doc.passages, doc.done, doc.in_project) for doc in listed(user, one)]
    assert found == [(shared, 1, True, True), (own, 3, True, False)]
    assert [doc.id for doc in listed(user, two)] == [shared]
    assert listed(user, apart) == []
    question = "Quiet boiler?"
    assert set(places(store, user, one, question)) == {"Rules", "Heating"}
    assert places(store, user, two, question) == ["Rules"]
    assert places(store, user, apart, question) == []
    bob = store.users.ensure("bob")
    assert places(store, bob, store.chats.create(bob), question) == []
    with pytest.raises(NotFound):
        places(store, bob, one, question)
    document(store, user, apart, HOUSE, shared=True)  # of no project: the chat's own
    assert [doc.in_project for doc in listed(user, apart)] == [False]
    assert not store.chats.discard(user, apart)  # with documents alone it is no empty one
    assert store.chats.get(user, apart).id == apart


@pytest.mark.parametrize("way", ["document", "chat", "project", "user"])
def test_what_is_deleted_is_gone_to_the_byte(store: Store, user: int, path: Path, way: str) -> None:
    chat, kept = store.chats.create(user), store.chats.create(store.users.ensure("bob"))
    held = project(store, user, "p", chat)
    document(store, store.users.ensure("bob"), kept, [Passage("b.md", "L1", "marimba")])
    passages = (Passage("xylophone.md", "glockenspiel", f"vibraphone {n}") for n in range(5 * BATCH))
    made = document(store, user, chat, passages, "xylophone.md", way == "project")
    found = Documents(store.connection).find(user, chat, "vibraphone", [], 1)[0]
    quoted = Attachment("xylophone.md, glockenspiel", 4, found.text, 1, found.id)
    asked = store.messages.add(user, chat, NewMessage(None, "Which?", files=[quoted]))
    (head,) = store.messages.get(user, asked).attachments
    assert (head.number, head.passage_id) == (1, found.id)
    match way:
        case "document":
            assert Documents(store.connection).delete(user, made)
            assert store.messages.get(user, asked).attachments == ()
        case "chat":
            delete_for_good(store, user, chat)
        case "project":
            with store.connection.write() as db:
                db.execute("DELETE FROM projects WHERE id = ?", [held])
            Documents(store.connection).delete(user, document(store, user, chat, HOUSE))  # rewrites the file
        case "user":
            store.users.forget(user)
    left = on_disk(path)
    assert [word for word in (b"xylophone", b"glockenspiel", b"vibraphon") if word in left] == []
    assert b"marimba" in left
    assert places(store, store.users.ensure("bob"), kept, "marimba") == ["L1"]


def test_what_ends_by_an_error_or_is_removed_meanwhile_leaves_nothing(store: Store, user: int) -> None:
    chat, documents = store.chats.create(user), Documents(store.connection)

    def broken() -> Iterator[Passage]:
        yield from HOUSE * BATCH
        raise InterruptedError

    def removed() -> Iterator[Passage]:
        yield from HOUSE * BATCH
        documents.delete(user, documents.listed(user, chat)[0].id)
        yield from HOUSE

    for passages, error in ((broken, InterruptedError), (removed, NotFound)):
        with pytest.raises(error):
            documents.add(user, Document(0, "house.md", 1, 0, False, False), chat, passages())
    assert documents.listed(user, chat) == []
    assert not documents.add(user, Document(0, "empty", 0, 0, False, False), chat, iter([]))
    with store.connection.write() as db:  # raises where the index and the passages disagree
        db.execute("INSERT INTO passages_fts (passages_fts, rank) VALUES ('integrity-check', 1)")
        assert db.table("passages").count == 0
