"""Chat over an engine that is known by its contract alone."""

from __future__ import annotations

import pytest

from hierchat.chat.comparing import CannotCompare
from hierchat.chat.service import NotBegun
from hierchat.engine.engine import TARGET, Compares
from hierchat.store import Store
from tests.testing.scripted_engine import WORDS, load
from tests.testing.tiny_chat import ready_slot

from .conftest import Talk, talk_on


@pytest.fixture
def talk(store: Store) -> Talk:
    return talk_on(store, ready_slot(load))


def test_a_reply_is_written_stored_and_nothing_is_claimed_of_its_speed_up(talk: Talk) -> None:
    assert not isinstance(talk.model.engine, Compares)
    last = talk.send("hello", max_new_tokens=80)
    assert last.finish == "length"
    assert last.figures.tokens == 80
    assert last.figures.tokens_per_second is not None
    assert last.figures.speedup is last.figures.baseline is last.figures.baseline_tokens_per_second is None
    assert last.figures.shares == {TARGET: 1.0}
    question, reply = talk.messages()
    assert (question.text, reply.text) == ("hello", last.text)
    assert WORDS.startswith(last.text)
    stored = talk.service.figures(talk.user, reply.id)
    assert stored.speedup is None
    assert talk.service.plan() is None


def test_it_is_stopped_and_goes_on(talk: Talk) -> None:
    talk.model.engine.stops_at = 20
    last = talk.send("hello", max_new_tokens=100)
    assert (last.finish, last.figures.tokens) == ("stopped", 22)
    talk.stop.clear()
    talk.model.engine.stops_at = None
    more = talk.resume(last.message_id, 100)
    assert more.text.startswith(last.text)
    assert WORDS.startswith(more.text)
    assert talk.messages()[-1].text == more.text


def test_a_comparison_says_that_it_cannot(talk: Talk) -> None:
    with pytest.raises(CannotCompare, match="tiny drafts by itself or not at all"):
        list(talk.comparing("hello"))
    assert talk.messages() == []
    assert talk.send("and now?").finish == "length"


def test_a_reply_of_another_model_is_not_continued(talk: Talk, store: Store) -> None:
    reply = talk.send("hello").message_id
    assert reply is not None
    mine = Talk(talk_on(store, ready_slot()).service, talk.user, talk.conversation)
    with pytest.raises(NotBegun, match="tiny wrote this reply"):
        mine.resume(reply, 8)
