"""Handlers of the composer beside sending: files, the count of tokens, messages that wait."""

from __future__ import annotations

import base64
import binascii
import re
from bisect import insort
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import gradio as gr

from hierchat.chat.conversations import reply_settings
from hierchat.language import _, later, plural
from hierchat.page import chat_settings, status
from hierchat.page.chat_settings import InvalidSettings
from hierchat.page.components import Components
from hierchat.page.event_data import given, records, whole
from hierchat.page.page_sessions import Session
from hierchat.page.panels.panel import SessionOf
from hierchat.page.unsent import PASTED, Attached, KeptFiles
from hierchat.page.views import Update, Views
from hierchat.store import ChatSettings
from hierchat.texts.attachments import MOST_BYTES, Unreadable, read, too_big, with_files

if TYPE_CHECKING:
    from hierchat.chat.service import ChatService

MOST_FILES = 20
FILES, LENGTH = "files", "length"
"""What a remark is about, until it is settled."""
_KEY = re.compile(r"[0-9a-f]{32}")
_MOST_MANY = later("A message takes up to {n} files. Remove one first.")
_LOST = (
    later("hierchat was started again, and no longer has {names}. Attach it again."),
    later("hierchat was started again, and no longer has {names}. Attach them again."),
)


class AttachingHandlers:
    """Handle files beside the message, the count of tokens, and messages that wait."""

    def __init__(
        self, service: ChatService, parts: Components, views: Views, session_of: SessionOf, kept: KeptFiles
    ) -> None:
        self._service = service
        self._parts = parts
        self._views = views
        self._session_of = session_of
        self._kept = kept

    def attach(self, event: gr.EventData, request: gr.Request) -> Iterator[Update]:
        """Read a file that the page sends: {key, chat, name, size, and its bytes in base64, or `pasted` text}."""
        session, user = self._session_of(request)
        key, chat, name = str(event._data["key"]), int(event._data["chat"]), str(event._data["name"])
        files = session.attached.setdefault(chat, [])
        if not _KEY.fullmatch(key) or len(files) >= MOST_FILES:
            yield self._views.tray(session, user) | self._views.tell(
                session, user, status.error(_(_MOST_MANY).format(n=MOST_FILES)), FILES
            )
            return
        new = Attached(key, name, step=int(event._data.get("step", 0)))
        with session.lock:
            insort(files, new, key=lambda file: file.step)
        yield self._views.tray(session, user)
        try:
            said: Update = {}
            self._read(new, event._data)
            self._kept.keep(user, new)
            said = self._views.settled(session, user, FILES)
        except Unreadable as error:
            said = self._views.tell(session, user, status.error(str(error)), FILES)
        finally:
            if new.file is None and new in files:
                files.remove(new)
        yield self._views.tray(session, user) | said

    def detach(self, event: gr.EventData, request: gr.Request) -> Update:
        """Take a file away: it is not sent after all."""
        session, user = self._session_of(request)
        self._kept.drop(user, self._taken(session, str(event._data["text"])))
        return self._views.tray(session, user) | self._views.settled(session, user, FILES)

    def inline(self, box: str, event: gr.EventData, request: gr.Request) -> Update:
        """Put pasted text into the box, where it would have been."""
        session, user = self._session_of(request)
        taken = self._taken(session, str(event._data["text"]))
        self._kept.drop(user, taken)
        text = "".join(one.file.text for one in taken if one.file)
        return self._views.tray(session, user) | {self._parts.box: box + text}

    def again(self, event: gr.EventData, request: gr.Request) -> Update:
        """Give a page that was loaded again the files that it had, each with its chat, and pasted texts as they
        were."""
        session, user = self._session_of(request)
        session.restored = True
        lost = []
        for had in map(given, records(event._data["text"])[: 10 * MOST_FILES]):
            key, chat, pasted = had["key"], had["chat"], had.get("pasted")
            found = self._kept.find(user, key)
            if found is None and isinstance(pasted, str) and _KEY.fullmatch(key):
                self._read(found := Attached(key, PASTED), {"pasted": pasted})
                self._kept.keep(user, found)
            if found is None:
                lost.append(had["name"])
            elif all(one.key != key for one in session.attached.setdefault(chat, [])):
                session.attached[chat].append(found)
        if not lost:
            return self._views.tray(session, user)
        sentence = plural(*_LOST, len(lost), names=", ".join(lost))
        return self._views.tray(session, user) | self._views.tell(
            session, user, status.notice(sentence), FILES
        )

    def show(self, event: gr.EventData, request: gr.Request) -> Update:
        """Show the text of a file that was sent, or its name alone again."""
        session, user = self._session_of(request)
        if self._views.now(session, user) is not None:
            return self._views.tell(session, user, status.notice(_(status.LATER)))
        session.shown ^= {int(event._data["id"])}
        return self._views.conversation(session, user)

    def edit_next(self, box: str, event: gr.EventData, request: gr.Request) -> Update:
        """Take a message that waits back into the box, before what is there."""
        session, user = self._session_of(request)
        if (one := self._service.in_progress.take_out(user, whole(event._data["text"]))) is None:
            return self._views.tray(session, user)  # it has just gone out
        self._kept.back(user, session.attached.setdefault(session.conversation or 0, []), one.files)
        text = f"{one.text}\n\n{box}" if one.text and box.strip() else one.text or box
        return self._views.tray(session, user) | {self._parts.box: text}

    def cancel_next(self, event: gr.EventData, request: gr.Request) -> Update:
        """Take a message that waits out of the queue."""
        session, user = self._session_of(request)
        self._service.in_progress.take_out(user, whole(event._data["text"]))
        return self._views.tray(session, user)

    def count(self, text: str, request: gr.Request, *values: Any) -> Update:
        """Count how long the message has become, and how long it may be; beside a reply that is being written."""
        session, user = self._session_of(request)
        files = session.attached.get(session.conversation or 0, [])
        uncounted = any(file.tokens is None for file in files)
        # As it will be sent: so the number is that of the error, if it is too long.
        counted = self._service.tokens(with_files(text, [one.file for one in files if one.file]))
        drawn = self._views.tray(session, user) if uncounted else {}  # counts them, too
        settings = self._settings(session, user, values)
        room = self._service.message_room(reply_settings(settings.sampling), settings.system_prompt)
        if counted is None or room is None:
            return {self._parts.count: ""} | drawn
        if counted[0] <= room:
            drawn |= self._views.settled(session, user, LENGTH)
        return {self._parts.count: status.count_line(counted[0], room, counted[1])} | drawn

    def _settings(self, session: Session, user: int, values: tuple[Any, ...]) -> ChatSettings:
        """Return the settings of the open chat: as the panel shows them, if they are valid."""
        shown, *fields = values
        try:
            return chat_settings.taken(self._service, user, session.conversation, shown, fields)
        except InvalidSettings:
            return self._service.chats.settings(user, session.conversation)

    def _read(self, new: Attached, sent: Mapping[str, Any]) -> None:
        if isinstance(sent.get("pasted"), str):
            new.pasted, new.name = True, PASTED
            new.file = read(PASTED, sent["pasted"].encode("utf-8", "replace"))
        elif int(sent.get("size", 0)) > MOST_BYTES:  # the page did not even read it
            raise too_big(new.name, int(sent["size"]))
        else:
            try:
                raw = base64.b64decode(str(sent["data"]), validate=True)
            except (KeyError, binascii.Error) as error:
                raise Unreadable(
                    _("{name} could not be read by the browser. Attach files, no folders.").format(
                        name=new.name
                    )
                ) from error
            new.file = read(new.name, raw)
            new.name = new.file.name
        self._views.count(new)

    def _taken(self, session: Session, key: str) -> list[Attached]:
        taken = []
        for files in session.attached.values():
            taken += [file for file in files if file.key == key]
            files[:] = [file for file in files if file.key != key]
        return taken
