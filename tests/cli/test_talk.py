"""A chat in memory, and one that a server answers and the store keeps."""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping, Sequence
from threading import Event
from typing import Any

import pytest

from hierchat.chat.frames import Frame
from hierchat.cli.options import CommandError
from hierchat.cli.talk import CopiedTalk, KeptChats, SettingsOverrides, TalkInMemory
from hierchat.runtime.prompt import PromptMessage
from hierchat.store import Store
from hierchat.store.records import Attachment, ChatSettings, NewMessage


class Echo:
    """Answers with the question; remembers what it was given."""

    name = "echo"
    place = ""

    def __init__(self) -> None:
        self.given: list[tuple[list[PromptMessage], dict[str, Any]]] = []
        self.finish = "end"

    def names(self) -> list[str]:
        return [self.name]

    def about(self, name: str) -> str:
        return ""

    def choose(self, name: str) -> None:
        self.name = name

    def complete(
        self, said: Sequence[PromptMessage], sampling: Mapping[str, Any], stop: Event
    ) -> Generator[Frame, None, None]:
        self.given.append((list(said), dict(sampling)))
        yield Frame("waiting")
        if stop.is_set():
            return
        text = f"You said {said[-1].text}"
        yield Frame("writing", text=text[:3])
        yield Frame("done", text=text, finish=self.finish)


@pytest.fixture
def echo() -> Echo:
    return Echo()


def passing(echo: Echo) -> TalkInMemory:
    return TalkInMemory(echo, SettingsOverrides(), echo.complete)


def kept(echo: Echo, store: Store, user: int, number: int | None = None) -> TalkInMemory:
    return CopiedTalk(echo, SettingsOverrides(), echo.complete, kept=KeptChats(store, user), number=number)


def ask(talk: TalkInMemory, text: str, files: Sequence[Attachment] = ()) -> str:
    return list(talk.ask(text, files, threading.Event()))[-1].text


def texts(store: Store, user: int, number: int) -> list[str]:
    return [message.text for message in store.messages.path(user, number)]


def test_each_question_brings_what_was_said(echo: Echo) -> None:
    talk, stop = passing(echo), threading.Event()
    stop.set()
    list(talk.ask("never begun", (), stop))
    assert talk.chat() is None
    echo.given.clear()
    ask(talk, "one")
    ask(talk, "two")
    talk.new()
    ask(talk, "three")
    roles = [[(one.role, one.text) for one in said] for said, _ in echo.given]
    assert roles[1] == [("user", "one"), ("assistant", "You said one"), ("user", "two")]
    assert roles[2] == [("user", "three")]


def test_a_reader_that_leaves_keeps_what_came(echo: Echo, store: Store, user: int) -> None:
    talk = kept(echo, store, user)
    frames = talk.ask("one", (), threading.Event())
    while not next(frames).text:
        pass
    frames.close()
    assert talk.number
    question, reply = store.messages.path(user, talk.number)
    assert (question.text, reply.text, reply.state) == ("one", "You", "stopped")


def test_chats_stand_in_the_store_and_draft(echo: Echo, store: Store, user: int) -> None:
    talk = kept(echo, store, user)
    assert ask(talk, "one") == "You said one"
    ask(talk, "two")
    assert talk.number
    assert texts(store, user, talk.number) == ["one", "You said one", "two", "You said two"]
    assert [message.model for message in store.messages.path(user, talk.number)] == ["", "echo", "", "echo"]
    assert [(chat.id, chat.title) for chat in store.chats.find(user)] == [(talk.number, "one")]
    drafting = [text for _, text in store.history.without_tokens(user, "key", 0, None, 9)]
    assert drafting == ["one", "You said one", "two", "You said two"]
    first = talk.number
    talk.new()
    ask(talk, "three")
    assert talk.number != first
    assert talk.earlier(2) == ["two", "three"]
    assert KeptChats(store, user).last() == talk.number


def test_nothing_is_set_in_a_chat_for_which_nothing_was_set(echo: Echo, store: Store, user: int) -> None:
    talk = kept(echo, store, user)
    ask(talk, "one")
    assert talk.number
    assert store.chats.settings(user, talk.number) is None
    talk.changes.system_prompt = "Be brief."
    ask(talk, "two")
    settings = store.chats.settings(user, talk.number)
    assert settings
    assert settings.system_prompt == "Be brief."


def test_a_chat_of_the_store_goes_on(echo: Echo, store: Store, user: int) -> None:
    number = store.chats.create(user)
    question = store.messages.add(user, number, NewMessage(None, "before"))
    store.messages.add(user, number, NewMessage(question, "an answer", "assistant"))
    talk = kept(echo, store, user, number)
    ask(talk, "then")
    assert talk.number == number
    assert texts(store, user, number) == ["before", "an answer", "then", "You said then"]
    assert [one.text for one in echo.given[0][0]] == ["before", "an answer", "then"]


def test_a_deleted_chat_does_not_come_back(echo: Echo, store: Store, user: int) -> None:
    talk = kept(echo, store, user)
    ask(talk, "one")
    assert talk.number
    store.chats.hide(user, talk.number)
    store.chats.delete_hidden([talk.number])
    with pytest.raises(CommandError, match="deleted meanwhile"):
        ask(talk, "two")
    assert store.chats.find(user) == []
    ask(talk, "three")
    assert talk.number
    assert texts(store, user, talk.number) == ["three", "You said three"]


def test_a_new_chat_begins_with_the_default_preset(echo: Echo, store: Store, user: int) -> None:
    preset = store.presets.create(user, "brief", ChatSettings("Be brief.", {"temperature": 0.3}))
    store.presets.set_default(user, preset)
    talk = kept(echo, store, user)
    ask(talk, "one")
    assert echo.given[0][0][0] == PromptMessage("system", "Be brief.")
    assert echo.given[0][1]["temperature"] == 0.3
    assert talk.number
    settings = store.chats.settings(user, talk.number)
    assert settings
    assert (settings.system_prompt, settings.preset_id) == ("Be brief.", preset)
