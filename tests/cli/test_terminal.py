"""Talks of the terminal over a model of this process."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from hierchat.chat.frames import Frame
from hierchat.chat.service import ChatService
from hierchat.cli.options import CommandError
from hierchat.cli.screen import wait_for_model
from hierchat.cli.terminal import TerminalChat
from hierchat.runtime.model_slot import ModelSlot
from hierchat.store import Store
from hierchat.store.records import Project
from tests.testing.deleting import delete_for_good
from tests.testing.tiny_chat import catalogue, load

Begin = Callable[..., TerminalChat]


def ask(talk: TerminalChat, text: str) -> Frame:
    return list(talk.ask(text, (), threading.Event()))[-1]


@pytest.fixture
def begin(store: Store, user: int) -> Iterator[Begin]:
    """Begin a chat of short replies that this process writes; continue that of a number, or be in a project."""
    slot = ModelSlot(catalogue("tiny"), load=load)
    slot.start("tiny")
    wait_for_model(slot)
    with closing(ChatService(store, slot)) as service:

        def begin(**more: Any) -> TerminalChat:
            return TerminalChat(service, store, slot, user, sampling={"max_new_tokens": 8}, **more)

        yield begin


def test_a_chat_of_a_project_begins_as_the_project_does(begin: Begin, store: Store, user: int) -> None:
    project = Project(0, "House", "Be kind.")
    project = replace(project, id=store.projects.save(user, project))
    ask(begin(), "Elsewhere?")
    talk = begin(project=project.id)
    with pytest.raises(CommandError, match="There is no chat to go on with yet"):
        talk.take_up_last()
    assert talk.settings.system_prompt == "Be kind."
    ask(talk, "Hello?")
    assert store.chats.get(user, talk.number).project_id == project.id


def test_nothing_stays_of_what_was_not_asked(begin: Begin, store: Store, user: int) -> None:
    talk, stop = begin(), threading.Event()
    stop.set()
    list(talk.ask("hello", (), stop))
    assert (store.chats.find(user), talk.number) == ([], None)
    with pytest.raises(Exception, match="more than 2,048 tokens"):
        ask(talk, "word " * 2000)
    assert store.chats.find(user) == []


def test_a_deleted_chat_does_not_come_back(begin: Begin, store: Store, user: int) -> None:
    talk = begin()
    ask(talk, "one")
    delete_for_good(store, user, talk.number)
    with pytest.raises(CommandError, match="deleted meanwhile"):
        ask(talk, "two")
    assert store.chats.find(user) == []
    ask(talk, "three")
    assert store.messages.path(user, talk.number)[0].text == "three"


def test_without_history_nothing_is_kept_and_no_other_chat_drafts(
    begin: Begin, store: Store, user: int
) -> None:
    talk = begin()
    first = ask(talk, "hello")
    talk.number = None
    assert "history" in ask(talk, "hello").figures.shares
    before = store.chats.find(user)
    passing = begin(incognito=True)
    same = ask(passing, "hello")
    assert same.text == first.text
    assert "history" not in same.figures.shares
    assert store.chats.find(user) == before
    store.users.choose(user, drafts_from="none")
    assert set(ask(passing, "more").figures.shares) == {"target"}
    assert store.chats.end_incognito(user, passing.number)
