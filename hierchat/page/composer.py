"""Handlers of the composer beside sending: files, the count of tokens, messages that wait."""

from __future__ import annotations

import base64
import binascii
import re
from bisect import insort
from collections.abc import Iterator, Mapping
from typing import Any

from hierchat.chat.conversations import reply_settings
from hierchat.language import _, later, plural
from hierchat.page import chat_settings, status
from hierchat.page.chat_settings import InvalidSettings
from hierchat.page.event_data import PageEvent, fields, of_type, parsed, whole
from hierchat.page.guard import HandlerGroup, Remark
from hierchat.page.page_sessions import PASTED, Attached
from hierchat.page.views import Update
from hierchat.texts.attachments import MOST_BYTES, Unreadable, read, too_big, with_files

MOST_FILES = 20
FILES, LENGTH = "files", "length"
"""What a remark is about, until it is settled."""
_KEY = re.compile(r"[0-9a-f]{32}")
_LOST = (
    later("hierchat was started again, and no longer has {names}. Attach it again."),
    later("hierchat was started again, and no longer has {names}. Attach them again."),
)


class AttachingHandlers(HandlerGroup):
    """Handle files beside the message, the count of tokens, and messages that wait."""

    def wire(self) -> None:
        on, p = self._page.on, self._parts
        on("hc_attached", self.attach, outputs=[p.tray], trigger_mode="multiple")
        on("hc_kept", self.again, outputs=[p.tray])
        on("hc_detach", self.detach, outputs=[p.tray], trigger_mode="multiple")
        on("hc_inline", self.inline, [p.box], [p.tray, p.box])
        on("hc_next_edit", self.edit_next, [p.box], [p.tray, p.box])
        on("hc_next_cancel", self.cancel_next, outputs=[p.tray])
        counted = [p.box, p.bus, *p.settings.fields]
        on("hc_count", self.count, counted, [p.count, p.tray], trigger_mode="always_last")
        on("hc_attachment", self.show)

    def attach(self, event: PageEvent) -> Iterator[Update]:
        """Read a file that the page sends: {key, chat, name, size, and its bytes in base64, or `pasted` text}."""
        session, views, data = event.session, self._views, event.data
        key, name = data["key"], data["name"]
        files = session.attached.setdefault(data["chat"], [])
        if not _KEY.fullmatch(key) or len(files) >= MOST_FILES:
            most = status.error(_("A message takes up to {n} files. Remove one first.").format(n=MOST_FILES))
            yield views.tray(session) | views.tell(session, most, FILES)
            return
        new = Attached(key, name, step=data.get("step", 0))
        with session.lock:
            insort(files, new, key=lambda file: file.step)
        yield views.tray(session)
        try:
            said: Update = {}
            self._read(new, data)
            self._page.kept.keep(event.user, new)
            said = views.settled(session, FILES)
        except Unreadable as error:
            said = views.tell(session, status.error(str(error)), FILES)
        finally:
            if new.file is None and new in files:
                files.remove(new)
        yield views.tray(session) | said

    def detach(self, event: PageEvent) -> Update:
        """Take a file away: it is not sent after all."""
        self._page.kept.drop(event.user, event.session.take(event.text))
        return self._views.tray(event.session) | self._views.settled(event.session, FILES)

    def inline(self, event: PageEvent, box: str) -> Update:
        """Put pasted text into the box, where it would have been."""
        taken = event.session.take(event.text)
        self._page.kept.drop(event.user, taken)
        text = "".join(one.file.text for one in taken if one.file)
        return self._views.tray(event.session) | {self._parts.box: box + text}

    def again(self, event: PageEvent) -> Update:
        """Give a page that was loaded again the files that it had, each with its chat."""
        session, kept, lost = event.session, self._page.kept, []
        session.restored = True
        for one in parsed(event.text, list)[: 10 * MOST_FILES]:
            had = fields(of_type(one, dict))
            key, chat, pasted = had["key"], had["chat"], had.get("pasted")
            found = kept.find(event.user, key)
            if found is None and pasted is not None and _KEY.fullmatch(key):
                self._read(found := Attached(key, PASTED), {"pasted": pasted})
                kept.keep(event.user, found)
            if found is None:
                lost.append(had["name"])
            elif all(other.key != key for other in session.attached.setdefault(chat, [])):
                session.attached[chat].append(found)
        tray = self._views.tray(session)
        if not lost:
            return tray
        sentence = plural(*_LOST, len(lost), names=", ".join(lost))
        return tray | self._views.tell(session, status.notice(sentence), FILES)

    def show(self, event: PageEvent) -> Update:
        """Show the text of a file that was sent, or its name alone again."""
        if self._views.now(event.session) is not None:
            raise Remark(_(status.LATER), notice=True)
        event.session.shown ^= {event.id}
        return self._views.conversation(event.session)

    def edit_next(self, event: PageEvent, box: str) -> Update:
        """Take a message that waits back into the box, before what is there."""
        session = event.session
        one = self._service.in_progress.take_out(event.user, whole(event.text))
        if one is None:
            return self._views.tray(session)  # it has just gone out
        attached = session.attached.setdefault(session.conversation or 0, [])
        self._page.kept.back(event.user, attached, one.files)
        text = f"{one.text}\n\n{box}" if one.text and box.strip() else one.text or box
        return self._views.tray(session) | {self._parts.box: text}

    def cancel_next(self, event: PageEvent) -> Update:
        """Take a message that waits out of the queue."""
        self._service.in_progress.take_out(event.user, whole(event.text))
        return self._views.tray(event.session)

    def count(self, event: PageEvent, text: str, shown: str, *values: Any) -> Update:
        """Count how long the message has become, and how long it may be; beside a reply that is being written."""
        session, files = event.session, event.session.files
        uncounted = any(file.tokens is None for file in files)
        # As it will be sent: so the number is that of the error, if it is too long.
        counted = self._service.tokens(with_files(text, [one.file for one in files if one.file]))
        drawn = self._views.tray(session) if uncounted else {}  # counts them, too
        try:
            settings = chat_settings.taken(self._service, session, shown, values)
        except InvalidSettings:
            settings = self._service.chats.settings(event.user, session.conversation)
        room = self._service.message_room(reply_settings(settings.sampling), settings.system_prompt)
        if counted is None or room is None:
            return {self._parts.count: ""} | drawn
        if counted[0] <= room:
            drawn |= self._views.settled(session, LENGTH)
        return {self._parts.count: status.count_line(counted[0], room, counted[1])} | drawn

    def _read(self, new: Attached, sent: Mapping[str, Any]) -> None:
        """Read a file into its place. Raises Unreadable."""
        if (pasted := sent.get("pasted")) is not None:
            new.pasted, new.name = True, PASTED
            new.file = read(PASTED, pasted.encode("utf-8", "replace"))
        elif sent.get("size", 0) > MOST_BYTES:  # the page did not even read it
            raise too_big(new.name, sent["size"])
        else:
            try:
                raw = base64.b64decode(sent["data"], validate=True)
            except binascii.Error as error:
                said = _("{name} could not be read by the browser. Attach files, no folders.")
                raise Unreadable(said.format(name=new.name)) from error
            new.file = read(new.name, raw)
            new.name = new.file.name
        self._views.count(new)
