"""Talks of the terminal: over a server of OpenAI's protocol, kept or not, and over a model of this process."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from hierchat.chat.frames import Frame
from hierchat.chat.service import ChatService
from hierchat.cli import answering
from hierchat.cli.answering import OwnModel, ServerModel
from hierchat.cli.options import CommandError
from hierchat.cli.talk import CopiedTalk, KeptChats, SettingsOverrides, StoredTalk, Talk, TalkInMemory
from hierchat.runtime.model_slot import ModelSlot
from hierchat.runtime.prompt import PromptMessage
from hierchat.runtime.served_model import ServedModel
from hierchat.store import LOCAL_USER, Store
from hierchat.store.records import ChatSettings, Project
from tests.testing.deleting import delete_for_good
from tests.testing.openai_server import Script, serving
from tests.testing.tiny_chat import catalogue, load

SAID = [PromptMessage("system", "You help."), PromptMessage("user", "Hello?")]
Begin = Callable[..., StoredTalk]


def frames(server: ServerModel) -> list[Frame]:
    return list(server.complete(SAID, {}, threading.Event()))


def ask(talk: Talk, text: str) -> Frame:
    return list(talk.ask(text, (), threading.Event()))[-1]


@pytest.mark.parametrize("ending", ["", "/v1/"])
def test_the_reply_of_a_server_comes_piece_by_piece(url: str, script: Script, ending: str) -> None:
    server = ServerModel(url + ending)
    server.choose()
    got = frames(server)
    assert [one.phase for one in got] == ["waiting", "writing", "writing", "done"]
    assert [one.text for one in got] == ["", "Hello ", "Hello there.", "Hello there."]
    assert got[-1].finish == "end"
    script.usage = {"prompt_tokens": 7, "completion_tokens": 100}  # of another program
    figures = frames(server)[-1].figures
    assert figures.tokens == 100
    assert figures.tokens_per_second
    assert figures.first_token_seconds
    assert figures.deserved_speedup is None


def test_what_it_thought_stands_in_front_and_is_not_sent_again(url: str, script: Script) -> None:
    script.pieces_apart = [{"reasoning_content": "Hm"}, {"reasoning": "."}]
    server = ServerModel(url)
    got = frames(server)
    assert [one.text for one in got][:3] == ["", "<think>\nHm", "<think>\nHm."]
    assert got[-1].text == "<think>\nHm.\n</think>\n\nHello there."
    turns = (("assistant", got[-1].text), ("user", "<think>And?"), ("assistant", "<think>\nHm"))
    list(server.complete([PromptMessage(*turn) for turn in turns], {}, threading.Event()))
    sent = [one["content"] for one in script.asked[1]["messages"]]
    assert sent == ["Hello there.", "<think>And?", "<think>\nHm"]


def test_a_key_opens(url: str, script: Script) -> None:
    script.key = "secret"
    ServerModel(url, "secret").choose()
    for key in (None, "wrong"):
        server = ServerModel(url, key)
        assert not server.is_hierchat()
        for call in (server.choose, partial(frames, server)):
            with pytest.raises(CommandError, match="--key or in HIERCHAT_KEY"):
                call()


@pytest.mark.parametrize(
    "wrong",
    [
        "data: <html>\n\n", "data: 3\n\n", 'data: {"choices": [3]}\n\n',
        "much", [1], {"drafted": 3}, {"tokens_per_second": "fast"}, {"sources": 3},
    ],
)  # fmt: skip
def test_another_protocol_is_named(url: str, script: Script, wrong: object) -> None:
    """Or figures of another form."""
    if str(wrong).startswith("data"):
        script.raw = str(wrong)
    else:
        script.usage = {"prompt_tokens": 7, "completion_tokens": 9, "hierchat": wrong}
    with pytest.raises(CommandError, match="does not speak OpenAI's protocol"):
        frames(ServerModel(url))


def test_nothing_answers() -> None:
    with serving(Script()) as url:
        server = ServerModel(url)
    assert not server.is_hierchat()
    for call in (server.choose, partial(frames, server)):
        with pytest.raises(CommandError, match=r"Nothing answers at .*hierchat with --api"):
            call()


@pytest.fixture
def copied(url: str, store: Store, user: int) -> TalkInMemory:
    """A talk that a server answers and the store keeps."""
    server = ServerModel(url)
    return CopiedTalk(server, SettingsOverrides(), server.complete, kept=KeptChats(store, user))


def test_each_question_brings_what_was_said(url: str, script: Script) -> None:
    server, stop = ServerModel(url), threading.Event()
    talk = TalkInMemory(server, SettingsOverrides(), server.complete)
    stop.set()
    list(talk.ask("never begun", (), stop))
    assert talk.chat() is None
    script.asked.clear()
    for question in ("one", "two"):
        ask(talk, question)
    talk.new()
    ask(talk, "three")
    said = [[(one["role"], one["content"]) for one in asked["messages"]] for asked in script.asked]
    assert said[1] == [("user", "one"), ("assistant", "Hello there."), ("user", "two")]
    assert said[2] == [("user", "three")]


def test_chats_with_a_server_stand_in_the_store_and_draft(
    copied: TalkInMemory, store: Store, user: int
) -> None:
    copied.model.choose("other")
    assert ask(copied, "one").text == "Hello there."
    ask(copied, "two")
    assert copied.number
    path = store.messages.path(user, copied.number)
    assert [message.text for message in path] == ["one", "Hello there.", "two", "Hello there."]
    assert [message.model for message in path] == ["", "other", "", "other"]
    assert [(chat.id, chat.title) for chat in store.chats.find(user)] == [(copied.number, "one")]
    drafting = [text for _, text in store.history.without_tokens(user, "key", 0, None, 9)]
    assert drafting == [message.text for message in path]
    first = copied.number
    copied.new()
    ask(copied, "three")
    assert copied.number != first
    assert copied.earlier(2) == ["two", "three"]
    assert KeptChats(store, user).last() == copied.number


def test_a_deleted_chat_does_not_come_back(copied: TalkInMemory, store: Store, user: int) -> None:
    ask(copied, "one")
    assert copied.number
    delete_for_good(store, user, copied.number)
    with pytest.raises(CommandError, match="deleted meanwhile"):
        ask(copied, "two")
    assert store.chats.find(user) == []
    ask(copied, "three")
    assert copied.number
    assert [message.text for message in store.messages.path(user, copied.number)] == ["three", "Hello there."]


def test_what_is_set_is_the_chats_and_a_new_one_begins_with_the_default_preset(
    copied: TalkInMemory, script: Script, store: Store, user: int
) -> None:
    ask(copied, "one")
    assert copied.number
    assert store.chats.settings(user, copied.number) is None
    preset = store.presets.create(user, "brief", ChatSettings("Be brief.", {"temperature": 0.3}))
    store.presets.set_default(user, preset)
    copied.new()
    ask(copied, "two")
    asked = script.asked[-1]
    assert asked["messages"][0] == {"role": "system", "content": "Be brief."}
    assert asked["temperature"] == 0.3
    settings = store.chats.settings(user, copied.number)
    assert settings
    assert (settings.system_prompt, settings.preset_id) == ("Be brief.", preset)
    copied.changes.system_prompt = "Be kind."
    ask(copied, "three")
    settings = store.chats.settings(user, copied.number)
    assert settings
    assert settings.system_prompt == "Be kind."


@pytest.fixture
def service(store: Store) -> Iterator[ChatService]:
    def loading(name: str, report: object) -> ServedModel:
        if name == "broken":
            raise OSError
        return load(name, report)  # type: ignore[arg-type]

    slot = ModelSlot(catalogue("tiny", "another", "broken"), load=loading)
    with closing(ChatService(store, slot)) as service:
        yield service


@pytest.fixture
def model(service: ChatService) -> OwnModel:
    model = OwnModel(service, service.slot, io.StringIO())
    model.choose("tiny")
    return model


@pytest.fixture
def begin(service: ChatService, store: Store, model: OwnModel, user: int) -> Begin:
    """Begin a talk of short replies that this process writes; take up that of a number, or be in a project."""

    def begin(number: int | None = None, project: Project | None = None) -> StoredTalk:
        kept = KeptChats(store, user, project)
        talk = StoredTalk(model, SettingsOverrides(), service, kept=kept, number=number)
        talk.changes.sampling["max_new_tokens"] = 8
        return talk

    return begin


def test_a_chat_of_a_project_begins_as_the_project_does(begin: Begin, store: Store, user: int) -> None:
    project = Project(0, "House", "Be kind.")
    project = replace(project, id=store.projects.save(user, project))
    ask(begin(), "Elsewhere?")
    kept = KeptChats(store, user, project)
    with pytest.raises(CommandError, match="There is no chat to go on with yet"):
        kept.last()
    talk = begin(project=project)
    assert talk.settings.system_prompt == "Be kind."
    ask(talk, "Hello?")
    assert store.chats.get(user, kept.last()).project_id == project.id


def test_a_chat_is_stored_as_the_page_stores_it_and_goes_on(begin: Begin, store: Store, user: int) -> None:
    talk = begin()
    talk.changes.system_prompt = "Be brief."
    talk.changes.sampling["temperature"] = 1.0
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
    assert first.figures.seed != second.figures.seed
    after = begin(talk.number)
    assert after.settings.system_prompt == "Be brief."
    after.changes.sampling["seed"] = 4
    assert ask(after, "more").figures.seed == 4
    chat = after.chat()
    assert chat
    assert len(chat.messages) == 6


def test_nothing_stays_of_what_was_not_asked(begin: Begin, store: Store, user: int) -> None:
    talk, stop = begin(), threading.Event()
    stop.set()
    list(talk.ask("hello", (), stop))
    talk.take_back()
    assert (store.chats.find(user), talk.number) == ([], None)
    with pytest.raises(Exception, match="more than 2,048 tokens"):
        ask(talk, "word " * 2000)
    talk.take_back()
    assert store.chats.find(user) == []


def test_without_history_nothing_is_stored_and_no_other_chat_drafts(
    begin: Begin, service: ChatService, model: OwnModel, store: Store, user: int
) -> None:
    talk = begin()
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


def test_a_model_that_does_not_come_leaves_the_present_one(
    begin: Begin, model: OwnModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CommandError, match=r"broken could not be loaded"):
        model.choose("broken")
    with pytest.raises(CommandError, match=r"No model is called 'nobody'\. .*: tiny, another, broken\."):
        model.choose("nobody")
    wait, interrupts = answering.wait_for_model, [KeyboardInterrupt()]

    def interrupted(*arguments: Any) -> None:
        if interrupts:
            raise interrupts.pop()
        wait(*arguments)

    monkeypatch.setattr(answering, "wait_for_model", interrupted)
    with pytest.raises(CommandError, match=r"^Stopped\. tiny goes on answering\.$"):
        model.choose("another")
    assert model.name == "tiny"
    assert ask(begin(), "hello").text
