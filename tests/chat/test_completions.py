"""A request without a store: the same reply, nothing written down, the same queue."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

from hierchat.chat.completions import NoModel
from hierchat.runtime.model_slot import ModelSlot
from hierchat.runtime.prompt import MessageTooLong, PromptMessage
from hierchat.store import Store
from tests.testing.tiny_chat import catalogue

from .conftest import Talk, talk_on
from .test_service import LONG


def complete(talk: Talk, *said: PromptMessage, **settings: object) -> list:
    return list(talk.service.complete(said, talk._settings(settings), talk.user, talk.stop))


@pytest.mark.usefixtures("every_frame")
def test_the_reply_is_the_one_that_the_chat_gives(talk: Talk) -> None:
    frames = complete(talk, PromptMessage("user", "hello"))
    assert talk.messages() == []
    assert talk.store.figures.totals(talk.user).tokens == 0
    told = talk.send("hello")
    last = frames[-1]
    assert (last.text, last.finish, last.figures.tokens) == (told.text, told.finish, told.figures.tokens)
    assert {frame.phase for frame in frames} == {"waiting", "reading", "writing", "done"}
    assert {frame.message_id for frame in frames} == {None}


def test_a_conversation_is_given_whole(talk: Talk) -> None:
    first = talk.send("hello")
    second = talk.send("go on", first.message_id)
    said = (
        PromptMessage("user", "hello"),
        PromptMessage("assistant", first.text),
        PromptMessage("user", "go on"),
    )
    tokens = tuple(talk.store.replies.tokens(talk.user, first.message_id))
    exactly = (said[0], PromptMessage("assistant", first.text, tokens), said[2])
    assert complete(talk, *exactly)[-1].text == second.text


def test_it_waits_in_the_same_queue_and_leaves_it(talk: Talk) -> None:
    with closing(talk.sending("hello", max_new_tokens=200)) as running:
        for frame in running:
            if frame.phase == "writing":
                break
        stop = threading.Event()
        frames = talk.service.complete([PromptMessage("user", "x")], talk._settings({}), talk.user, stop)
        assert [next(frames).ahead for _ in range(2)] == [1, 1]
        stop.set()
        assert list(frames) == []
    talk.stop.clear()  # leaving stopped the first
    assert complete(talk, PromptMessage("user", "x"))[-1].finish == "length"


def test_what_keeps_it_from_beginning_is_raised(talk: Talk, store: Store) -> None:
    with pytest.raises(MessageTooLong):
        complete(talk, PromptMessage("user", LONG * 4))
    with pytest.raises(NoModel):
        complete(talk_on(store, ModelSlot(catalogue("tiny"))), PromptMessage("user", "hello"))
    assert complete(talk, PromptMessage("user", "hello"))[-1].finish == "length"
