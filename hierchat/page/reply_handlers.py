"""Handle the composer: events that write a reply (send, again, edit, continue, compare), files, messages that wait.

A reply is written below the page (chat/in_progress.py), at most one in each conversation. A page follows those that it
asked for, and those in conversations that it shows (writer.py)."""

import base64
import binascii
import re
import threading
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from hierchat.chat.conversations import reply_settings
from hierchat.chat.in_progress import ReplyInProgress, Start, State
from hierchat.language import _, later, plural
from hierchat.page import chat_settings, status
from hierchat.page.event_data import PageEvent, fields, of_type, parsed, whole
from hierchat.page.guard import EACH, HandlerGroup, Remark
from hierchat.page.page_sessions import PASTED, Session, open_conversation, read_ahead
from hierchat.page.screen import PAGE, Attached
from hierchat.page.views import Update
from hierchat.runtime.template import PromptError
from hierchat.store import NotFound, StoreError
from hierchat.store.records import ChatSettings, Message
from hierchat.texts.attachments import MOST_BYTES, Unreadable, read, too_big, with_files

MOST_FILES = 20
_REMEMBERED = 1_000
"""Requests, of all pages, that a page which was loaded again may ask about."""
_KEY = re.compile(r"[0-9a-f]{32}")
_LOST = (
    later("hierchat was started again, and no longer has {names}. Attach it again."),
    later("hierchat was started again, and no longer has {names}. Attach them again."),
)
_STAYS = later(
    "A reply is still being written in this chat. Your message stays in the box: send it when the reply has ended, "
    "or stop the reply first."
)
_GONE = later("This message is not in the open chat any more.")


class ReplyHandlers(HandlerGroup):
    """Handles the events that write a reply."""

    def wire(self) -> None:
        self._taken = deque[tuple[int, int]](maxlen=_REMEMBERED)
        """User and number of each request that was not refused."""
        self._ask_on("hc_send", self.send, keeps=True)
        self._ask_on("hc_edit", self.edit, keeps=True)
        self._ask_on("hc_example", self.example)
        self._ask_on("hc_again", self.again)
        self._ask_on("hc_continue", self.resume)
        self._page.on("hc_asked", self.asked, outputs=[], **EACH)
        self._page.on("hc_tool", self.answer_call, outputs=[], apart=True)

    def _ask_on(self, trigger: str, handler: Callable[[PageEvent], None], *, keeps: bool = False) -> None:
        """Connect a handler that asks for a reply. The page waits until that was taken or refused (buttons.js); what
        is refused is in the box then, if the page `keeps` it."""

        def acknowledged(event: PageEvent) -> None:
            session, answer = event.session, "refused"
            try:
                handler(event)
                answer = "taken"
                self._taken.append((event.user, event.step))
            except NotFound:
                self._views.missing(session, kept=keeps)
            finally:
                session.answered = f"{event.step} {answer}"

        self._page.on(trigger, acknowledged, [self._parts.controls], **EACH)

    def asked(self, event: PageEvent) -> None:
        """Answer a request once more, for a page that was loaded again before it knew the answer."""
        answer = "taken" if (event.user, event.step) in self._taken else "refused"
        event.session.answered = f"{event.step} {answer}"

    def send(self, event: PageEvent) -> None:
        """Send the text of the box to the open conversation, or queue it behind its reply in progress."""
        session, user, text = event.session, event.user, event.text
        attached = session.screen.files
        files = [one.file for one in attached if one.file]
        if not text.strip() and not attached:
            return
        if len(files) < len(attached):
            raise Remark(_("A file is still being read. Send the message when that is done."), notice=True)
        settings = chat_settings.taken(self._service, event)
        sampling = reply_settings(settings.sampling)
        try:
            told = self._service.chats.system_prompt(user, settings)
            self._service.require_room(with_files(text, files), sampling, told)
        except PromptError as error:  # before anything is stored, and without waiting for a turn
            raise Remark(str(error)) from error
        reply = self._question(session, self._below(session), text, event.controls.compare, files)
        self._ask(session, reply, settings, attached, waits=True)

    def example(self, event: PageEvent) -> None:
        session = event.session
        settings = chat_settings.taken(self._service, event)
        if self._views.now(session) is not None:
            return
        reply = self._question(session, self._below(session), event.text, event.controls.compare)
        self._ask(session, reply, settings)

    def edit(self, event: PageEvent) -> None:
        """Send a new version of a question: a sibling of the old one."""
        session = event.session
        self._refuse_while_writing(session, _STAYS)
        settings = chat_settings.taken(self._service, event)
        edited = self._on_path(session, event.id)
        if edited.role != "user":
            raise Remark(_(_GONE))
        files = [one for one in self._service.chats.attachments(event.user, edited.id) if not one.number]
        reply = self._question(session, edited.parent_id, event.text, event.controls.compare, files)
        self._ask(session, reply, settings)

    def again(self, event: PageEvent) -> None:
        """Write another reply to the same question; with the seed of the reply that the event names, if any."""
        session, user = event.session, event.user
        settings = chat_settings.taken(self._service, event)
        question = self._on_path(session, event.id)
        reply = self._in_progress(session, question.conversation_id, below=question.id)
        seed_of = whole(event.data.get("text") or 0) or None

        def start(stop: threading.Event) -> Generator[State, None, None]:
            chat_settings.keep(self._service, session, reply.conversation_id, settings)
            made = reply_settings(settings.sampling)
            return self._service.regenerate(user, question.id, made, stop, seed_of=seed_of)

        self._go_on(session, reply, start)

    def resume(self, event: PageEvent) -> None:
        """Continue the reply at the end of the open conversation, which was cut."""
        session = event.session
        more = int(chat_settings.taken(self._service, event).sampling["max_new_tokens"])
        path = self._path(session)
        if not path or path[-1].id != event.id:
            raise Remark(_(_GONE))
        cut = path[-1]
        reply = self._in_progress(session, cut.conversation_id, below=cut.parent_id, resumed=cut.text)
        self._go_on(session, reply, lambda stop: self._service.resume(reply.user_id, cut.id, more, stop))

    def answer_call(self, event: PageEvent) -> None:
        """Pass on the user's answer to a tool's call that waits: once, chat or no."""
        self._service.tools.answer(event.user, event.id, event.text)

    def _path(self, session: Session) -> list[Message]:
        if session.screen.conversation is None:
            return []
        return self._service.chats.messages(session.user, session.screen.conversation)

    def _on_path(self, session: Session, message: int) -> Message:
        """Return a message of the open conversation. Raises Remark if it is not there any more."""
        found = next((one for one in self._path(session) if one.id == message), None)
        if found is None:
            raise Remark(_(_GONE))
        return found

    def _below(self, session: Session) -> int | None:
        """Return the id of the open conversation's last message; None if there is none."""
        if session.screen.conversation is None:
            return None
        return self._service.chats.last_message(session.user, session.screen.conversation)

    def _in_progress(self, session: Session, conversation: int, **more: Any) -> ReplyInProgress:
        on_screen = partial(self._page.sessions.show, session.user, conversation)
        return ReplyInProgress(session.user, conversation, on_screen=on_screen, **more)

    def _question(
        self, session: Session, below: int | None, text: str, compare: bool, files: Sequence[Any] = ()
    ) -> ReplyInProgress:
        """Make a question below a message. A new conversation is stored from now on."""
        conversation = open_conversation(self._service, session)
        return self._in_progress(session, conversation, text=text, files=files, below=below, compared=compare)

    def _ask(
        self,
        session: Session,
        reply: ReplyInProgress,
        settings: ChatSettings,
        attached: Sequence[Attached] = (),
        *,
        waits: bool = False,
    ) -> None:
        """Send a question and its files. `waits`: if a reply is being written in this chat, the question waits for its
        end; otherwise Remark is raised then. Also raises what the store raises. After an error, nothing was sent."""

        def start(stop: threading.Event) -> Generator[State, None, None]:
            if not reply.waited:  # else they were kept when it was sent, and may have been changed since
                chat_settings.keep(self._service, session, reply.conversation_id, settings)
            made = reply_settings(settings.sampling)
            if reply.compared:
                return self._service.compare(reply.user_id, reply.question, made, stop, session.screen.pair)
            return self._service.send(reply.user_id, reply.question, made, stop)

        try:
            begun = self._service.in_progress.begin(reply, start, waits=waits)
        except NotFound:
            raise
        except StoreError:
            self._discard(session, reply.conversation_id)
            raise
        if not begun and not waits:
            raise Remark(_(_STAYS), notice=True)
        session.release({one.key for one in attached})
        self._page.kept.drop(session.user, attached)
        if begun:
            self._begun(session, reply)

    def _discard(self, session: Session, conversation: int) -> None:
        """Remove a conversation that was begun for a question which could not be stored."""
        with suppress(StoreError):
            if self._service.chats.discard(session.user, conversation):
                session.gone_from(conversation)
                session.settings_of = None  # what the panel shows is for the next one

    def _go_on(self, session: Session, reply: ReplyInProgress, start: Start) -> None:
        """Begin a reply to what is stored already."""
        if not self._service.in_progress.begin(reply, start):
            raise Remark(_("A reply is still being written in this chat. Stop it first."), notice=True)
        self._begun(session, reply)

    def _begun(self, session: Session, reply: ReplyInProgress) -> None:
        # A long list would slow each frame of the reply
        session.show(listed=PAGE, remark="", note="", until=None)
        session.follow(reply)


class AttachingHandlers(HandlerGroup):
    """Handles files beside the message, and messages that wait."""

    def wire(self) -> None:
        on, p = self._page.on, self._parts
        on("hc_attached", self.attach, outputs=[], slow=True, **EACH)
        on("hc_kept", self.again, outputs=[])
        on("hc_detach", self.detach, outputs=[], **EACH)
        on("hc_inline", self.inline, [p.box], [p.box])
        on("hc_next_edit", self.edit_next, [p.box], [p.box])
        on("hc_next_cancel", self.cancel_next, outputs=[], **EACH)
        on("hc_attachment", self.show, **EACH)

    def attach(self, event: PageEvent) -> None:
        """Read a file that the page sends: {key, chat, name, size, and its bytes in base64, or `pasted` text}."""
        session, data = event.session, event.data
        new = Attached(data["key"], data["name"], data["chat"], step=event.step)
        there = [one for one in session.screen.attached if one.chat == new.chat]
        if not _KEY.fullmatch(new.key) or len(there) >= MOST_FILES:
            raise Remark(_("A message takes up to {n} files. Remove one first.").format(n=MOST_FILES))
        session.attach(new)
        event.draw()
        try:
            new = self._read(new, data)
        except BaseException as error:
            session.release({new.key})
            if isinstance(error, Unreadable):
                raise Remark(str(error)) from error
            raise
        if session.renew(new):  # else it was removed meanwhile
            self._page.kept.keep(event.user, new)
            read_ahead(self._service, session)
        event.draw()

    def detach(self, event: PageEvent) -> None:
        self._page.kept.drop(event.user, event.session.release({event.text}))

    def inline(self, event: PageEvent, box: str) -> Update:
        """Move attached pasted text into the box, where it would have been."""
        taken = event.session.release({event.text})
        self._page.kept.drop(event.user, taken)
        text = "".join(one.file.text for one in taken if one.file)
        return {self._parts.box: box + text}

    def again(self, event: PageEvent) -> None:
        """Restore the files of a page that was loaded again, each in its chat."""
        session, kept, lost = event.session, self._page.kept, []
        session.show(restored=True)
        for one in parsed(event.text, list)[: 10 * MOST_FILES]:
            had = fields(of_type(one, dict))
            key, chat, pasted = had["key"], had["chat"], had.get("pasted")
            found = kept.find(event.user, key)
            if found is None and pasted is not None and _KEY.fullmatch(key):
                found = self._read(Attached(key, PASTED), {"pasted": pasted})
                kept.keep(event.user, found)
            if found is None:
                lost.append(had["name"])
            elif all(other.key != key for other in session.screen.attached):
                session.attach(replace(found, chat=chat))
        if lost:
            sentence = plural(*_LOST, len(lost), names=", ".join(lost))
            self._views.tell(session, status.notice(sentence))

    def show(self, event: PageEvent) -> None:
        """Switch a sent file between its text and its name alone."""
        self._refuse_while_writing(event.session)
        event.session.show(shown=event.session.screen.shown ^ {event.id})

    def edit_next(self, event: PageEvent, box: str) -> Update:
        """Move a waiting message back into the box, before the text there."""
        session = event.session
        one = self._service.in_progress.take_out(event.user, whole(event.text))
        if one is None:
            return {}  # it has just gone out
        again = self._page.kept.back(event.user, session.screen.conversation or 0, one.files)
        session.show(attached=(*again, *session.screen.attached))
        text = f"{one.text}\n\n{box}" if one.text and box.strip() else one.text or box
        return {self._parts.box: text}

    def cancel_next(self, event: PageEvent) -> None:
        self._service.in_progress.take_out(event.user, whole(event.text))

    def _read(self, new: Attached, sent: Mapping[str, Any]) -> Attached:
        """Return `new` with the uploaded file or pasted text, read. Raises Unreadable."""
        if (pasted := sent.get("pasted")) is not None:
            file = read(PASTED, pasted.encode("utf-8", "replace"))
            new = replace(new, pasted=True)
        elif sent.get("size", 0) > MOST_BYTES:  # the page did not even read it
            raise too_big(new.name, sent["size"])
        else:
            try:
                raw = base64.b64decode(sent["data"], validate=True)
            except binascii.Error as error:
                said = _("{name} could not be read by the browser. Attach files, no folders.")
                raise Unreadable(said.format(name=new.name)) from error
            file = read(new.name, raw)
        return replace(new, name=file.name, file=file)
