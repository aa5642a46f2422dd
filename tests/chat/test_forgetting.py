"""What a user deletes is deleted in a drafter elsewhere, too."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from hierchat.chat.service import ChatService
from hierchat.config import GenerationSettings
from hierchat.models.catalogue import Catalogue, EngineElsewhere, ModelEntry, OpenAI
from hierchat.runtime.model_slot import ModelSlot
from hierchat.runtime.prompt import PromptMessage
from hierchat.store import Store
from tests.engine.remote.drafter import TOKEN, Drafter
from tests.engine.remote.drafter import serving as drafting
from tests.testing.openai_server import Script, serving
from tests.testing.tiny_chat import settle

from .conftest import Talk


@pytest.fixture(autouse=True)
def _only_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hierchat.chat.reply_stream.LOOK_SECONDS", 1e6)


@pytest.fixture
def drafter() -> Drafter:
    return Drafter()


@pytest.fixture
def script() -> Script:
    models = [{"id": "big", "owned_by": "vllm"}]
    return Script(models=models, counts=True, usage={"prompt_tokens": 7, "completion_tokens": 6})


@pytest.fixture
def talk(store: Store, drafter: Drafter, script: Script) -> Iterator[Talk]:
    with serving(script) as url, drafting(drafter) as port:
        openai = OpenAI(url=url, drafter=port, drafter_token=TOKEN)
        entry = ModelEntry(name="far", engine=EngineElsewhere(openai=openai))
        slot = ModelSlot(Catalogue(models={"far": entry}, default="far"))
        slot.start("far")
        assert settle(slot).status.resamples, slot.status.message
        user = store.users.ensure("ann")
        service = ChatService(store, slot)
        yield Talk(service, user, store.chats.create(user))
        service.close()


def named(script: Script, at: int = -1) -> tuple[str, str]:
    told = script.asked[at]["vllm_xargs"]
    return told.get("hierchat_user", ""), told["hierchat_reply"]


def forgotten(drafter: Drafter) -> list[tuple[str, str]]:
    return [(user, reply) for user, replies in drafter.forgot for reply in replies]


def test_figures_are_those_of_the_drafter(talk: Talk) -> None:
    last = talk.send("hello")
    figures = last.figures
    assert (last.text, figures.tokens, figures.tokens_per_forward) == ("Hello there.", 6, 2.0)
    assert figures.shares == pytest.approx({"target": 0.5, "history": 1 / 3, "context": 1 / 6})
    assert figures.acceptance_rate == 0.75
    assert figures.speedup is None
    assert last.message_id is not None
    stored = talk.service.figures(talk.user, last.message_id)
    assert stored is not None
    assert (stored.shares, stored.tokens_per_forward) == (figures.shares, 2.0)
    assert stored.written is not None
    assert stored.written.drafted


def test_users_are_told_apart_and_their_replies(talk: Talk, script: Script) -> None:
    other = talk.other("bob")
    talk.send("hello")
    other.send("hello")
    talk.again(talk.messages()[0].id)
    names = [named(script, at) for at in range(3)]
    assert len({user for user, _ in names}) == 2
    assert len(set(names)) == 3
    assert names[0][0] == names[2][0]
    assert script.asked[0]["cache_salt"] != script.asked[1]["cache_salt"]


def test_a_deleted_chat_drafts_no_later_reply(talk: Talk, drafter: Drafter, script: Script) -> None:
    talk.send("secret")
    name = named(script)
    other = talk.other("ann")
    other.send("hello")
    assert forgotten(drafter) == []
    talk.store.chats.hide(talk.user, talk.conversation)
    other.send("again", other.messages()[-1].id)
    assert forgotten(drafter) == [name]
    talk.store.chats.delete_hidden()
    other.send("again", other.messages()[-1].id)
    assert forgotten(drafter) == [name]


def test_a_user_who_leaves_is_forgotten_at_the_end_of_the_program_at_the_latest(
    talk: Talk, drafter: Drafter, script: Script
) -> None:
    talk.send("hello")
    talk.service.forget_user(talk.user)
    talk.service.close()
    assert forgotten(drafter) == [named(script)]


def test_it_is_looked_for_while_nobody_writes(
    talk: Talk, drafter: Drafter, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hierchat.chat.reply_stream.LOOK_SECONDS", 0.01)
    service = ChatService(talk.store, talk.service.slot)
    talk.send("hello")
    talk.store.chats.hide(talk.user, talk.conversation)
    while not drafter.forgot:
        time.sleep(0.01)
    service.close()
    assert forgotten(drafter) == [named(script)]


def test_while_the_drafter_cannot_forget_nothing_of_the_user_is_named(
    talk: Talk, drafter: Drafter, script: Script
) -> None:
    talk.send("secret")
    name = named(script)
    other = talk.other("ann")
    talk.store.chats.hide(talk.user, talk.conversation)
    drafter.refuses = True
    assert other.send("hello").text == "Hello there."
    assert named(script)[0] == ""
    drafter.refuses = False
    other.send("hello", other.messages()[-1].id)
    assert named(script)[0] == name[0]
    assert forgotten(drafter) == [name]


@pytest.mark.parametrize("allowed", ["chat", "none"])
def test_where_earlier_chats_may_not_draft_nobody_is_named(talk: Talk, script: Script, allowed: str) -> None:
    talk.store.users.set_drafts_from(talk.user, allowed)  # type: ignore[arg-type]
    talk.send("hello")
    told = script.asked[-1]["vllm_xargs"]
    assert "hierchat_user" not in told
    assert told.get("hierchat_drafts") == (0 if allowed == "none" else None)


def test_an_incognito_chat_is_not_named(talk: Talk, script: Script) -> None:
    hidden = Talk(talk.service, talk.user, talk.store.chats.begin_incognito(talk.user))
    hidden.send("secret")
    assert named(script)[0] == ""


def test_what_is_not_stored_is_not_named(talk: Talk, script: Script) -> None:
    list(talk.service.complete([PromptMessage("user", "hello")], GenerationSettings(), talk.user, talk.stop))
    assert named(script)[0] == ""
