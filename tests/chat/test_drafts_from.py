"""What may draft is the user's choice, and no choice changes a word."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hierchat.drafting.suffix_index import BREAK
from hierchat.store import Mark
from hierchat.texts.build import write

from .conftest import Talk
from .test_service import recalled


@pytest.mark.parametrize("chosen", ["chat", "none"])
def test_earlier_chats_draft_only_where_they_may(talk: Talk, chosen: str) -> None:
    first = talk.send("hello")
    talk.store.users.set_drafts_from(talk.user, chosen)  # type: ignore[arg-type]
    second = talk.other().send("hello")
    assert not recalled(second)
    assert second.text == first.text
    drafted = {source for source, share in second.figures.shares.items() if share} - {"target"}
    assert "history" not in drafted
    if chosen == "none":
        assert not drafted
        assert second.figures.tokens_per_forward == 1
    talk.store.users.set_drafts_from(talk.user, "all")
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
        talk.store.users.set_drafts_from(closed.user, "chat")
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
