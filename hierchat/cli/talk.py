"""Hold a chat of the terminal: in memory alone, stored by the service, or as a stored copy of a server's."""

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
from hierchat.chat.service import ChatService
from hierchat.chat.statistics import SourceRun
from hierchat.cli.options import CommandError
from hierchat.config import GenerationSettings
from hierchat.runtime.prompt import PromptMessage
from hierchat.store import Chat, ChatMessage, NotFound, Store, title_of
from hierchat.store.records import Attachment, ChatSettings, FinalState, NewMessage, Project
from hierchat.texts.attachments import with_files
from hierchat.texts.exporting import open_branch

DELETED = "This chat was deleted meanwhile. What you say next begins a new one."
_STATES: dict[str | None, FinalState] = {"stopped": "stopped", "error": "interrupted"}


class Model(Protocol):
    """Lists and chooses the models that may answer: of this process, or of a server."""

    @property
    def name(self) -> str:
        """Return the name of the model that answers now."""

    place: str
    """Where it answers, to stand behind its name; empty: in this process."""

    def names(self) -> list[str]:
        """Return the names of the models that can be chosen. Raises CommandError."""

    def about(self, name: str) -> str:
        """Return a hint about a model to read before it is chosen; mostly empty."""

    def choose(self, name: str) -> None:
        """Switch to another model, and return when it can answer. Raises CommandError, and the present one stays."""


def require(name: str, names: Sequence[str]) -> None:
    """Raise CommandError if no model has that name."""
    if name not in names:
        raise CommandError(f"No model is called {name!r}. There are: {', '.join(names)}.")


Complete = Callable[[Sequence[PromptMessage], Mapping[str, Any], Event], Generator[Frame, None, None]]
"""The reply to messages under sampling settings, as frames, the last one in phase "done"."""


@dataclass(slots=True)
class SettingsOverrides:
    """Settings by flags and commands of this run, which override those of the chat."""

    system_prompt: str | None = None
    sampling: dict[str, Any] = field(default_factory=dict)

    def over(self, settings: ChatSettings) -> ChatSettings:
        """Return the chat's settings with these overrides applied."""
        prompt = settings.system_prompt if self.system_prompt is None else self.system_prompt
        return replace(settings, system_prompt=prompt, sampling={**settings.sampling, **self.sampling})


@dataclass(eq=False)
class Talk(ABC):
    """Leads the terminal's chat: asks, answers, and begins others."""

    model: Model
    changes: SettingsOverrides
    kept: "KeptChats | None" = field(default=None, kw_only=True)
    """The user's chats, where this one is stored."""
    number: int | None = field(default=None, kw_only=True)
    """The number, in the database, of the chat that goes on."""

    @property
    def settings(self) -> ChatSettings:
        """Return the settings in force from the next reply on."""
        return self.changes.over(self._own_settings())

    def ask(self, text: str, files: Sequence[Attachment], stop: Event) -> Generator[Frame, None, None]:
        """Ask a question and yield the frames of the reply. Raises what keeps it from beginning.

        The question is stored from the first frame on, if the chat is, until `take_back`."""
        try:
            yield from self._ask(text, files, stop)
        except NotFound as error:
            self.new()
            raise CommandError(DELETED) from error

    def take_back(self) -> None:
        """Remove the stored question, unless the reply has begun: then this changes nothing."""
        if self.kept and self.kept.let_go():
            self.number = None

    @abstractmethod
    def new(self) -> None:
        """Begin another chat with the same overrides of settings."""

    def earlier(self, most: int) -> list[str]:
        """Return the questions of earlier chats: the last `most`, oldest first."""
        return self.kept.earlier(most) if self.kept else []

    @abstractmethod
    def chat(self) -> Chat | None:
        """Return the chat with all its messages; None if it has none."""

    def runs(self) -> list[SourceRun]:
        """Return the runs of the last reply by source of draft; empty if that is not known."""
        return []

    @abstractmethod
    def _own_settings(self) -> ChatSettings:
        """Return the settings of the chat, without this run's overrides."""

    @abstractmethod
    def _ask(self, text: str, files: Sequence[Attachment], stop: Event) -> Generator[Frame, None, None]:
        """Ask a question and yield the frames of the reply. Raises NotFound if the chat was deleted."""


@dataclass(eq=False)
class TalkInMemory(Talk):
    """Chat that is not stored: its messages are given to the model anew each time."""

    _complete: Complete
    _usual: ChatSettings = field(default_factory=lambda: ChatSettings("", {}))

    def __post_init__(self) -> None:
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
    """Keeps a user's chats in the store, and the question that waits for a reply: a crash leaves it in its
    chat, without a reply."""

    def __init__(self, store: Store, user: int, project: Project | None = None) -> None:
        """`project`: new chats begin in it, and the last one is searched in it."""
        self.store = store
        self.user = user
        self.project = project.id if project else None
        self._began: int | None = None
        self.held: int | None = None

    def hold(self, text: str, files: Sequence[Attachment], number: int | None) -> int:
        """Store a question and return the chat's number; with `number` None, of a new chat. Raises NotFound."""
        if number is None:
            number = self._began = self.store.chats.create(self.user, project_id=self.project)
        message = NewMessage(self.end_of(number), text, files=files)
        self.held = self.store.messages.enqueue(self.user, number, message, at_end=True)
        return number

    def let_go(self) -> bool:
        """Remove the stored question, and tell whether its new chat went with it, since nothing was asked there."""
        held, began, self.held, self._began = self.held, self._began, None, None
        if held is not None:
            self.store.messages.dequeue(held)
        return began is not None and self.store.chats.discard(self.user, began)

    def end_of(self, number: int) -> int | None:
        """Return the id of a chat's last message; None if it has none. Raises NotFound."""
        path = self.store.messages.path(self.user, number, most=1)
        return path[-1].id if path else None

    def last(self) -> int:
        """Return the number of the chat with the latest message. Raises CommandError if there is none."""
        chats = self.store.chats.find(self.user, limit=-1, project=self.project)
        for chat in sorted(chats, key=lambda chat: chat.updated_at, reverse=True):
            if self.end_of(chat.id) is not None:  # a page may have just opened one
                return chat.id
        raise CommandError("There is no chat to go on with yet. Leave --continue out to begin one.")

    def earlier(self, most: int) -> list[str]:
        """Return the questions of the user's last chats: the last `most`, oldest first."""
        asked = [
            message
            for chat in self.store.chats.find(self.user, limit=_CHATS)
            for message in self.store.messages.path(self.user, chat.id)
            if message.role == "user" and message.text.strip()
        ]
        asked.sort(key=lambda message: message.created_at)
        return [message.text for message in asked[-most:]]


@dataclass(eq=False)
class StoredTalk(Talk):
    """Chat that ChatService answers and stores, as it does for the page."""

    _service: ChatService
    kept: KeptChats = field(kw_only=True)
    _reply: int | None = field(default=None, init=False)

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


@dataclass(eq=False)
class CopiedTalk(TalkInMemory):
    """Chat that a server answers, with a copy in the local store, so that it drafts later replies here."""

    kept: KeptChats = field(kw_only=True)

    def __post_init__(self) -> None:
        if self.number is None:
            super().__post_init__()
        else:
            self._chat = self.kept.store.transfer.export_chat(self.kept.user, self.number)

    def _own_settings(self) -> ChatSettings:
        """Return the chat's settings; of a new one, the default preset's. The rest is left to the server."""
        store, user = self.kept.store, self.kept.user
        if self.number is not None:
            return store.chats.settings(user, self.number) or self._usual
        default = (preset.settings for preset in store.presets.all(user) if preset.is_default)
        return next(default, self._usual)

    def _ask(self, text: str, files: Sequence[Attachment], stop: Event) -> Generator[Frame, None, None]:
        self.kept.hold(text, files, self.number)
        yield from super()._ask(text, files, stop)

    def _add(self, question: ChatMessage, last: Frame, settings: ChatSettings) -> None:
        """Add a question and its reply to the chat, and store it. Raises NotFound if the chat was deleted."""
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
