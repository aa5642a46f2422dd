"""What may draft is the user's choice, imported chats among it, and no choice changes a word."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hierchat.chat.completions import NotBegun
from hierchat.drafting.suffix_index import BREAK
from hierchat.store import Chat, ChatMessage, Mark
from hierchat.texts.build import write

from .conftest import Talk
from .test_service import recalled


@pytest.mark.parametrize("chosen", ["chat", "none"])
def test_earlier_chats_draft_only_where_they_may_and_for_the_model_that_wrote_them(
    talk: Talk, chosen: str
) -> None:
    first = talk.send("hello")
    talk.store.users.choose(talk.user, drafts_from=chosen)
    second = talk.other().send("hello")
    drafted = {source for source, share in second.figures.shares.items() if share} - {"target"}
    assert "history" not in drafted
    if chosen == "none":
        assert not drafted
        assert second.figures.tokens_per_forward == 1
    talk.store.users.choose(talk.user, drafts_from="all")
    third = talk.other().send("hello")
    assert [recalled(one) for one in (first, second, third)] == [False, False, True]
    assert first.text == second.text == third.text
    talk.service.slot.model = replace(talk.model, model_key="another")
    assert not recalled(talk.other().send("hello"))


@pytest.mark.parametrize("incognito", [False, True])
def test_only_the_chat_itself_leaves_out_texts_that_ship_or_were_added(
    talk: Talk, tmp_path: Path, incognito: bool
) -> None:
    first = talk.send("hello")
    written = np.array([*talk.tokens(first), BREAK], np.int32)
    texts = write(
        tmp_path / "texts" / "mine", written, name="mine", texts=1, tokenizer="", model="tiny", sources=()
    )
    talk.service.slot.model = replace(talk.model, statistics=(texts,))
    for owner in ("bob", "carol"):  # added texts draft for owners alone
        talk.store.accounts.add(owner, "no password", owner=True)
    reply = talk.other("bob").send("hello")
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
    def learned() -> tuple[bytes, bytes]:
        held = talk.service._learned.held(talk.user, talk.model.model_key)
        return held.acceptance.to_bytes(), held.successors.to_bytes()

    first, incognito = talk.send("hello"), talk.other()
    before = learned()
    incognito.conversation = talk.store.chats.begin_incognito(talk.user)
    same = incognito.send("hello")
    assert not recalled(same)
    assert same.text == first.text
    only_there = incognito.send("something else entirely", incognito.messages()[-1].id)
    assert only_there.text
    assert learned() == before
    texts, _ = talk.store.history.texts(talk.user, talk.model.model_key, "written", Mark())
    assert len(texts) == 1
    talk.store.chats.end_incognito(talk.user, incognito.conversation)
    # A reply that another chat could only know from the incognito one.
    assert not recalled(talk.other().send("something else entirely"))
    assert learned() != before


def take_in(talk: Talk, *said: tuple[str, str]) -> None:
    """An imported conversation in a row becomes the talk's own."""
    messages = [
        ChatMessage(str(place), str(place - 1) if place else None, role, text, 1e9 + place)
        for place, (role, text) in enumerate(said)
    ]
    chat = Chat("chatgpt:1", "Imported", 1e9, 1e9, messages, messages[-1].name)
    talk.store.transfer.import_chat(talk.user, chat)
    talk.conversation = talk.store.chats.find(talk.user, "Imported")[0].id


def test_a_reply_of_another_program_is_regenerated_and_not_resumed(talk: Talk) -> None:
    take_in(talk, ("assistant", "Hello!"), ("user", "Where does it end?"), ("assistant", "In the sea."))
    _, question, reply = talk.messages()
    with pytest.raises(NotBegun, match="Another program wrote this reply"):
        list(talk.service.resume(talk.user, reply.id, 8, talk.stop))
    second = talk.again(question.id)
    assert "Hello!" in talk.held
    assert talk.store.messages.get(talk.user, second.message_id).siblings == (reply.id, second.message_id)
    assert talk.service.figures(talk.user, reply.id) is None
    assert talk.service.runs(talk.user, reply.id) == []
