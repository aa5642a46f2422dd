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
    Project,
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

    def __init__(
        self,
        model: Model,
        changes: SettingsOverrides,
        kept: KeptChats | None = None,
        number: int | None = None,
    ) -> None:
        """`kept`: the user's chats, where this one is stored; `number`: of the chat there that goes on."""
        self.model = model
        self.changes = changes
        self.kept = kept
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

    def take_back(self) -> None:
        """Take the stored question back, unless the reply has begun: then this changes nothing."""
        if self.kept and self.kept.let_go():
            self.number = None

    @abstractmethod
    def new(self) -> None:
        """Begin another chat, with the same changes."""

    def earlier(self, most: int) -> list[str]:
        """Return the questions of earlier chats: so many at most, the oldest first."""
        return self.kept.earlier(most) if self.kept else []

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
        self,
        model: Model,
        changes: SettingsOverrides,
        complete: Complete,
        own_settings: ChatSettings,
        kept: KeptChats | None = None,
    ) -> None:
        super().__init__(model, changes, kept)
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


class KeptChats:
    """A user's chats in the store, and the question of this program that waits there: a crash leaves it in its chat,
    without a reply."""

    def __init__(self, store: Store, user: int, project: Project | None = None) -> None:
        """`project`: that new chats are in, and the last one is of."""
        self.store = store
        self.user = user
        self.project = project.id if project else None
        self._began: int | None = None
        self.held: int | None = None

    def hold(self, text: str, files: Sequence[Attachment], number: int | None) -> int:
        """Store a question, and return the chat's number, where that is None of a new one. Raises NotFound."""
        if number is None:
            number = self._began = self.store.chats.create(self.user, project_id=self.project)
        message = NewMessage(self.end_of(number), text, files=files)
        self.held = self.store.messages.enqueue(self.user, number, message, at_end=True)
        return number

    def let_go(self) -> bool:
        """Remove the question, and tell whether a new chat went with it, since nothing was asked there."""
        held, began, self.held, self._began = self.held, self._began, None, None
        if held is not None:
            self.store.messages.dequeue(held)
        return began is not None and self.store.chats.discard(self.user, began)

    def end_of(self, number: int) -> int | None:
        """Return the last message of a chat; None where it has none. Raises NotFound."""
        path = self.store.messages.path(self.user, number, most=1)
        return path[-1].id if path else None

    def last(self) -> int:
        """Return the chat with the last message. Raises CommandError where there is none."""
        chats = self.store.chats.find(self.user, limit=-1, project=self.project)
        for chat in sorted(chats, key=lambda chat: chat.updated_at, reverse=True):
            if self.end_of(chat.id) is not None:  # a page may have just opened one
                return chat.id
        raise CommandError("There is no chat to go on with yet. Leave --continue out to begin one.")

    def earlier(self, most: int) -> list[str]:
        """Return the questions of the user's last chats: so many at most, the oldest first."""
        asked = [
            message
            for chat in self.store.chats.find(self.user, limit=_CHATS)
            for message in self.store.messages.path(self.user, chat.id)
            if message.role == "user" and message.text.strip()
        ]
        asked.sort(key=lambda message: message.created_at)
        return [message.text for message in asked[-most:]]


class StoredTalk(Talk):
    """A chat that the service answers and stores, as it does for the page."""

    kept: KeptChats

    def __init__(
        self,
        model: Model,
        changes: SettingsOverrides,
        service: ChatService,
        kept: KeptChats,
        number: int | None,
    ) -> None:
        super().__init__(model, changes, kept, number)
        self._service = service
        self._reply: int | None = None

    def _own_settings(self) -> ChatSettings:
        return self._service.chats.settings(self.kept.user, self.number, self.kept.project)

    def _ask(self, text: str, files: Sequence[Attachment], stop: Event) -> Generator[Frame, None, None]:
        settings, user = self.settings, self.kept.user
        number = self.number = self.kept.hold(text, files, self.number)
        self._service.chats.keep_settings(user, number, settings)
        question = Question(number, self.kept.end_of(number), text, files, self.kept.held)
        sampling = reply_settings({**settings.sampling, "tools": False})  # nobody could allow a call here
        with closing(self._service.send(user, question, sampling, stop)) as frames:
            for frame in frames:
                self._reply = frame.message_id
                yield frame

    def new(self) -> None:
        self.number = self._reply = None

    def chat(self) -> Chat | None:
        kept = self.kept
        return None if self.number is None else kept.store.transfer.export_chat(kept.user, self.number)

    def runs(self) -> list[SourceRun]:
        return [] if self._reply is None else self._service.runs(self.kept.user, self._reply)


class CopiedTalk(TalkInMemory):
    """A chat that another program answers, stored here as well: it drafts here, too, from the next reply on."""

    kept: KeptChats

    def __init__(
        self,
        model: Model,
        changes: SettingsOverrides,
        complete: Complete,
        kept: KeptChats,
        number: int | None,
    ) -> None:
        super().__init__(model, changes, complete, ChatSettings("", {}), kept)
        if number is not None:
            self.number, self._chat = number, kept.store.transfer.export_chat(kept.user, number)

    def _own_settings(self) -> ChatSettings:
        """Return what the chat sets; of a new one, what the default preset does. The rest is left to the server."""
        store, user = self.kept.store, self.kept.user
        if self.number is not None:
            return store.chats.settings(user, self.number) or self._usual
        default = (preset.settings for preset in store.presets.all(user) if preset.is_default)
        return next(default, self._usual)

    def _ask(self, text: str, files: Sequence[Attachment], stop: Event) -> Generator[Frame, None, None]:
        self.kept.hold(text, files, self.number)
        yield from super()._ask(text, files, stop)

    def _add(self, question: ChatMessage, last: Frame, settings: ChatSettings) -> None:
        """Add the question and its reply, and store the chat. Raises NotFound where it was deleted."""
        super()._add(question, last, settings)
        store, user = self.kept.store, self.kept.user
        if self.number is not None:
            store.chats.get(user, self.number)
        store.transfer.import_chat(user, self._chat)
        self.number = store.transfer.id_of(user, self._chat.source)
        if settings != self._own_settings():
            sampling = own_sampling(GenerationSettings()) | dict(settings.sampling)
            store.chats.set_settings(user, self.number, replace(settings, sampling=sampling))
        self.kept.let_go()
