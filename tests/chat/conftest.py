from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from hierchat.chat.frames import CompareFrame, Frame
from hierchat.chat.in_progress import NewQuestion
from hierchat.chat.reply_stream import ReplyOptions
from hierchat.chat.service import ChatService
from hierchat.config import GenerationSettings
from hierchat.models.catalogue import Catalogue, EngineElsewhere, ModelEntry, OpenAI
from hierchat.runtime.model_slot import ModelSlot
from hierchat.runtime.prompt import PromptMessage
from hierchat.runtime.served_model import ServedModel
from hierchat.store import Store
from hierchat.store.records import Attachment, Message
from tests.engine.remote.drafter import TOKEN, Drafter
from tests.engine.remote.drafter import serving as drafting
from tests.testing.openai_server import Script, serving
from tests.testing.tiny_chat import END, ready_slot, settle, tokenizer


@pytest.fixture(autouse=True)
def _every_step_is_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hierchat.chat.reply_stream.FRAME_SECONDS", 0.0)


@pytest.fixture(autouse=True)
def _no_titles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hierchat.chat.titles.IDLE_SECONDS", float("inf"))


@dataclass
class Talk:
    """One user's chat: short calls for the tests."""

    service: ChatService
    user: int
    conversation: int
    stop: threading.Event = field(default_factory=threading.Event)

    @property
    def store(self) -> Store:
        return self.service.store

    @property
    def model(self) -> ServedModel:
        return self.service.slot.model

    @property
    def sequence(self) -> Any:
        return self.model.engine.sequence

    def sending(
        self, text: str, parent: int | None = None, files: Sequence[Attachment] = (), **settings: Any
    ) -> Any:
        """The generator of frames."""
        question = NewQuestion(self.conversation, parent, text, files)
        return self.service.send(self.user, question, self._settings(settings), self.stop)

    def send(
        self, text: str, parent: int | None = None, files: Sequence[Attachment] = (), **settings: Any
    ) -> Frame:
        """The last frame."""
        return list(self.sending(text, parent, files, **settings))[-1]

    def complete(self, said: Sequence[PromptMessage], stop: threading.Event, **settings: Any) -> Any:
        """The frames of a reply that is stored nowhere."""
        completions, options = (
            self.service.completions,
            ReplyOptions(self.user, self._settings(settings), stop),
        )
        return completions.answer(lambda served: completions.reply(served, said, options), stop)

    def again(self, question: int, seed_of: int | None = None, **settings: Any) -> Frame:
        asked = self._settings(settings)
        return list(self.service.regenerate(self.user, question, asked, self.stop, seed_of=seed_of))[-1]

    def resume(self, reply: int | None, more: int = 24) -> Frame:
        return list(self.service.resume(self.user, reply or 0, more, self.stop))[-1]

    def comparing(self, text: str, parent: int | None = None, **settings: Any) -> Iterator[CompareFrame]:
        question = NewQuestion(self.conversation, parent, text)
        return self.service.compare(self.user, question, self._settings(settings), self.stop)

    def tokens(self, reply: Frame) -> list[int]:
        """Those of a reply, as they are stored."""
        return self.store.replies.tokens(self.user, reply.message_id or 0)

    @property
    def held(self) -> str:
        """What the model has read and written last."""
        return str(tokenizer().decode(self.sequence.tokens))

    def messages(self) -> list[Message]:
        return self.store.messages.path(self.user, self.conversation)

    def other(self, user: str = "ann") -> Talk:
        """A new conversation of that user on the same service."""
        number = self.store.users.ensure(user)
        return Talk(self.service, number, self.store.chats.create(number))

    def _settings(self, changed: dict[str, Any]) -> GenerationSettings:
        """Sampled, and without an end by chance."""
        usual = {"max_new_tokens": 24, "temperature": 1.0, "seed": 7, "logit_bias": {END: -100.0}}
        return GenerationSettings(**{**usual, **changed})


def talk_on(store: Store, slot: Any) -> Talk:
    user = store.users.ensure("ann")
    return Talk(ChatService(store, slot), user, store.chats.create(user))


def slot_over(openai: OpenAI, **said: Any) -> ModelSlot:
    """`said`: of the model's entry, beside its engine."""
    entry = ModelEntry(name="far", engine=EngineElsewhere(openai=openai), **said)
    slot = ModelSlot(Catalogue(models={"far": entry}, default="far"))
    slot.start("far")
    return settle(slot)


@contextmanager
def talking(store: Store, script: Script, drafter: Drafter | None = None, **named: Any) -> Iterator[Talk]:
    """A talk of Ann's; `named`: what else is said of the server."""
    with ExitStack() as running:
        url = running.enter_context(serving(script))
        if drafter:
            named |= {"drafter": running.enter_context(drafting(drafter)), "drafter_token": TOKEN}
        slot = slot_over(OpenAI(url=url, **named))
        assert slot.status.phase == "ready", slot.status.message
        user = store.users.ensure("ann")
        service = ChatService(store, slot)
        running.callback(service.close)
        yield Talk(service, user, store.chats.create(user))


@pytest.fixture
def talk(store: Store) -> Talk:
    return talk_on(store, ready_slot())
