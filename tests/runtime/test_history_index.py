"""What replies leave behind: whose it is, how long it lives, and when it goes."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from hierchat.drafting.draft_tree import NO_MATCH, Match
from hierchat.drafting.drafter import LEAD, Drafter, in_order
from hierchat.drafting.growing.kernel_arrays import CONTEXT, CORPUS, HISTORY, PROMPTS, SEED, SUCCESSORS
from hierchat.drafting.source import Source
from hierchat.drafting.suffix_index import BREAK, suffix_order
from hierchat.runtime import history_index as history
from hierchat.runtime.history_index import DraftOrigins, Histories, IndexedTexts, UserHistory
from hierchat.store import Store
from hierchat.store.records import NewMessage, NewTurn, Origin, TurnFigures
from tests.testing.deleting import delete_for_good
from tests.testing.stores import new_store

from ..chat.conftest import Talk

KEY = "model"


def held(talk: Talk, histories: Histories) -> UserHistory:
    return histories.held(talk.user, talk.model.model_key, talk.model.prompts.tokens)


def words(text: str) -> list[int]:
    """A tokenizer: every word is a number."""
    return [int(word) for word in text.split()]


class Chats:
    """A store with one user's chats, written without a model."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.user = store.users.ensure("ann")
        self.tokens = random.Random(0).sample(range(100, 40_000), 30_000)
        self.histories = Histories(store)

    def begin(self) -> int:
        return self.store.chats.create(self.user)

    def text(self, size: int) -> list[int]:
        """Tokens that stand nowhere else."""
        return [self.tokens.pop() for _ in range(size)]

    def ask(self, conversation: int, tokens: Sequence[int], role: str = "user") -> int:
        said = " ".join(map(str, tokens))
        return self.store.messages.add(self.user, conversation, NewMessage(None, said, role))  # type: ignore[arg-type]

    def reply(self, conversation: int, tokens: Sequence[int], lead: Sequence[int] = ()) -> int:
        question = self.ask(conversation, [5])
        turn = NewTurn("m", KEY, {}, 0, True)
        id = self.store.replies.begin(self.user, conversation, question, turn, lead)
        self.store.replies.append(id, "reply", tokens, ["target"] * len(tokens))
        self.store.replies.finish(id, "reply", "complete", TurnFigures())
        return id

    def held(self) -> UserHistory:
        found = self.histories.held(self.user, KEY, words)
        found.wait()
        check(found.written)
        check(found.asked)
        return found

    def restart(self) -> UserHistory:
        self.histories.close()
        self.histories = Histories(self.store)
        return self.held()


@pytest.fixture
def chats(tmp_path: Path) -> Iterator[Chats]:
    with new_store(tmp_path / "chat.db") as store:
        chats = Chats(store)
        yield chats
        chats.histories.close()


def check(texts: IndexedTexts) -> None:
    """Every run is in order, and every position known by its text."""
    for id, (start, length) in texts._places.items():
        lead = texts._leads[id]
        places = [(id, max(at - lead, 0)) for at in range(length)]
        assert [texts.text_at(start + at) for at in range(length)] == places
    log, order, starts, sizes = texts.index.arrays
    bounds = [*starts.tolist(), log.size]
    for first, end, size in zip(bounds, bounds[1:], sizes.tolist(), strict=False):
        assert order[first : first + size].tolist() == (suffix_order(log[first:end]) + first).tolist()


def content(texts: IndexedTexts) -> list[list[int]]:
    """The texts that are in the index, oldest first."""
    found: list[list[int]] = [[]]
    for token in texts.index.arrays.tokens.tolist():
        if token == BREAK:
            found.append([])
        else:
            found[-1].append(token)
    return [text for text in found if text]


def drafts(held: UserHistory, context: Sequence[int]) -> set[int]:
    """All tokens that are drafted behind `context`."""
    drafter = Drafter(held.sources, width=32)
    drafter.begin(context)
    return set(drafter.propose().tokens)


def test_replies_and_questions_come_into_the_databases_of_their_user_and_model(talk: Talk) -> None:
    histories = Histories(talk.store)
    assert len(held(talk, histories).written) == 0
    talk.send("hello")
    found = held(talk, histories)
    question, reply = talk.messages()
    assert content(found.asked) == [talk.model.prompts.tokens("hello")]
    assert [text[LEAD:] for text in content(found.written)] == [
        talk.store.replies.tokens(talk.user, reply.id)
    ]
    assert question.id in found.asked._places
    bob = held(talk.other("bob"), histories)
    assert len(bob.written) == len(bob.asked) == 0
    assert len(histories.held(talk.user, "another model").written) == 0


def test_imported_replies_count_as_the_models_and_what_is_answered_as_context(chats: Chats) -> None:
    conversation = chats.begin()
    chats.ask(conversation, [1, 2, 3])
    chats.ask(conversation, [4, 5, 6], "assistant")
    chats.ask(conversation, [7], "system")
    question = chats.ask(conversation, [8, 9])
    answering = chats.histories.held(chats.user, KEY, words, before=question)
    assert content(answering.asked) == [[1, 2, 3]]
    found = chats.held()
    assert (content(found.asked), content(found.written)) == ([[1, 2, 3], [8, 9]], [[4, 5, 6]])


@pytest.mark.parametrize("restart", [False, True])
def test_a_deleted_conversation_is_gone_from_the_drafts_of_the_next_reply(
    chats: Chats, restart: bool
) -> None:
    kept, gone = chats.begin(), chats.begin()
    secrets = [chats.text(60) for _ in range(6)]
    others = [chats.text(60) for _ in range(6)]
    for secret, other in zip(secrets, others, strict=True):
        chats.reply(gone, secret)
        chats.ask(gone, secret[::-1])
        chats.reply(kept, other)
        chats.ask(kept, other[::-1])
    before = chats.held()
    index = before.written.index
    for text in secrets + others:
        assert drafts(before, text[:10]) & set(text)
    delete_for_good(chats.store, chats.user, gone)
    after = chats.restart() if restart else chats.held()
    secret_tokens = {token for secret in secrets for token in secret}
    for secret in secrets:
        for at in range(1, 59, 7):
            assert not drafts(after, secret[at - 1 : at + 1]) & secret_tokens
            assert not drafts(after, secret[::-1][at - 1 : at + 1]) & secret_tokens
    assert sorted(content(after.written)) == sorted(others)
    for text in others:
        assert drafts(after, text[:10]) & set(text)
    if not restart:
        assert after.written.index is index  # what stayed was not sorted again


def test_many_old_questions_are_tokenised_by_a_thread(chats: Chats, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "AT_ONCE", 100)
    conversation = chats.begin()
    questions = [chats.text(5) for _ in range(150)] + [chats.text(200), [1]]
    for question in questions:
        chats.ask(conversation, question)
    first = chats.histories.held(chats.user, KEY, words)
    assert len(first.asked) < 10
    first.wait()
    assert content(chats.held().asked) == questions
    assert content(chats.restart().asked) == questions


def test_what_is_hidden_drafts_no_more_and_what_is_taken_back_drafts_again(chats: Chats) -> None:
    gone, kept = chats.begin(), chats.begin()
    first, second, third = chats.text(6), chats.text(6), chats.text(6)
    chats.reply(gone, first)
    chats.reply(kept, second)
    assert content(chats.held().written) == [first, second]
    chats.store.chats.hide(chats.user, gone)
    found = chats.held()
    assert content(found.written) == [second]
    assert drafts(found, first[:3]) == set()
    chats.reply(kept, third)
    chats.store.chats.restore(chats.user, gone)
    found = chats.held()
    assert sorted(content(found.written)) == sorted([first, second, third])
    assert first[3] in drafts(found, first[:3])
    assert len(content(found.asked)) == 3
    assert sorted(content(chats.restart().written)) == sorted([first, second, third])
    chats.store.chats.hide(chats.user, gone)
    assert drafts(chats.restart(), first[:3]) == set()


def test_each_database_tells_what_it_knows() -> None:
    """From a place in it to the message or corpus that stands there."""
    sources = [
        Source(CORPUS, title="notes"),
        Source(HISTORY, text_at=lambda position: (7, position - 10)),
        Source(SEED, title="seed"),
        Source(PROMPTS, text_at=lambda position: (8, position)),
    ]
    origins = DraftOrigins(in_order(sources), prompt=100)
    assert origins.of(NO_MATCH, 0.5) == Origin(chance=0.5)
    assert origins.of(Match(CONTEXT, 3, -1, 90), 0.5) == Origin("context", 3, 0.5, place=-10)
    assert origins.of(Match(CONTEXT, 1, -1, -1), 0.5) == Origin("context", 1, 0.5)
    assert origins.of(Match(HISTORY, 4, 0, 12), 0.5) == Origin("history", 4, 0.5, 7, place=2)
    assert origins.of(Match(PROMPTS, 4, 1, 12), None) == Origin("prompts", 4, None, 8, place=12)
    assert origins.of(Match(SUCCESSORS, 2, -1, -1), 0.5) == Origin("successors", 2, 0.5)
    assert origins.of(Match(SEED, 4, 2, 12), 0.5) == Origin("seed", 4, 0.5)
    assert origins.of(Match(CORPUS, 4, 3, 12), 0.5) == Origin("corpus", 4, 0.5, corpus="notes", place=12)


def test_a_reply_is_found_by_the_end_of_its_prompt(chats: Chats) -> None:
    lead, reply = chats.text(LEAD), chats.text(8)
    chat = chats.begin()
    id = chats.reply(chat, reply, lead)
    for found in (chats.held(), chats.restart()):
        assert content(found.written) == [lead + reply]
        assert found.written.text_at(LEAD + 3) == (id, 3)
        assert set(reply) <= drafts(found, [1, *lead])
    delete_for_good(chats.store, chats.user, chat)
    assert not content(chats.held().written)
