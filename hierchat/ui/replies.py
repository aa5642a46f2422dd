"""Handlers that write a reply: send, again, edit, compare and its replay. Each is a generator of updates."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

import gradio as gr

from hierchat.chat.frames import CompareFrame, Frame
from hierchat.config import GenerationSettings
from hierchat.ui import messages, sampling, status, turns, versus
from hierchat.ui.figures import figures_line
from hierchat.ui.layout import Parts
from hierchat.ui.sessions import Line, Session
from hierchat.ui.views import Update, Views, context

if TYPE_CHECKING:
    from hierchat.chat.service import ChatService

Who = Callable[[gr.Request], tuple[Session, int]]


class Replies:
    """The handlers; one line for the engine between all pages."""

    def __init__(self, service: ChatService, parts: Parts, views: Views, who: Who) -> None:
        self._service = service
        self._parts = parts
        self._views = views
        self._who = who
        self._line = Line()

    def send(
        self, text: str, compare: bool, query: str, request: gr.Request, *values: Any
    ) -> Iterator[Update]:
        """What is in the box, asked at the end of the open conversation."""
        session, user = self._who(request)
        if not text.strip():
            yield {self._parts.live: ""}
            return
        path = self._path(session, user)
        parent = path[-1].id if path else None
        if path and path[-1].role == "user":  # never answered: the new question takes its place
            parent = path[-1].parent_id
        yield from self._ask(session, user, parent, text, compare, query, values)

    def example(
        self, compare: bool, query: str, event: gr.EventData, request: gr.Request, *values: Any
    ) -> Iterator[Update]:
        """An example prompt, sent as if typed."""
        yield from self.send(str(event._data["text"]), compare, query, request, *values)

    def edit(
        self, compare: bool, query: str, event: gr.EventData, request: gr.Request, *values: Any
    ) -> Iterator[Update]:
        """A new version of a question: a sibling of the old one."""
        session, user = self._who(request)
        old = next((m for m in self._path(session, user) if m.id == int(event._data["id"])), None)
        if old is None or old.role != "user":
            yield {self._parts.live: status.error("This message is not in the open chat any more.")}
            return
        yield from self._ask(session, user, old.parent_id, str(event._data["text"]), compare, query, values)

    def again(self, query: str, event: gr.EventData, request: gr.Request, *values: Any) -> Iterator[Update]:
        """Another reply to the same question."""
        session, user = self._who(request)
        path = self._path(session, user)
        place = next((i for i, m in enumerate(path) if m.id == int(event._data["id"])), None)
        if place is None:
            yield {self._parts.live: status.error("This message is not in the open chat any more.")}
            return
        settings = self._settings(values)
        if isinstance(settings, str):
            yield {self._parts.live: status.error(settings)}
            return
        before = messages.history(self._service, user, path[: place + 1], session.marked)
        question = path[place].id
        yield from self._stream(
            session,
            user,
            query,
            before,
            "",
            lambda stop: self._service.regenerate(user, question, settings, stop),
        )

    def replay(self, request: gr.Request) -> Iterator[Update]:
        """The last comparison once more, both arms from the start in their recorded times."""
        session, _ = self._who(request)
        if session.stop is not None or not session.recording:
            yield {self._parts.live: ""}
            return
        stop = session.stop = threading.Event()
        p = self._parts
        try:
            yield {
                p.verdict: status.waiting("Replaying both at their recorded speed"),
                **self._views.busy(True),
            }
            for arms in versus.replay(session):
                yield self._views.columns(arms)
                if stop.is_set():
                    break
        finally:
            session.stop = None
        last = {arm: track[-1][1] for arm, track in versus.tracks(session.recording).items() if track}
        yield {**self._views.columns(last), p.verdict: session.verdict, **self._views.busy(False)}

    def _path(self, session: Session, user: int) -> list[Any]:
        if session.conversation is None:
            return []
        return [m for m in self._service.store.messages(user, session.conversation) if m.role != "system"]

    def _settings(self, values: tuple[Any, ...]) -> GenerationSettings | str:
        try:
            return sampling.settings_of(list(values))
        except sampling.SettingsError as error:
            return str(error)

    def _ask(
        self, session: Session, user: int, parent: int | None, text: str, compare: bool, query: str,
        values: tuple[Any, ...],
    ) -> Iterator[Update]:  # fmt: skip
        settings = self._settings(values)
        if isinstance(settings, str):
            yield {self._parts.live: status.error(settings)}
            return
        if session.conversation is None:
            session.conversation = self._service.store.create_conversation(user)
        conversation = session.conversation
        if compare:
            yield from self._compare(
                session, user, query, text,
                lambda stop: self._service.compare(user, conversation, parent, text, settings, stop),
            )  # fmt: skip
            return
        path = self._path(session, user)
        kept = next((i + 1 for i, m in enumerate(path) if m.id == parent), 0)
        before = messages.history(self._service, user, path[:kept], session.marked)
        yield from self._stream(
            session, user, query, [*before, messages.user_message(text)], text,
            lambda stop: self._service.send(user, conversation, parent, text, settings, stop),
        )  # fmt: skip

    def _stream(
        self, session: Session, user: int, query: str, before: list[Any], text: str,
        start: Callable[[threading.Event], Generator[Frame, None, None]],
    ) -> Iterator[Update]:  # fmt: skip
        p, conversation = self._parts, session.conversation
        remark, begun = "", False
        # The first update precedes anything slow, so that Gradio can cancel from here on.
        yield {
            **self._views.stage("chat"), p.chat: gr.update(value=before, visible=True), p.box: "",
            p.live: status.waiting("Waiting for the model…"), **self._views.busy(True),
        }  # fmt: skip
        try:
            with closing(turns.run(session, self._line, self._service.host, start)) as items:
                for item in items:
                    here = session.conversation == conversation
                    if isinstance(item, str):
                        if item and here:
                            yield {p.live: item}
                        else:
                            yield {p.live: gr.skip()}
                        continue
                    if not begun:
                        begun = True
                        yield self._views.chats(session, user, query) | (
                            self._views.heading(session, user) if here else {}
                        )
                    remark = _remark(item)
                    session.context[conversation or 0] = status.context_line(item)
                    yield self._growing(session, user, conversation, before, item)
        except turns.Stopped:
            remark = ""
        except Exception as error:
            remark = status.error(turns.said(error))
        yield self._ended(session, user, conversation, query, remark) | (
            {} if begun or not text else {p.box: text}
        )

    def _growing(
        self, session: Session, user: int, conversation: int | None, before: list[Any], frame: Frame
    ) -> Update:
        p = self._parts
        if session.conversation != conversation:
            title = self._views.title_of(user, conversation)
            return {p.live: status.waiting(f"Still writing in “{title}”")}
        note = status.notice(frame.notice) if frame.notice and frame.phase != "waiting" else ""
        if frame.phase in ("waiting", "reading"):
            return {p.live: note + status.frame_line(frame), p.context: context(status.context_line(frame))}
        return {
            p.chat: [*before, messages.growing(frame.text)],
            p.live: note + figures_line(frame.figures),
            p.context: context(status.context_line(frame)),
        }

    def _ended(
        self, session: Session, user: int, conversation: int | None, query: str, remark: str
    ) -> Update:
        update = {
            **self._views.chats(session, user, query),
            **self._views.busy(False),
            **self._views.plan(),
            self._parts.live: remark,
        }
        if session.conversation == conversation:
            update |= self._views.conversation(session, user)
        return update

    def _compare(
        self, session: Session, user: int, query: str, text: str,
        start: Callable[[threading.Event], Generator[CompareFrame, None, None]],
    ) -> Iterator[Update]:  # fmt: skip
        p, conversation = self._parts, session.conversation
        begun, remark, here = False, "", True
        hidden = gr.update(visible="hidden")
        yield {
            **self._views.stage("versus"), **self._views.columns({}), **self._views.busy(True), p.box: "",
            p.asked: versus.asked(text), p.verdict: status.waiting("Running both, one after the other"),
            p.replay: hidden, p.back: hidden, p.live: "",
        }  # fmt: skip
        try:
            recorded = turns.run(
                session, self._line, self._service.host, lambda stop: versus.record(session, start(stop))
            )
            with closing(recorded) as items:
                for item in items:
                    was, here = here, session.conversation == conversation
                    if isinstance(item, str):
                        yield {p.live: item if item and here else gr.skip()}
                        continue
                    if not begun:
                        begun = True
                        yield {**self._views.chats(session, user, query), p.live: ""}
                    if here:
                        back_again = {} if was else self._views.stage("versus")
                        if arm := item.arms.get("speculative"):
                            session.context[conversation or 0] = status.context_line(
                                arm
                            ) or session.context.get(conversation or 0, "")
                        yield self._views.columns(item.arms) | back_again
                    else:
                        yield {p.live: status.waiting("Still comparing in another chat")}
        except turns.Stopped:
            remark = ""
        except Exception as error:
            remark = status.error(turns.said(error))
        update = {**self._views.chats(session, user, query), **self._views.busy(False), **self._views.plan()}
        update |= {
            p.live: remark,
            p.back: gr.update(visible=True),
            p.verdict: session.verdict if begun else "",
        }
        if session.recording and begun:
            update[p.replay] = gr.update(visible=True)
        if session.conversation == conversation:
            update |= self._views.conversation(session, user, "versus" if begun else None)
        yield update | ({} if begun else {p.box: text})


def _remark(frame: Frame) -> str:
    if frame.finish == "error":
        return status.error(frame.notice or "The reply could not be finished.")
    return status.notice(frame.notice) if frame.notice else ""
