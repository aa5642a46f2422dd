"""Chats of the terminal: in memory alone, stored by the service, or a stored copy of what a server answers."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from threading import Event
from typing import Any, Protocol

from hierchat.chat.conversations import own_sampling, reply_settings
from hierchat.chat.frames import Frame
from hierchat.chat.in_progress import Question
from hierchat.chat.origins import SourceRun
from hierchat.chat.service import ChatService
from hierchat.cli.options import CommandError
from hierchat.config import GenerationSettings
from hierchat.runtime.prompt import PromptMessage
from hierchat.store import (
    Attachment,
    Chat,
    ChatMessage,
    ChatSettings,
    FinalState,
    NewMessage,
    NotFound,
    Store,
    title_of,
)
from hierchat.texts.attachments import with_files
from hierchat.texts.exporting import open_branch

DELETED = "This chat was deleted meanwhile. What you say next begins a new one."
_STATES: dict[str | None, FinalState] = {"stopped": "stopped", "error": "interrupted"}


class Model(Protocol):
    """The models that may answer: in this process, or of a server."""

    @property
    def name(self) -> str:
        """Return the model that answers now."""

    place: str
    """Where it answers, to stand behind its name; empty: in this process."""

    def names(self) -> list[str]:
        """Return those that can be chosen. Raises CommandError."""

    def about(self, name: str) -> str:
        """Say what to know before one of them is chosen; mostly nothing."""

    def choose(self, name: str) -> None:
        """Have another model answer, and return when it can. Raises CommandError, and the present one goes on."""


def require(name: str, names: Sequence[str]) -> None:
    """Raise CommandError where no model has that name."""
    if name not in names:
        raise CommandError(f"No model is called {name!r}. There are: {', '.join(names)}.")


Complete = Callable[[Sequence[PromptMessage], Mapping[str, Any], Event], Generator[Frame, None, None]]
"""The reply to messages under sampling settings, as frames, the last one in phase "done"."""


@dataclass(slots=True)
class SettingsOverrides:
    """Settings by flags and commands of this run, over those of the chat."""

    system_prompt: str | None = None
    sampling: dict[str, Any] = field(default_factory=dict)

    def over(self, settings: ChatSettings) -> ChatSettings:
        """Return the settings of a chat with these over them."""
        prompt = settings.system_prompt if self.system_prompt is None else self.system_prompt
        return replace(settings, system_prompt=prompt, sampling={**settings.sampling, **self.sampling})


class Talk(ABC):
    """Leads one chat after the other."""

    def __init__(self, model: Model, changes: SettingsOverrides, number: int | None = None) -> None:
        """`number`: of the chat in the store that goes on."""
        self.model = model
        self.changes = changes
        self.number = number

    @property
    def settings(self) -> ChatSettings:
        """Return the settings in force from the next reply on."""
        return self.changes.over(self._own_settings())

    def ask(self, text: str, files: Sequence[Attachment], stop: Event) -> Generator[Frame, None, None]:
        """Yield the frames of the reply. Raises what keeps it from beginning.

        The question is stored from the first frame on, if the chat is, until `take_back`."""
        try:
            yield from self._ask(text, files, stop)
        except NotFound as error:
            self.new()
            raise CommandError(DELETED) from error

    def take_back(self) -> None:  # noqa: B027
        """Take the stored question back, unless the reply has begun: then this changes nothing."""

    @abstractmethod
    def new(self) -> None:
        """Begin another chat, with the same changes."""

    def earlier(self, most: int) -> list[str]:
        """Return the questions of earlier chats: so many at most, the oldest first."""
        return []

    @abstractmethod
    def chat(self) -> Chat | None:
        """Return all messages; None where there are none."""

    def runs(self) -> list[SourceRun]:
        """Return where the words of the last reply came from; nothing where that is not known."""
        return []

    @abstractmethod
    def _own_settings(self) -> ChatSettings:
        """Return the settings of the chat, without the user's changes."""

    @abstractmethod
    def _ask(self, text: str, files: Sequence[Attachment], stop: Event) -> Generator[Frame, None, None]:
        """Yield the frames of the reply. Raises NotFound where the chat was deleted."""


class TalkInMemory(Talk):
    """A chat that is not stored: its messages are given to the model anew each time."""

    def __init__(
        self, model: Model, changes: SettingsOverrides, complete: Complete, own_settings: ChatSettings
    ) -> None:
        super().__init__(model, changes)
        self._complete = complete
        self._usual = own_settings
        self._chat = _empty()

    def _own_settings(self) -> ChatSettings:
        return self._usual

    def _ask(self, text: str, files: Sequence[Attachment], stop: Event) -> Generator[Frame, None, None]:
        settings, before = self.settings, open_branch(self._chat) if self._chat.messages else []
        question = _message("user", before[-1].name if before else None, text, attachments=tuple(files))
        messages = [PromptMessage("system", settings.system_prompt)] if settings.system_prompt else []
        messages += [
            PromptMessage(message.role, with_files(message.text, message.attachments))
            for message in (*before, question)
            if message.role != "system" or not messages
        ]
        last: Frame | None = None
        try:
            for last in self._complete(messages, settings.sampling, stop):
                yield last
        finally:
            if last is not None and last.phase != "waiting":
                self._add(question, last, settings)

    def _add(self, question: ChatMessage, last: Frame, settings: ChatSettings) -> None:
        state = "stopped" if last.phase != "done" else _STATES.get(last.finish, "complete")
        by = {"model": self.model.name}
        reply = _message("assistant", question.name, last.text, state=state, written_by=by)
        self._chat = replace(
            self._chat,
            title=self._chat.title or title_of(question.text),
            updated_at=reply.created_at,
            messages=[*self._chat.messages, question, reply],
            current=reply.name,
        )

    def new(self) -> None:
        self._chat, self.number = _empty(), None

    def chat(self) -> Chat | None:
        return self._chat if self._chat.messages else None


def _empty() -> Chat:
    now = time.time()
    return Chat(f"terminal:{uuid.uuid4().hex}", "", now, now, (), None)


def _message(role: Any, parent: str | None, text: str, **more: Any) -> ChatMessage:
    return ChatMessage(uuid.uuid4().hex, parent, role, text, time.time(), **more)


# Chats in the store: led by the chat service, or kept as they come from a server.
_CHATS = 20
"""In so many of the last chats the earlier messages are looked for."""


class WaitingQuestion:
    """Keeps the question that waits in the store: a crash leaves it in its chat, without a reply."""

    def __init__(self, store: Store, user: int) -> None:
        self._store = store
        self._user = user
        self._began: int | None = None
        self.id: int | None = None

    def hold(self, text: str, files: Sequence[Attachment], number: int | None) -> int:
        """Store a question, and return the chat's number, where that is None of a new one. Raises NotFound."""
        if number is None:
            number = self._began = self._store.chats.create(self._user)
        path = self._store.messages.path(self._user, number)
        below = path[-1].id if path else None
        message = NewMessage(below, text, files=files)
        self.id = self._store.messages.enqueue(self._user, number, message, at_end=True)
        return number

    def let_go(self) -> bool:
        """Remove the question, and tell whether a new chat went with it, since nothing was asked there."""
        held, began, self.id, self._began = self.id, self._began, None, None
        if held is not None:
            self._store.messages.dequeue(held)
        return began is not None and self._store.chats.discard(self._user, began)


class StoredTalk(Talk):
    """A chat that the service answers and stores, as it does for the page."""

    def __init__(
        self,
        model: Model,
        changes: SettingsOverrides,
        service: ChatService,
        store: Store,
        user: int,
        number: int | None = None,
    ) -> None:
        super().__init__(model, changes, number)
        self._service = service
        self._store = store
        self._user = user
        self._held = WaitingQuestion(store, user)
        self._reply: int | None = None

    def _own_settings(self) -> ChatSettings:
        return self._service.chats.settings(self._user, self.number)

    def _ask(self, text: str, files: Sequence[Attachment], stop: Event) -> Generator[Frame, None, None]:
        settings = self.settings
        number = self.number = self._held.hold(text, files, self.number)
        self._service.chats.keep_settings(self._user, number, settings)
        path = self._store.messages.path(self._user, number, most=1)
        below = path[-1].id if path else None
        question = Question(number, below, text, files, self._held.id)
        sampling = reply_settings(settings.sampling)
        with closing(self._service.send(self._user, question, sampling, stop)) as frames:
            for frame in frames:
                self._reply = frame.message_id
                yield frame

    def earlier(self, most: int) -> list[str]:
        return earlier(self._store, self._user, most)

    def take_back(self) -> None:
        if self._held.let_go():
            self.number = None

    def new(self) -> None:
        self.number = self._reply = None

    def chat(self) -> Chat | None:
        return None if self.number is None else self._store.transfer.export_chat(self._user, self.number)

    def runs(self) -> list[SourceRun]:
        return [] if self._reply is None else self._service.runs(self._user, self._reply)


class CopiedTalk(TalkInMemory):
    """A chat that another program answers, stored here as well: it drafts here, too, from the next reply on."""

    def __init__(
        self,
        model: Model,
        changes: SettingsOverrides,
        complete: Complete,
        store: Store,
        user: int,
        number: int | None = None,
    ) -> None:
        super().__init__(model, changes, complete, ChatSettings("", {}))
        self._store = store
        self._user = user
        self._held = WaitingQuestion(store, user)
        if number is not None:
            self.number, self._chat = number, store.transfer.export_chat(user, number)

    def _own_settings(self) -> ChatSettings:
        """Return what the chat sets; of a new one, what the default preset does. The rest is left to the server."""
        if self.number is not None:
            return self._store.chats.settings(self._user, self.number) or self._usual
        default = (preset.settings for preset in self._store.presets.all(self._user) if preset.is_default)
        return next(default, self._usual)

    def _ask(self, text: str, files: Sequence[Attachment], stop: Event) -> Generator[Frame, None, None]:
        self._held.hold(text, files, self.number)
        yield from super()._ask(text, files, stop)

    def _add(self, question: ChatMessage, last: Frame, settings: ChatSettings) -> None:
        """Add the question and its reply, and store the chat. Raises NotFound where it was deleted."""
        super()._add(question, last, settings)
        if self.number is not None:
            self._store.chats.get(self._user, self.number)
        self._store.transfer.import_chat(self._user, self._chat)
        self.number = self._store.transfer.id_of(self._user, self._chat.source)
        if settings != self._own_settings():
            sampling = own_sampling(GenerationSettings()) | dict(settings.sampling)
            self._store.chats.set_settings(self._user, self.number, replace(settings, sampling=sampling))
        self._held.let_go()

    def earlier(self, most: int) -> list[str]:
        return earlier(self._store, self._user, most)

    def take_back(self) -> None:
        self._held.let_go()


def last_chat(store: Store, user: int) -> int:
    """Return the chat with the last message. Raises CommandError where there is none."""
    chats = sorted(store.chats.find(user, limit=-1), key=lambda chat: chat.updated_at, reverse=True)
    for chat in chats:
        if store.messages.path(user, chat.id, most=1):  # a page may have just opened one
            return chat.id
    raise CommandError("There is no chat to go on with yet. Leave --continue out to begin one.")


def earlier(store: Store, user: int, most: int) -> list[str]:
    """Return the questions of the user's last chats: so many at most, the oldest first."""
    asked = [
        message
        for chat in store.chats.find(user, limit=_CHATS)
        for message in store.messages.path(user, chat.id)
        if message.role == "user" and message.text.strip()
    ]
    asked.sort(key=lambda message: message.created_at)
    return [message.text for message in asked[-most:]]
