"""What replies leave behind: whose it is, how long it lives, and when it goes."""

from __future__ import annotations

from hierchat.chat.history import Held, Histories

from .conftest import Talk


def held(talk: Talk, histories: Histories) -> Held:
    return histories.held(talk.user, talk.hosted.model_key)


def test_what_was_learned_lives_from_reply_to_reply(talk: Talk) -> None:
    histories = Histories(talk.store)
    first = held(talk, histories).acceptance
    talk.send("hello")
    assert held(talk, histories).acceptance is first
    assert len(held(talk, histories).source) > 0


def test_another_user_or_model_has_its_own(talk: Talk) -> None:
    histories = Histories(talk.store)
    talk.send("hello")
    mine = held(talk, histories)
    assert held(talk.other("bob"), histories).acceptance is not mine.acceptance
    assert histories.held(talk.user, "another model").acceptance is not mine.acceptance


def test_what_was_learned_goes_with_a_deleted_conversation(talk: Talk) -> None:
    histories = Histories(talk.store)
    talk.send("hello")
    before = held(talk, histories)
    talk.store.delete_conversation(talk.user, talk.conversation)
    after = held(talk, histories)
    assert after.acceptance is not before.acceptance
    assert len(after.source) == 0
