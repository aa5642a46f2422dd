"""What may draft is the user's choice, imported chats among it, and no choice changes a word."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hierchat.chat.service import NotBegun
from hierchat.drafting.suffix_index import BREAK
from hierchat.page.conversation import ShownMessage, thread
from hierchat.runtime import history_index as history
from hierchat.store import Chat, ChatMessage, Mark
from hierchat.texts.build import write
from tests.testing.deleting import delete_for_good

from .conftest import Talk
from .test_service import recalled


@pytest.mark.parametrize("chosen", ["chat", "none"])
def test_earlier_chats_draft_only_where_they_may(talk: Talk, chosen: str) -> None:
    first = talk.send("hello")
    talk.store.users.choose(talk.user, drafts_from=chosen)
    second = talk.other().send("hello")
    assert not recalled(second)
    assert second.text == first.text
    drafted = {source for source, share in second.figures.shares.items() if share} - {"target"}
    assert "history" not in drafted
    if chosen == "none":
        assert not drafted
        assert second.figures.tokens_per_forward == 1
    talk.store.users.choose(talk.user, drafts_from="all")
    third = talk.other().send("hello")
    assert recalled(third)
    assert third.text == first.text


@pytest.mark.parametrize("incognito", [False, True])
def test_only_the_chat_itself_leaves_out_texts_that_ship_or_were_added(
    talk: Talk, tmp_path: Path, incognito: bool
) -> None:
    first = talk.send("hello")
    written = talk.store.replies.tokens(talk.user, first.message_id or 0)
    texts = write(
        tmp_path / "texts" / "mine", "mine", np.array([*written, BREAK], np.int32), 1, "", "tiny", ()
    )
    talk.service.slot.model = replace(talk.model, statistics=(texts,))
    for owner in ("bob", "carol"):  # added texts draft for owners alone
        talk.store.accounts.add(owner, "no password", owner=True)
    other = talk.other("bob")
    reply = other.send("hello")
    assert reply.figures.shares["statistics"] > 0.5  # or the test below could not fail
    closed = talk.other("carol")
    if incognito:
        closed.conversation = talk.store.chats.begin_incognito(closed.user)
    else:
        talk.store.users.choose(closed.user, drafts_from="chat")
    same = closed.send("hello")
    assert same.text == reply.text == first.text
    assert not same.figures.shares.get("statistics")


def test_an_incognito_chat_neither_draws_on_others_nor_feeds_them(talk: Talk) -> None:
    first = talk.send("hello")
    incognito = talk.other()
    incognito.conversation = talk.store.chats.begin_incognito(talk.user)
    same = incognito.send("hello")
    assert not recalled(same)
    assert same.text == first.text
    only_there = incognito.send("something else entirely", incognito.messages()[-1].id)
    assert only_there.text
    texts, _ = talk.store.history.texts(talk.user, talk.model.model_key, "written", Mark())
    assert len(texts) == 1
    talk.store.chats.end_incognito(talk.user, incognito.conversation)
    # A reply that another chat could only know from the incognito one.
    assert not recalled(talk.other().send("something else entirely"))


def test_nothing_is_learned_from_an_incognito_reply(talk: Talk) -> None:
    talk.send("hello")
    service = talk.service
    before = service._learned.held(talk.user, talk.model.model_key)
    learned = before.acceptance.to_bytes(), before.successors.to_bytes()
    incognito = talk.other()
    incognito.conversation = talk.store.chats.begin_incognito(talk.user)
    incognito.send("a new text")
    after = service._learned.held(talk.user, talk.model.model_key)
    assert (after.acceptance.to_bytes(), after.successors.to_bytes()) == learned
    talk.other().send("a new text")
    after = service._learned.held(talk.user, talk.model.model_key)
    assert (after.acceptance.to_bytes(), after.successors.to_bytes()) != learned


SENTENCES = ["The river ends in the sea near the old harbour.", "Nobody knows where it begins, but I do!"]


def take_in(talk: Talk, *said: tuple[str, str], source: str = "chatgpt:1") -> None:
    """An imported conversation in a row becomes the talk's own."""
    messages = [
        ChatMessage(str(place), str(place - 1) if place else None, role, text, 1e9 + place)
        for place, (role, text) in enumerate(said)
    ]
    talk.store.transfer.import_chat(
        talk.user, Chat(source, "Imported", 1e9, 1e9, messages, messages[-1].name)
    )
    talk.conversation = talk.store.chats.find(talk.user, "Imported")[0].id


def test_a_reply_of_another_program_is_regenerated_and_not_resumed(talk: Talk) -> None:
    take_in(talk, ("user", "Where does it end?"), ("assistant", SENTENCES[0]))
    question, reply = talk.messages()
    with pytest.raises(NotBegun, match="Another program wrote this reply"):
        list(talk.service.resume(talk.user, reply.id, 8, talk.stop))
    second = talk.again(question.id)
    assert talk.store.messages.get(talk.user, second.message_id).siblings == (reply.id, second.message_id)
    assert talk.service.figures(talk.user, reply.id) is None
    assert talk.service.runs(talk.user, reply.id) == []


def test_it_is_drawn_with_what_can_be_done(talk: Talk) -> None:
    """A chat that begins with a reply: nothing to ask again there; two replies in a row ask the same question."""
    take_in(
        talk, ("assistant", "Hello!"), ("user", "Where?"), ("assistant", "In the"), ("assistant", "harbour.")
    )
    path = talk.messages()
    runs = talk.service.runs(talk.user, path[2].id)
    shown = [ShownMessage(message, runs=runs if message is path[2] else None) for message in path]
    drawn = thread(shown, talk.service.model_status)
    replies = drawn.split('aria-label="Reply"')[1:]
    assert [text in part for text, part in zip(("Hello!", "In the", "harbour."), replies, strict=True)] == [
        True
    ] * 3
    again = [part.count("hc_again") for part in replies]
    assert again == [0, 1, 1]
    assert all(f'data-id="{path[1].id}"' in part for part in replies[1:])
    assert "only of replies that were written here" in replies[1]
    assert "hc_continue" not in drawn
    last = talk.send("And now?", path[-1].id)
    assert last.finish == "length"
    assert "Hello!" in talk.held


def test_what_it_said_drafts_from_the_first_reply_on(talk: Talk) -> None:
    """The imported reply is what the model itself says to this question, so that its drafts come true."""
    first = talk.send("Where?", temperature=0, max_new_tokens=48)
    delete_for_good(talk.store, talk.user, talk.conversation)
    take_in(talk, ("user", "Where?"), ("assistant", first.text))
    stranger = talk.other("bob").send("Where?", temperature=0, max_new_tokens=48)
    second = talk.other().send("Where?", temperature=0, max_new_tokens=48)
    assert second.text == stranger.text == first.text
    # Not all of it: what a random model writes is other tokens when its text is read again.
    assert second.figures.shares["history"] > 0.2 + stranger.figures.shares.get("history", 0)


def test_many_of_them_draft_once_a_thread_has_read_them(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "AT_ONCE", 500)
    rng = random.Random(0)
    for number in range(200):
        text = " ".join(rng.choices(SENTENCES, k=3))
        take_in(talk, ("user", "Where?"), ("assistant", text), source=f"chatgpt:{number}")
    talk.send("Where?", talk.messages()[-1].id)
    held = talk.service._histories.held(talk.user, talk.model.model_key, talk.model.prompts.tokens)
    held.wait()
    held.follow(None)
    assert len(held.written) == 201
    assert len(held.asked) == 201


@pytest.mark.parametrize("forgotten", [False, True])
def test_what_is_deleted_or_of_a_forgotten_user_drafts_no_more(talk: Talk, forgotten: bool) -> None:
    take_in(talk, ("user", "Where?"), ("assistant", SENTENCES[0]))
    talk.send("Where?", talk.messages()[-1].id)
    held = talk.service._histories.held(talk.user, talk.model.model_key, talk.model.prompts.tokens)
    held.wait()
    assert len(held.written) > 0
    if forgotten:
        assert talk.store.users.forget(talk.user)
    else:
        delete_for_good(talk.store, talk.user, talk.conversation)
    held = talk.service._histories.held(talk.user, talk.model.model_key, talk.model.prompts.tokens)
    held.wait()
    assert (len(held.written), len(held.asked)) == (0, 0)
