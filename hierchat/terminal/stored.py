"""Chats in the store: led by the chat service, or kept as they come from a server."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import replace
from threading import Event
from typing import TYPE_CHECKING

from hierchat.chat.frames import Frame
from hierchat.chat.origins import Run
from hierchat.chat.settings import keep_settings, own_sampling, reply_settings, settings_of
from hierchat.config import GenerationSettings
from hierchat.store import Attachment, Chat, ChatSettings, NotFound, Store
from hierchat.terminal.errors import TerminalError
from hierchat.terminal.talk import DELETED, Changes, Earlier, Model

if TYPE_CHECKING:
    from hierchat.chat.service import ChatService

_CHATS = 20
"""In so many of the last chats the earlier messages are looked for."""


class Held:
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
        self.changes = Changes()
        self.number = number
        self.earlier: Earlier = lambda most: []
        self._service = service
        self._store = service.store
        self._user = user
        self._held = Held(service.store, user)
        self._reply: int | None = None

    @property
    def settings(self) -> ChatSettings:
        return self.changes.over(settings_of(self._service, self._user, self.number))

    def ask(self, text: str, files: Sequence[Attachment], stop: Event) -> Generator[Frame, None, None]:
        try:
            yield from self._ask(text, files, stop)
        except NotFound as error:
            self.new()
            raise TerminalError(DELETED) from error

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


class Kept:
    """Stores chats that another program answers. What was said drafts here, too, from the next reply on."""

    def __init__(self, store: Store, user: int) -> None:
        self._store = store
        self._user = user
        self._held = Held(store, user)

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
    """The chat in which something was said last. Raises TerminalError where there is none."""
    chats = sorted(store.conversations(user, limit=-1), key=lambda chat: chat.updated_at, reverse=True)
    for chat in chats:
        if store.messages(user, chat.id, most=1):  # a page may have just opened one
            return chat.id
    raise TerminalError("There is no chat to go on with yet. Leave --continue out to begin one.")


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
