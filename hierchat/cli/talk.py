"""A chat as the terminal leads it, and one whose messages lie in memory."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from threading import Event
from typing import Any, Protocol

from hierchat.chat.frames import Frame
from hierchat.chat.origins import Run
from hierchat.chat.service import ChatService
from hierchat.chat.settings import keep_settings, own_sampling, reply_settings, settings_of
from hierchat.cli.options import CommandError
from hierchat.config import GenerationSettings
from hierchat.runtime.prompt import Said
from hierchat.store import (
    Attachment,
    Chat,
    ChatMessage,
    ChatSettings,
    FinalState,
    NotFound,
    Store,
    title_of,
)
from hierchat.texts.attachments import with_files
from hierchat.texts.exporting import open_branch

DELETED = "This chat was deleted meanwhile. What you say next begins a new one."
_STATES: dict[str | None, FinalState] = {"stopped": "stopped", "error": "interrupted"}


class Model(Protocol):
    """What answers: in this process, or a server."""

    @property
    def name(self) -> str:
        """The model that answers now."""
        ...

    @property
    def place(self) -> str:
        """Where it answers, to stand behind its name; empty: in this process."""
        ...

    def names(self) -> list[str]:
        """Those that can be chosen. Raises CommandError."""
        ...

    def about(self, name: str) -> str:
        """What to know before one of them is chosen; mostly nothing."""
        ...

    def choose(self, name: str) -> None:
        """Returns when it can answer. Raises CommandError; another one may go on answering then."""
        ...


def require(name: str, names: Sequence[str]) -> None:
    """Raises CommandError where no model has that name."""
    if name not in names:
        raise CommandError(f"No model is called {name!r}. There are: {', '.join(names)}.")


Complete = Callable[[Sequence[Said], Mapping[str, Any], Event], Generator[Frame, None, None]]
"""The reply to messages under sampling settings, as frames, the last one in phase "done"."""
Earlier = Callable[[int], list[str]]
"""What the user asked in earlier chats: so many at most, the oldest first."""


class Keeps(Protocol):
    """Stores chats that another program answers."""

    def hold(self, text: str, files: Sequence[Attachment], number: int | None) -> None:
        """Store a question that waits for its reply; `number`: of its chat, if that is there. Raises NotFound."""
        ...

    def let_go(self) -> None:
        """The question waits no more."""
        ...

    def keep(self, chat: Chat, settings: ChatSettings, number: int | None) -> int:
        """Store a chat with what has come to it, and return its number, which is None before. Raises NotFound where it
        was deleted."""
        ...


@dataclass(slots=True)
class SettingsOverrides:
    """What the user set by flags and commands, over what the chat has."""

    system_prompt: str | None = None
    sampling: dict[str, Any] = field(default_factory=dict)

    def over(self, settings: ChatSettings) -> ChatSettings:
        """The settings with them."""
        prompt = settings.system_prompt if self.system_prompt is None else self.system_prompt
        return replace(settings, system_prompt=prompt, sampling={**settings.sampling, **self.sampling})


class Talk(Protocol):
    """One chat after the other."""

    changes: SettingsOverrides
    model: Model
    number: int | None
    """Of the chat in the store; None where it is not stored."""
    earlier: Earlier

    @property
    def settings(self) -> ChatSettings:
        """In force from the next reply on."""
        ...

    def ask(self, text: str, files: Sequence[Attachment], stop: Event) -> Generator[Frame, None, None]:
        """The frames of the reply. Raises what keeps it from beginning. The question is stored from the first frame on,
        if the chat is, until `take_back`."""
        ...

    def take_back(self) -> None:
        """The question was not asked, unless the reply has begun: then this changes nothing."""
        ...

    def new(self) -> None:
        """Begin another chat, with the same changes."""
        ...

    def chat(self) -> Chat | None:
        """All that was said; None where nothing was."""
        ...

    def runs(self) -> list[Run]:
        """Where the words of the last reply came from; empty where that is not known."""
        ...


class TalkInMemory:
    """A chat whose messages are given to the model anew each time. `kept` stores it, if it is to be stored."""

    def __init__(
        self,
        model: Model,
        complete: Complete,
        own_settings: Callable[[int | None], ChatSettings],
        kept: Keeps | None = None,
        chat: Chat | None = None,
        number: int | None = None,
    ) -> None:
        """`own_settings`: of a chat, by its number in the store; `chat` and `number`: what goes on."""
        self.model = model
        self.changes = SettingsOverrides()
        self.number = number
        self.earlier: Earlier = lambda most: []
        self._complete = complete
        self._own_settings = own_settings
        self._kept = kept
        self._chat = chat or _empty()

    @property
    def settings(self) -> ChatSettings:
        return self.changes.over(self._own_settings(self.number))

    def ask(self, text: str, files: Sequence[Attachment], stop: Event) -> Generator[Frame, None, None]:
        try:
            yield from self._ask(text, files, stop)
        except NotFound as error:
            self.new()
            raise CommandError(DELETED) from error

    def _ask(self, text: str, files: Sequence[Attachment], stop: Event) -> Generator[Frame, None, None]:
        settings, before = self.settings, open_branch(self._chat) if self._chat.messages else []
        question = _message("user", before[-1].name if before else None, text, attachments=tuple(files))
        said = [Said("system", settings.system_prompt)] if settings.system_prompt else []
        said += [
            Said(message.role, with_files(message.text, message.attachments))
            for message in (*before, question)
            if message.role != "system" or not said
        ]
        last: Frame | None = None
        if self._kept:
            self._kept.hold(text, files, self.number)
        try:
            for last in self._complete(said, settings.sampling, stop):
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
        if self._kept:
            self.number = self._kept.keep(self._chat, settings, self.number)
            self._kept.let_go()

    def take_back(self) -> None:
        if self._kept:
            self._kept.let_go()

    def new(self) -> None:
        self._chat, self.number = _empty(), None

    def chat(self) -> Chat | None:
        return self._chat if self._chat.messages else None

    def runs(self) -> list[Run]:
        return []


def _empty() -> Chat:
    now = time.time()
    return Chat(f"terminal:{uuid.uuid4().hex}", "", now, now, (), None)


def _message(role: Any, parent: str | None, text: str, **more: Any) -> ChatMessage:
    return ChatMessage(uuid.uuid4().hex, parent, role, text, time.time(), **more)


# Chats in the store: led by the chat service, or kept as they come from a server.


_CHATS = 20
"""In so many of the last chats the earlier messages are looked for."""


class WaitingQuestion:
    """The question that waits, as the store holds it: a crash leaves it in its chat, without a reply."""

    def __init__(self, store: Store, user: int) -> None:
        self._store = store
        self._user = user
        self._began: int | None = None
        self.id: int | None = None

    def hold(self, text: str, files: Sequence[Attachment], number: int | None) -> int:
        """From now on; the chat's number, where that is None of a new one. Raises NotFound."""
        if number is None:
            number = self._began = self._store.create_conversation(self._user)
        path = self._store.messages(self._user, number)
        below = path[-1].id if path else None
        self.id = self._store.hold_question(self._user, number, below, text, files, at_end=True)
        return number

    def let_go(self) -> bool:
        """It waits no more; whether a new chat went with it, since nothing was asked there."""
        held, began, self.id, self._began = self.id, self._began, None, None
        if held is not None:
            self._store.drop_question(held)
        return began is not None and self._store.discard_conversation(self._user, began)


class StoredTalk:
    """A chat that the service answers and stores, as it does for the page."""

    def __init__(self, service: ChatService, model: Model, user: int, number: int | None = None) -> None:
        """`number`: the chat that goes on."""
        self.model = model
        self.changes = SettingsOverrides()
        self.number = number
        self.earlier: Earlier = lambda most: []
        self._service = service
        self._store = service.store
        self._user = user
        self._held = WaitingQuestion(service.store, user)
        self._reply: int | None = None

    @property
    def settings(self) -> ChatSettings:
        return self.changes.over(settings_of(self._service, self._user, self.number))

    def ask(self, text: str, files: Sequence[Attachment], stop: Event) -> Generator[Frame, None, None]:
        try:
            yield from self._ask(text, files, stop)
        except NotFound as error:
            self.new()
            raise CommandError(DELETED) from error

    def _ask(self, text: str, files: Sequence[Attachment], stop: Event) -> Generator[Frame, None, None]:
        settings = self.settings
        number = self.number = self._held.hold(text, files, self.number)
        keep_settings(self._service, self._user, number, settings)
        path = self._store.messages(self._user, number, most=1)
        below = path[-1].id if path else None
        asked = (self._user, number, below, text, reply_settings(settings.sampling), stop, files)
        with closing(self._service.send(*asked, self._held.id)) as frames:
            for frame in frames:
                self._reply = frame.message_id
                yield frame

    def take_back(self) -> None:
        if self._held.let_go():
            self.number = None

    def new(self) -> None:
        self.number = self._reply = None

    def chat(self) -> Chat | None:
        return None if self.number is None else self._store.chat(self._user, self.number)

    def runs(self) -> list[Run]:
        return [] if self._reply is None else self._service.runs(self._user, self._reply)


class StoredCopy:
    """Stores chats that another program answers. What was said drafts here, too, from the next reply on."""

    def __init__(self, store: Store, user: int) -> None:
        self._store = store
        self._user = user
        self._held = WaitingQuestion(store, user)

    def hold(self, text: str, files: Sequence[Attachment], number: int | None) -> None:
        self._held.hold(text, files, number)

    def let_go(self) -> None:
        self._held.let_go()

    def settings(self, number: int | None) -> ChatSettings:
        """What the chat sets; of a new one, what the default preset does. The rest is left to the server."""
        if number is not None:
            return self._store.chat_settings(self._user, number) or ChatSettings("", {})
        default = (preset.settings for preset in self._store.presets(self._user) if preset.is_default)
        return next(default, ChatSettings("", {}))

    def keep(self, chat: Chat, settings: ChatSettings, number: int | None) -> int:
        """Store what has come to it; its number. Raises NotFound where it was deleted."""
        if number is not None:
            self._store.conversation(self._user, number)
        self._store.take_in(self._user, chat)
        found = self._store.number_of(self._user, chat.source)
        if settings != self.settings(found):
            sampling = own_sampling(GenerationSettings()) | dict(settings.sampling)
            self._store.set_chat_settings(self._user, found, replace(settings, sampling=sampling))
        return found


def last_chat(store: Store, user: int) -> int:
    """The chat in which something was said last. Raises CommandError where there is none."""
    chats = sorted(store.conversations(user, limit=-1), key=lambda chat: chat.updated_at, reverse=True)
    for chat in chats:
        if store.messages(user, chat.id, most=1):  # a page may have just opened one
            return chat.id
    raise CommandError("There is no chat to go on with yet. Leave --continue out to begin one.")


def earlier(store: Store, user: int, most: int) -> list[str]:
    """What the user asked in the last chats: so many at most, the oldest first. Nothing of deleted ones."""
    asked = [
        message
        for chat in store.conversations(user, limit=_CHATS)
        for message in store.messages(user, chat.id)
        if message.role == "user" and message.text.strip()
    ]
    asked.sort(key=lambda message: message.created_at)
    return [message.text for message in asked[-most:]]
