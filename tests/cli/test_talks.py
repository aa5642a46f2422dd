"""Talks of the terminal: over a server of OpenAI's protocol, and over a model of this process."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hierchat.chat.frames import Frame
from hierchat.chat.service import ChatService
from hierchat.cli import talk as talk_module
from hierchat.cli.chat import KEY_VARIABLE, ChatFlags
from hierchat.cli.options import CommandError
from hierchat.cli.talk import KeptChats, OwnModel, SettingsOverrides, Talk
from hierchat.runtime.model_slot import ModelSlot
from hierchat.runtime.served_model import ServedModel
from hierchat.store import LOCAL_USER, Store
from hierchat.store.records import ChatSettings, Project
from tests.testing.deleting import delete_for_good
from tests.testing.openai_server import Script, serving
from tests.testing.tiny_chat import catalogue, load

Begin = Callable[..., Talk]


def ask(talk: Talk, text: str) -> Frame:
    return list(talk.ask(text, (), threading.Event()))[-1]


def flags(url: str, tmp_path: Path, **more: Any) -> ChatFlags:
    return ChatFlags(url=url, db=tmp_path / "chats.db", **more)


@pytest.mark.parametrize("ending", ["", "/v1/"])
def test_a_server_answers_and_the_chat_stands_in_the_store(
    url: str, script: Script, ending: str, tmp_path: Path
) -> None:
    with talk_module.open_talk(flags(url + ending, tmp_path)) as server:
        assert server.model.place == f" at {url}"
        server.model.choose("other")
        assert ask(server, "one").text == "Hello there."
        ask(server, "two")
        assert server.number
        store, user = server.kept.store, server.kept.user
        path = store.messages.path(user, server.number)
        assert [message.text for message in path] == ["one", "Hello there.", "two", "Hello there."]
        assert [message.model for message in path] == ["", "other", "", "other"]
        first = server.number
        server.new()
        ask(server, "three")
        assert server.number != first
        assert server.kept.earlier(2) == ["two", "three"]
        assert server.kept.last() == server.number
    said = [[(one["role"], one["content"]) for one in asked["messages"]] for asked in script.asked]
    assert said[1] == [("user", "one"), ("assistant", "Hello there."), ("user", "two")]
    assert said[2] == [("user", "three")]


def test_a_model_of_any_name_that_is_loaded_there_comes_first(
    url: str, script: Script, tmp_path: Path
) -> None:
    script.models = [{"id": "a"}, {"id": "Maker/model:8b", "loaded": True}]
    with talk_module.open_talk(flags(url, tmp_path)) as server:
        assert server.model.names() == ["Maker/model:8b", "a"]
        ask(server, "one")
    assert script.asked[0]["model"] == "Maker/model:8b"


def test_a_key_opens(url: str, script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "")
    script.key = "secret"
    for key, said in ((None, "Put it in HIERCHAT_KEY"), ("wrong", "Put the right one in HIERCHAT_KEY")):
        with pytest.raises(CommandError, match=said), talk_module.open_talk(flags(url, tmp_path, key=key)):
            pass
    with talk_module.open_talk(flags(url, tmp_path, key="secret")) as server:
        assert ask(server, "one").text == "Hello there."


def test_nothing_answers(tmp_path: Path) -> None:
    with serving(Script()) as url:
        pass
    with (
        pytest.raises(CommandError, match=r"Nothing answers at .*Start the server there"),
        talk_module.open_talk(flags(url, tmp_path)),
    ):
        pass


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
    model = OwnModel(service.slot, io.StringIO())
    model.choose("tiny")
    return model


@pytest.fixture
def begin(service: ChatService, store: Store, model: OwnModel, user: int) -> Begin:
    """Begin a talk of short replies that this process writes; take up that of a number, or be in a project."""

    def begin(number: int | None = None, project: Project | None = None, **more: Any) -> Talk:
        kept = KeptChats(store, user, project, **more)
        talk = Talk(model, SettingsOverrides(), service, kept, number)
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


def test_a_deleted_chat_does_not_come_back(begin: Begin, store: Store, user: int) -> None:
    talk = begin()
    ask(talk, "one")
    assert talk.number
    delete_for_good(store, user, talk.number)
    with pytest.raises(CommandError, match="deleted meanwhile"):
        ask(talk, "two")
    assert store.chats.find(user) == []
    ask(talk, "three")
    assert talk.number
    assert store.messages.path(user, talk.number)[0].text == "three"


def test_a_new_chat_begins_with_the_default_preset(begin: Begin, store: Store, user: int) -> None:
    talk = begin()
    preset = store.presets.create(user, "brief", ChatSettings("Be brief.", {"temperature": 0.3}))
    store.presets.set_default(user, preset)
    ask(talk, "two")
    assert talk.number
    settings = store.chats.settings(user, talk.number)
    assert settings
    assert (settings.system_prompt, settings.sampling["temperature"]) == ("Be brief.", 0.3)
    talk.changes.system_prompt = "Be kind."
    ask(talk, "three")
    settings = store.chats.settings(user, talk.number)
    assert settings
    assert settings.system_prompt == "Be kind."


def test_without_history_nothing_is_kept_and_no_other_chat_drafts(
    begin: Begin, store: Store, user: int
) -> None:
    talk = begin()
    first = ask(talk, "hello")
    talk.new()
    assert "history" in ask(talk, "hello").figures.shares
    before = store.chats.find(user)
    passing = begin(incognito=True)
    same = ask(passing, "hello")
    assert same.text == first.text
    assert "history" not in same.figures.shares
    assert store.chats.find(user) == before
    store.users.choose(user, drafts_from="none")
    assert set(ask(passing, "more").figures.shares) == {"target"}
    assert passing.number
    assert store.chats.end_incognito(user, passing.number)


def test_a_model_that_does_not_come_leaves_the_present_one(
    begin: Begin, model: OwnModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CommandError, match=r"broken could not be loaded"):
        model.choose("broken")
    with pytest.raises(CommandError, match=r"No model is called 'nobody'\. .*: tiny, another, broken\."):
        model.choose("nobody")
    wait, interrupts = talk_module.wait_for_model, [KeyboardInterrupt()]

    def interrupted(*arguments: Any) -> None:
        if interrupts:
            raise interrupts.pop()
        wait(*arguments)

    monkeypatch.setattr(talk_module, "wait_for_model", interrupted)
    with pytest.raises(CommandError, match=r"^Stopped\. tiny goes on answering\.$"):
        model.choose("another")
    assert model.name == "tiny"
    assert ask(begin(), "hello").text
