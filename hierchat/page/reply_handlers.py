"""Handle the composer: events that write a reply (send, again, edit, continue, compare), files, messages that wait.

A reply is written below the page (chat/in_progress.py), at most one in each conversation. A page follows those that it
asked for, and those in conversations that it shows; the screen shows that of the conversation on it."""

import base64
import binascii
import re
import threading
import time
from bisect import insort
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import gradio as gr

from hierchat.chat.comparison import CompareFrame
from hierchat.chat.conversations import reply_settings
from hierchat.chat.frames import Arm, Frame
from hierchat.chat.in_progress import ReplyInProgress, Start, State, places_ahead
from hierchat.engine.scheduler import MOST_WAITING
from hierchat.language import _, later, plural
from hierchat.page import chat_settings, conversation, status
from hierchat.page.chat_settings import InvalidSettings
from hierchat.page.conversation import GrowingReply
from hierchat.page.event_data import PageEvent, fields, of_type, parsed, whole
from hierchat.page.guard import HandlerGroup, Remark
from hierchat.page.page_sessions import PAGE, PASTED, Attached, Session, open_conversation, read_ahead
from hierchat.page.panels import comparisons_panel
from hierchat.page.views import Update, deleted
from hierchat.runtime.model_slot import PLACES
from hierchat.runtime.template import PromptError
from hierchat.store import NotFound
from hierchat.store.records import ChatSettings, Message
from hierchat.texts.attachments import MOST_BYTES, Unreadable, read, too_big, with_files

MOST_FILES = 20
FILES, LENGTH = "files", "length"
"""What a remark is about, until it is settled."""
QUIET_SECONDS = 1.0
"""How often a page hears of a reply, also where it has nothing to show: each time takes a browser 30 ms."""
FIGURES_SECONDS = 0.5
"""How often the figures of a growing reply are drawn: each part of an update takes a browser some ms."""
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
        p, shown = self._parts, [self._parts.controls]
        for trigger in (p.box.submit, p.send.click):
            self._ask_on(trigger, self.send, [p.box, *shown])
        self._ask_on("hc_example", self.example, shown)
        self._ask_on("hc_edit", self.edit, shown)
        self._ask_on("hc_again", self.again, shown)
        self._ask_on("hc_continue", self.resume, shown)
        self._ask_on("hc_summarise", self.summarise, [])
        self._page.on("hc_tool", self.answer_call, outputs=[p.live], queue=False)
        # Those that another page asked for are followed apart, so that they keep none from being asked.
        self._ask_on("hc_follow", self.follow, [], queue="follow")

    def _ask_on(self, trigger: Any, handler: Any, inputs: Sequence[Any], queue: str = "engine") -> None:
        """Connect a handler that follows a reply. Replies wait below the page, for the engine, so all may run
        here; "multiple": a message may wait for the reply in another chat."""
        p, most = self._parts, MOST_WAITING + PLACES

        def acknowledged(event: PageEvent, *values: Any) -> Iterator[Update]:
            """Run the handler; its first update says that the request was taken or refused, for which the page
            waits before it goes elsewhere (buttons.js)."""
            updates = handler(event, *values)
            try:
                first: Update = next(updates, {})
            finally:
                event.session.asked += 1
            yield first | self._views.tray(event.session)
            yield from updates

        asks = handler if queue == "follow" else acknowledged
        sent = self._page.on(
            trigger, asks, inputs, trigger_mode="multiple", concurrency_id=queue, concurrency_limit=most
        )
        settled = [p.box, p.live, p.tray, p.send, p.stop]
        self._page.on(sent.then, self.settle, [p.box], settled, trigger_mode="always_last")

    def send(self, event: PageEvent, text: str) -> Iterator[Update]:
        """Send the text of the box to the open conversation, or queue it behind its reply in progress."""
        session, user = event.session, event.user
        attached = list(session.files)
        files = [one.file for one in attached if one.file]
        if not text.strip() and not attached:
            return
        if len(files) < len(attached):
            raise Remark(
                _("A file is still being read. Send the message when that is done."), FILES, notice=True
            )
        settings = chat_settings.taken(self._service, event)
        sampling = reply_settings(settings.sampling)
        try:
            told = self._service.chats.system_prompt(user, settings)
            self._service.require_room(with_files(text, files), sampling, told)
        except PromptError as error:  # before anything is stored, and without waiting for a turn
            raise Remark(str(error), LENGTH) from error
        reply = self._views.now(session)
        if reply and reply in session.following and reply.text == text and not files:
            return  # Enter pressed twice is no second message
        try:
            below = self._below(session)
        except NotFound:
            yield self._views.missing(session, kept=True)
            return
        reply = self._question(session, below, text, event.controls.compare, files)
        session.release(attached)
        self._page.kept.drop(user, attached)
        yield from self._ask(session, reply, settings, waits=True)

    def example(self, event: PageEvent) -> Iterator[Update]:
        session = event.session
        settings = chat_settings.taken(self._service, event)
        if self._views.now(session) is None:
            reply = self._question(session, self._below(session), event.text, event.controls.compare)
            yield from self._ask(session, reply, settings)

    def edit(self, event: PageEvent) -> Iterator[Update]:
        """Send a new version of a question: a sibling of the old one."""
        session = event.session
        session.unsent = event.text  # not lost, whatever comes
        if self._views.now(session) is not None:
            raise Remark(_(_STAYS), notice=True)
        settings = chat_settings.taken(self._service, event)
        edited = self._on_path(session, event.id)
        if edited.role != "user":
            raise Remark(_(_GONE))
        session.unsent = ""
        files = [one for one in self._service.chats.attachments(event.user, edited.id) if not one.number]
        reply = self._question(session, edited.parent_id, event.text, event.controls.compare, files)
        yield from self._ask(session, reply, settings)

    def again(self, event: PageEvent) -> Iterator[Update]:
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

        yield from self._go_on(session, reply, start)

    def resume(self, event: PageEvent) -> Iterator[Update]:
        """Continue the reply at the end of the open conversation, which was cut."""
        session = event.session
        more = int(chat_settings.taken(self._service, event).sampling["max_new_tokens"])
        path = self._path(session)
        if not path or path[-1].id != event.id:
            raise Remark(_(_GONE))
        cut = path[-1]
        reply = self._in_progress(session, cut.conversation_id, below=cut.parent_id, resumed=cut.text)
        yield from self._go_on(
            session, reply, lambda stop: self._service.resume(reply.user_id, cut.id, more, stop)
        )

    def summarise(self, event: PageEvent) -> Iterator[Update]:
        session, chat = event.session, event.session.conversation
        if chat is None:
            raise Remark(_(_GONE))
        reply = self._in_progress(session, chat, below=self._below(session))
        session.context.pop(chat, None)  # how full it is then, the next reply tells
        yield from self._go_on(session, reply, lambda stop: self._service.summarise(session.user, chat, stop))

    def follow(self, event: PageEvent) -> Iterator[Update]:
        """Follow the open chat's reply in progress, which another page asked for, or this one before a reload."""
        if (reply := self._views.now(event.session)) is not None:
            yield from self._follow(event.session, reply)

    def answer_call(self, event: PageEvent) -> None:
        """Pass on the user's answer to a tool's call that waits: once, chat or no."""
        self._service.tools.answer(event.user, event.id, event.text)

    def settle(self, event: PageEvent, box: str) -> Update:
        """Put text that was sent but not asked back before that of the box, and redraw the line above it: of
        two replies that end at once, the page may have heard of the earlier one last."""
        session, views = event.session, self._views
        update = views.live(session) | views.busy(session) | views.tray(session)
        text, session.unsent = session.unsent, ""
        if text:
            there = box.removeprefix(text).strip()  # the box may not be emptied yet
            update[self._parts.box] = f"{text}\n\n{there}" if there else text
        return update

    def _path(self, session: Session) -> list[Message]:
        if session.conversation is None:
            return []
        return self._service.chats.messages(session.user, session.conversation)

    def _on_path(self, session: Session, message: int) -> Message:
        """Return a message of the open conversation. Raises Remark if it is not there any more."""
        found = next((one for one in self._path(session) if one.id == message), None)
        if found is None:
            raise Remark(_(_GONE))
        return found

    def _below(self, session: Session) -> int | None:
        """Return the id of the open conversation's last message; None if there is none."""
        if session.conversation is None:
            return None
        return self._service.chats.last_message(session.user, session.conversation)

    def _in_progress(self, session: Session, conversation: int, **more: Any) -> ReplyInProgress:
        on_screen = partial(self._page.sessions.show, session.user, conversation)
        return ReplyInProgress(session.user, conversation, on_screen=on_screen, **more)

    def _question(
        self, session: Session, below: int | None, text: str, compare: bool, files: Sequence[Any] = ()
    ) -> ReplyInProgress:
        """Make a question below a message. A new conversation is stored from now on; it goes if nothing is asked."""
        conversation = open_conversation(self._service, session)
        return self._in_progress(session, conversation, text=text, files=files, below=below, compared=compare)

    def _ask(
        self, session: Session, reply: ReplyInProgress, settings: ChatSettings, *, waits: bool = False
    ) -> Iterator[Update]:
        """Send a question and draw its reply. `waits`: behind one in progress; else it then goes back into the box."""

        def start(stop: threading.Event) -> Generator[State, None, None]:
            if not reply.waited:  # else they were kept when it was sent, and may have been changed since
                chat_settings.keep(self._service, session, reply.conversation_id, settings)
            made = reply_settings(settings.sampling)
            if reply.compared:
                return self._service.compare(reply.user_id, reply.question, made, stop, session.pair)
            return self._service.send(reply.user_id, reply.question, made, stop)

        take_back = partial(self._take_back, session)
        if self._service.in_progress.begin(reply, start, take_back, waits=waits):
            yield from self._begun(session, reply)
        elif waits:
            session.taken += 1
            yield self._views.tray(session)
        else:
            take_back(reply)
            yield self._views.tray(session) | self._views.tell(session, status.notice(_(_STAYS)))

    def _go_on(self, session: Session, reply: ReplyInProgress, start: Start) -> Iterator[Update]:
        """Begin a reply to what is stored already, and draw it."""
        if not self._service.in_progress.begin(reply, start):
            raise Remark(_("A reply is still being written in this chat. Stop it first."), notice=True)
        yield from self._begun(session, reply)

    def _begun(self, session: Session, reply: ReplyInProgress) -> Iterator[Update]:
        session.taken += 1
        session.listed = PAGE  # a long list would slow each frame of the reply
        session.remark = session.note = ""
        session.until = None
        yield from self._follow(session, reply)

    def _take_back(self, session: Session, reply: ReplyInProgress) -> bool:
        """Put a question back into the box, with its files, while the page shows that chat; return whether it does."""
        if session.gone or session.conversation != reply.conversation_id:
            return False
        session.unsent = "\n\n".join(filter(None, [session.unsent, reply.text]))
        attached = session.attached.setdefault(reply.conversation_id, [])
        self._page.kept.back(reply.user_id, attached, reply.files)
        return True

    def _follow(self, session: Session, reply: ReplyInProgress) -> Iterator[Update]:
        """Draw a reply from here to its end, while its chat is on the screen. The page may leave: it goes on."""
        with session.lock:
            known = reply in session.following
            session.following.add(reply)
            if not known and session.conversation == reply.conversation_id:
                session.begun += 1
        if known:
            yield {}
            return
        begun, views, told = False, self._views, time.monotonic()
        draw = self._drawn(session, reply)
        try:
            # The first update precedes anything slow, so that Gradio can cancel from here on.
            yield self._whole(session, reply)
            for state in reply.follow():
                on_screen = session.conversation == reply.conversation_id
                if places_ahead(state) is None and not begun:
                    begun = True
                    shown = views.chats(session)
                    if on_screen:
                        shown |= views.heading(session) | views.busy(session)
                    yield shown | views.tray(session)
                update = draw(state) if on_screen else {}
                if not on_screen and isinstance(state, Frame) and state.phase == "calling":
                    update = views.live(session)
                if time.monotonic() - told > QUIET_SECONDS:
                    told = time.monotonic()
                    # Stop once more: what answers another event may have come behind the first update.
                    yield update | (views.busy(session) if on_screen else {})
                elif update:
                    yield update
        finally:
            session.following.discard(reply)
            on_screen = session.conversation == reply.conversation_id
        yield self._ended(session, reply, on_screen)

    def _whole(self, session: Session, reply: ReplyInProgress) -> Update:
        chats = self._views.chats(session)
        if session.conversation != reply.conversation_id:
            return chats
        try:
            whole = chats | self._views.conversation(session)
        except NotFound:  # it could not begin, and its conversation went with it: its end tells why
            return chats
        # One that has ended by now is drawn as such by its end alone: the foot below a reply is the last that comes.
        return chats if reply.wait(0) else whole

    def _drawn(self, session: Session, reply: ReplyInProgress) -> Callable[[State], Update]:
        """Return a function that draws the states of a reply one after the other: of each only what changed, and
        its figures as often as can be read."""
        p, words, sides = self._parts, GrowingReply(), defaultdict[Arm, GrowingReply](GrowingReply)
        said, grown, phase, counted, above = "", "", "", 0.0, None

        def draw(state: State) -> Update:
            nonlocal said, grown, phase, counted, words, above
            if reply.compared:
                line = session.note + self._views.line(reply)
                return self._views.columns(conversation.arms(state), sides) | {p.live: line}
            if reply.above != above or (isinstance(state, Frame) and state.phase == "calling"):
                above, words, grown = reply.above, GrowingReply(), ""
                return self._views.conversation(session)
            line = self._views.line(reply)
            news, said = line != said, line
            if places_ahead(state) is not None:
                return {p.live: session.note + line} if news else {}
            html = conversation.growing_reply(state, reply, words)
            update: Update = {} if html == grown else {p.growing: html}
            now, now_in = time.monotonic(), getattr(state, "phase", "")
            if now_in != phase or now - counted >= FIGURES_SECONDS:
                update |= {p.live: session.note + line} | self._views.window(session, reply)
                counted = now
            grown, phase = html, now_in
            return update

        return draw

    def _ended(self, session: Session, reply: ReplyInProgress, on_screen: bool) -> Update:
        p, views = self._parts, self._views
        views.window(session, reply)
        if on_screen or reply.trouble:
            self._service.summary_failures.pop((reply.user_id, reply.conversation_id), None)  # shown now
            # What another one had to say, which ended at the same time, stays.
            session.note = ""
            if remark := self._remark(reply) or self._lesson(reply):
                session.remark, session.about = status.closable(remark), ""
        if on_screen and reply.withdrawn:
            session.gone_from(reply.conversation_id)
            session.settings_of = None  # what the panel shows is for the next one
        update = views.chats(session)
        if not on_screen:
            return update | views.live(session) | views.tray(session)
        # Where a message waited, the reply to it is in progress by now.
        compared = reply.compared and reply.begun and views.now(session) is None
        update |= views.conversation(session, compared=compared)
        if compared:
            last = reply.latest if isinstance(reply.latest, CompareFrame) else None
            update |= views.columns(conversation.arms(last)) | {p.back: gr.update(visible=True)}
            update[p.verdict], update[p.result] = comparisons_panel.ended(last)
        return update

    def _lesson(self, reply: ReplyInProgress) -> str:
        """Return the explanation that belongs to one of the user's first replies, and note that it was shown."""
        users = self._service.users
        told = users.chosen(reply.user_id, "told", 0)
        if lesson := conversation.lesson(reply.latest, told, self._service.model_status):
            users.choose(reply.user_id, told=told + 1)
        return lesson

    def _remark(self, reply: ReplyInProgress) -> str:
        """Return the error or notice of a reply that has ended."""
        if not reply.trouble:
            return conversation.remark(reply)
        sentence = deleted(kept=True) if reply.missing else reply.trouble
        if reply.asks and not reply.begun and not reply.taken_back:
            sentence = f"“{reply.title}”: {sentence}"
        return status.error(sentence)


class AttachingHandlers(HandlerGroup):
    """Handles files beside the message, the count of tokens, and messages that wait."""

    def wire(self) -> None:
        on, p = self._page.on, self._parts
        on("hc_attached", self.attach, outputs=[p.tray], trigger_mode="multiple")
        on("hc_kept", self.again, outputs=[p.tray])
        on("hc_detach", self.detach, outputs=[p.tray], trigger_mode="multiple")
        on("hc_inline", self.inline, [p.box], [p.tray, p.box])
        on("hc_next_edit", self.edit_next, [p.box], [p.tray, p.box])
        on("hc_next_cancel", self.cancel_next, outputs=[p.tray])
        on("hc_count", self.count, [p.controls], [p.count, p.tray], trigger_mode="always_last")
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
            read_ahead(self._service, session)
            said = views.settled(session, FILES)
        except Unreadable as error:
            said = views.tell(session, status.error(str(error)), FILES)
        finally:
            if new.file is None and new in files:
                files.remove(new)
        yield views.tray(session) | said

    def detach(self, event: PageEvent) -> Update:
        self._page.kept.drop(event.user, event.session.take(event.text))
        return self._views.tray(event.session) | self._views.settled(event.session, FILES)

    def inline(self, event: PageEvent, box: str) -> Update:
        """Move attached pasted text into the box, where it would have been."""
        taken = event.session.take(event.text)
        self._page.kept.drop(event.user, taken)
        text = "".join(one.file.text for one in taken if one.file)
        return self._views.tray(event.session) | {self._parts.box: box + text}

    def again(self, event: PageEvent) -> Update:
        """Restore the files of a page that was loaded again, each in its chat."""
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
        """Switch a sent file between its text and its name alone."""
        if self._views.now(event.session) is not None:
            raise Remark(_(status.LATER), notice=True)
        event.session.shown ^= {event.id}
        return self._views.conversation(event.session)

    def edit_next(self, event: PageEvent, box: str) -> Update:
        """Move a waiting message back into the box, before the text there."""
        session = event.session
        one = self._service.in_progress.take_out(event.user, whole(event.text))
        if one is None:
            return self._views.tray(session)  # it has just gone out
        attached = session.attached.setdefault(session.conversation or 0, [])
        self._page.kept.back(event.user, attached, one.files)
        text = f"{one.text}\n\n{box}" if one.text and box.strip() else one.text or box
        return self._views.tray(session) | {self._parts.box: text}

    def cancel_next(self, event: PageEvent) -> Update:
        self._service.in_progress.take_out(event.user, whole(event.text))
        return self._views.tray(event.session)

    def count(self, event: PageEvent) -> Update:
        """Count the tokens of the message in the box, and how many it may have; beside a reply being written."""
        session, files = event.session, event.session.files
        # One that is being read is drawn when it is read.
        uncounted = any(file.file and file.tokens is None for file in files)
        # As it will be sent: so the number is that of the error, if it is too long.
        counted = self._service.tokens(with_files(event.text, [one.file for one in files if one.file]))
        drawn = self._views.tray(session) if uncounted else {}  # counts them, too
        try:
            settings = chat_settings.taken(self._service, event)
        except InvalidSettings:
            settings = self._service.chats.settings(event.user, session.conversation)
        told = self._service.chats.system_prompt(event.user, settings)
        room = self._service.message_room(reply_settings(settings.sampling), told)
        if counted is None or room is None:
            return {self._parts.count: ""} | drawn
        if counted[0] <= room:
            drawn |= self._views.settled(session, LENGTH)
        return {self._parts.count: status.count_line(counted[0], room, counted[1])} | drawn

    def _read(self, new: Attached, sent: Mapping[str, Any]) -> None:
        """Read an uploaded file or pasted text into `new`. Raises Unreadable."""
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
