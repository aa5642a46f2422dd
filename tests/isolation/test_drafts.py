"""Through replies: what drafts them, where that was found, what of the prompt was read already."""

from dataclasses import replace

import numpy as np
import pytest

from hierchat.chat.frames import Frame
from hierchat.chat.service import ChatService
from hierchat.drafting.suffix_index import BREAK, suffix_order
from hierchat.engine.batching import SequencePool
from hierchat.store import Store
from hierchat.texts.build import Statistics
from hierchat.texts.corpora import SEED_NAME
from tests.chat.conftest import Talk
from tests.testing.tiny_chat import SYSTEM, ready_slot, tokenizer

SECRET = "My sister plays the xylophone in the town orchestra every second Thursday of the month."


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hierchat.chat.reply_stream.FRAME_SECONDS", 0.0)
    monkeypatch.setattr("hierchat.chat.titles.IDLE_SECONDS", float("inf"))


@pytest.fixture
def ann(store: Store) -> Talk:
    """The owner's chat; `ann.other("ben")` is another user's."""
    store.accounts.add("ann", "hash")
    store.accounts.add("ben", "hash")
    user = store.users.ensure("ann")
    return Talk(ChatService(store, ready_slot()), user, store.chats.create(user))


def read_already(talk: Talk, text: str) -> int:
    """Tokens of the prompt that were not read again for this reply. (The first frame would tell it, too, where the
    reader is as quick as the engine.)"""
    figures = talk.send(text, max_new_tokens=4).figures
    return figures.prompt_tokens - 1 - figures.prompt_read  # its last token opens the first forward


def sources(frame: Frame) -> set[str]:
    return {source for source, share in frame.figures.shares.items() if share}


def proposed(frame: Frame) -> set[str]:
    return set(frame.figures.acceptance)


def test_a_reply_is_the_same_and_drafted_by_nothing_of_another_user(ann: Talk) -> None:
    """Ann's reply is in the history; the same question of hers is drafted from it, ben's is not."""
    first = ann.send(SECRET)
    again = ann.other("ann").send(SECRET)
    assert "history" in sources(again)  # what the attack would see
    theirs = ann.other("ben")
    spied = theirs.send(SECRET)
    assert spied.text == again.text == first.text
    assert {"history", "prompts"}.isdisjoint(sources(spied) | proposed(spied))
    origins = {run.origin.origin_id for run in theirs.service.runs(theirs.user, spied.message_id)}
    mine = {message.id for message in theirs.messages()}
    assert origins <= mine | {None}


def test_what_one_user_taught_drafting_is_not_in_the_other_s_tables(ann: Talk) -> None:
    ann.send(SECRET)
    ann.service.completions.keep(ann.model, now=True)
    key = ann.model.model_key
    assert ann.store.learned.get(ann.user, key, "successors")
    theirs = ann.other("ben")
    assert ann.store.learned.get(theirs.user, key, "successors") is None
    mine, other = (ann.service._learned.held(user, key) for user in (ann.user, theirs.user))
    assert mine.successors.to_bytes() != other.successors.to_bytes()
    held = ann.service._histories.held(theirs.user, key)
    assert len(held.written) == len(held.asked) == 0


def test_a_prompt_that_begins_like_another_s_is_not_told_as_read(ann: Talk) -> None:
    """Figures, and the time to the first token, would tell whether it does."""
    ann.send(SECRET)
    theirs = ann.other("ben")
    guessed, wrong = SECRET, "Something else that has as many words and is as long, more or less, so to say."
    assert read_already(theirs, guessed) == 0
    ann.send(SECRET, ann.messages()[-1].id)
    assert read_already(ann.other("ben"), wrong) == 0
    assert read_already(ann.other("ben"), wrong) > 0  # one's own is read already


def test_that_attack_is_a_real_one(ann: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    take = SequencePool.take
    monkeypatch.setattr(SequencePool, "take", lambda self, prompt, user, chat=None: take(self, prompt, 0))
    ann.send(SECRET)
    right = read_already(ann.other("ben"), SECRET)
    ann.other("ann").send(SECRET)
    wrong = read_already(ann.other("ben"), "Something else.")
    assert right > wrong


def corpus(name: str, text: str) -> Statistics:
    """A text as it is held to be drafted from."""
    tokens = np.array([*tokenizer().encode(text), BREAK], np.int32)
    return Statistics(name, tokens, suffix_order(tokens))


@pytest.fixture
def diary(ann: Talk) -> Talk:
    """What the model will say stands in a file of the owner's, and something else in what ships."""
    said = ann.send(SECRET).text
    ann.store.users.forget(ann.user)
    texts = (corpus(SEED_NAME, SYSTEM * 3), corpus("diary", said * 2))
    ann.service.slot.model = replace(ann.model, statistics=texts)
    return ann


@pytest.mark.parametrize(
    ("name", "drafts"), [("ann", True), ("local", True), ("ben", False), ("key:1", False)]
)
def test_texts_that_the_owner_added_draft_for_the_owner_alone(diary: Talk, name: str, drafts: bool) -> None:
    talk = diary.other(name)
    reply = talk.send(SECRET)
    runs = talk.service.runs(talk.user, reply.message_id)
    found = {run.origin.corpus for run in runs} | {run.origin.slot for run in runs}
    assert bool({"diary", "corpus"} & found) is drafts
    assert ("statistics" in sources(reply)) is drafts
