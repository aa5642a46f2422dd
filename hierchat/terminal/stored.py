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
        settings, fresh = self.settings, self.number is None
        number = self.number = self.number or self._store.create_conversation(self._user)
        try:
            keep_settings(self._service, self._user, number, settings)
            path = self._store.messages(self._user, number, most=1)
            below = path[-1].id if path else None
            made = reply_settings(settings.sampling)
            with closing(self._service.send(self._user, number, below, text, made, stop, files)) as frames:
                for frame in frames:
                    self._reply = frame.message_id
                    yield frame
        finally:
            if fresh and self._store.discard_conversation(self._user, number):  # nothing was asked
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
