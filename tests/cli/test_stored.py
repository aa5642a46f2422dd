"""A chat that the service of this process answers."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from hierchat.chat.frames import Frame
from hierchat.chat.service import ChatService
from hierchat.cli import answering
from hierchat.cli.answering import OwnModel
from hierchat.cli.options import CommandError
from hierchat.cli.talk import KeptChats, SettingsOverrides, StoredTalk, Talk, TalkInMemory
from hierchat.runtime.model_slot import ModelSlot
from hierchat.runtime.served_model import ServedModel
from hierchat.store import LOCAL_USER, Store
from hierchat.store.records import Project
from tests.testing.tiny_chat import catalogue, load


@pytest.fixture
def service(store: Store) -> Iterator[ChatService]:
    def loading(name: str, report: object) -> ServedModel:
        if name == "broken":
            raise OSError
        return load(name, report)  # type: ignore[arg-type]

    with closing(
        ChatService(store, ModelSlot(catalogue("tiny", "another", "broken"), load=loading))
    ) as service:
        yield service


@pytest.fixture
def model(service: ChatService) -> OwnModel:
    model = OwnModel(service, service.slot, io.StringIO())
    model.choose("tiny")
    return model


@pytest.fixture
def talk(service: ChatService, store: Store, model: OwnModel, user: int) -> StoredTalk:
    return short(StoredTalk(model, SettingsOverrides(), service, kept=KeptChats(store, user)))


def short(talk: StoredTalk) -> StoredTalk:
    talk.changes.sampling["max_new_tokens"] = 8
    return talk


def ask(talk: Talk, text: str) -> Frame:
    return list(talk.ask(text, (), threading.Event()))[-1]


def test_a_chat_of_a_project_begins_as_the_project_does(
    service: ChatService, store: Store, model: OwnModel, user: int
) -> None:
    project = Project(0, "House", "Be kind.")
    project = replace(project, id=store.projects.save(user, project))
    ask(short(StoredTalk(model, SettingsOverrides(), service, kept=KeptChats(store, user))), "Elsewhere?")
    kept = KeptChats(store, user, project)
    with pytest.raises(CommandError, match="There is no chat to go on with yet"):
        kept.last()
    talk = short(StoredTalk(model, SettingsOverrides(), service, kept=kept))
    assert talk.settings.system_prompt == "Be kind."
    ask(talk, "Hello?")
    assert store.chats.get(user, kept.last()).project_id == project.id


def test_a_chat_is_stored_as_the_page_stores_it(talk: StoredTalk, store: Store, user: int) -> None:
    first, second = ask(talk, "hello"), ask(talk, "again")
    assert talk.number
    path = store.messages.path(user, talk.number)
    assert [message.text for message in path] == ["hello", first.text, "again", second.text]
    assert path[-1].model == "tiny"
    turn = store.replies.turn(user, path[-1].id)
    assert turn
    assert turn.figures
    assert turn.reply_tokens == second.figures.tokens
    assert store.users.ids() == {LOCAL_USER: user}
    assert "".join(run.text for run in talk.runs()) == second.text


def test_the_last_chat_goes_on(
    talk: StoredTalk, service: ChatService, store: Store, model: OwnModel, user: int
) -> None:
    talk.changes.system_prompt = "Be brief."
    ask(talk, "hello")
    after = short(
        StoredTalk(model, SettingsOverrides(), service, kept=KeptChats(store, user), number=talk.number)
    )
    assert after.settings.system_prompt == "Be brief."
    ask(after, "more")
    chat = after.chat()
    assert chat
    assert len(chat.messages) == 4


def test_nothing_stays_of_what_was_not_asked(talk: StoredTalk, store: Store, user: int) -> None:
    stop = threading.Event()
    stop.set()
    list(talk.ask("hello", (), stop))
    talk.take_back()
    assert store.chats.find(user) == []
    assert talk.number is None
    with pytest.raises(Exception, match="more than 2,048 tokens"):
        ask(talk, "word " * 2000)
    talk.take_back()
    assert store.chats.find(user) == []


def test_a_new_seed_for_each_reply_unless_one_is_set(talk: StoredTalk) -> None:
    talk.changes.sampling |= {"temperature": 1.0}
    seeds = {ask(talk, "hello").figures.seed for _ in range(3)}
    assert len(seeds) == 3
    talk.changes.sampling["seed"] = 4
    assert ask(talk, "hello").figures.seed == 4


def test_without_history_nothing_is_stored_and_no_other_chat_drafts(
    talk: StoredTalk, service: ChatService, model: OwnModel, store: Store, user: int
) -> None:
    first = ask(talk, "hello")
    talk.new()
    assert "history" in ask(talk, "hello").figures.shares
    before = store.chats.find(user)
    settings = service.chats.settings(user, None)
    passing = TalkInMemory(model, SettingsOverrides(), partial(model.complete, user), settings)
    passing.changes.sampling["max_new_tokens"] = 8
    same = ask(passing, "hello")
    assert same.text == first.text
    assert "history" not in same.figures.shares
    assert store.chats.find(user) == before
    store.users.choose(user, drafts_from="none")
    assert set(ask(passing, "more").figures.shares) == {"target"}


def test_a_model_that_does_not_come_leaves_the_present_one(talk: StoredTalk, model: OwnModel) -> None:
    with pytest.raises(CommandError, match=r"broken could not be loaded"):
        model.choose("broken")
    assert model.name == "tiny"
    assert ask(talk, "hello").text
    with pytest.raises(
        CommandError, match=r"No model is called 'nobody'\. There are: tiny, another, broken\."
    ):
        model.choose("nobody")


def test_loading_can_be_interrupted(model: OwnModel, monkeypatch: pytest.MonkeyPatch) -> None:
    wait, calls = answering.wait_for_model, []

    def interrupted(*arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) == 1:
            raise KeyboardInterrupt
        wait(*arguments)

    monkeypatch.setattr(answering, "wait_for_model", interrupted)
    with pytest.raises(CommandError, match=r"^Stopped\. tiny goes on answering\.$"):
        model.choose("another")
    assert model.name == "tiny"
