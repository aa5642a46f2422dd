"""Connect the page's controls to handlers. Whatever goes wrong in one becomes a sentence; the page stays usable."""

import asyncio
import logging
from collections.abc import Callable, Container, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import Any

import gradio as gr
from anyio import CapacityLimiter, to_thread
from gradio.events import EventListener

from hierchat import logs
from hierchat.chat.service import ChatService
from hierchat.language import ENGLISH, _, chosen, spoken
from hierchat.page import status
from hierchat.page.components import Components
from hierchat.page.event_data import Controls, PageEvent, checked, fields, parsed
from hierchat.page.page_sessions import KeptFiles, Session, Sessions, end_incognito
from hierchat.page.panels.panel import Panel
from hierchat.page.views import Update, Views
from hierchat.page.writer import Writer
from hierchat.store import LOCAL_USER, NotFound, StoreError

log = logging.getLogger(__name__)
# preprocess: components check values themselves, before any handler of ours could answer with a sentence.
# show_progress_on: with none, Gradio 6.31 tells each output at each answer how far the event is, which takes a browser
# 30 ms for the outputs of a reply in progress, hidden or not.
# queue: its queue answers by a stream of its own, and drops events that come while that stream ends.
_QUIET: dict[str, Any] = {
    "queue": False,
    "show_progress": "hidden",
    "show_progress_on": [],
    "api_visibility": "private",
    "preprocess": False,
}
EACH: dict[str, Any] = {"trigger_mode": "multiple"}
"""Option of `PageEvents.on` for a control or an action whose every press counts. Without it, Gradio drops those that
come while an earlier one is not answered."""
_NO_DATA = gr.EventData(None, None)
_SLOW = 8
"""Threads for slow handlers of all pages: they must not take all that others need."""
RUNNING: set[asyncio.Task[Any]] = set()
"""Slow handlers that run, of all pages."""


class Remark(Exception):
    """Raised to end a handler with a sentence for the line above the box."""

    def __init__(self, sentence: str, *, notice: bool = False) -> None:
        super().__init__(sentence)
        self.drawn = (status.notice if notice else status.error)(sentence)


class OwnerOnly(Exception):
    """Raised if a user who is not the owner asks for what only the owner may do. The message is for the page."""


def require_owner(service: ChatService, user_id: int) -> None:
    """Raise OwnerOnly if this user is not the owner. The user is the request's, never one that the page names."""
    if not service.users.is_owner(user_id):
        raise OwnerOnly(_("Only the owner of this hierchat can do that."))


class PageEvents:
    """Connects controls to handlers, with one wrapper for all, and keeps the open pages. Handlers of one page run one
    after the other. Their HTML goes into the page's stream; their answer contains values of Gradio's controls."""

    def __init__(
        self, service: ChatService, app: gr.Blocks, parts: Components, panels: Sequence[Panel]
    ) -> None:
        self.service = service
        self.app = app
        self.parts = parts
        self.sessions = Sessions()
        self.kept = KeptFiles()
        self.views = Views(service, parts, panels)
        self.writer = Writer(service, parts, self.views)
        self.behind = self.writer.behind
        self.users: dict[str, int] = {}
        """Names and ids of users that were seen. Known ones need no store: Stop works while the file is locked."""
        self._slow = CapacityLimiter(_SLOW)
        service.changes.listeners.append(self._woken)

    def on(
        self,
        trigger: Any,
        handler: Callable[..., Any],
        inputs: Sequence[Any] = (),
        outputs: Sequence[Any] | None = None,
        *,
        apart: bool = False,
        slow: bool = False,
        **options: Any,
    ) -> Any:
        """Connect a control, or an action of the page's script by its name, to a handler.

        `inputs`: controls whose values the handler gets; `Components.controls` goes to the event. `outputs`: controls
        that the answer may change, by default all. `apart`: the handler waits for no other of its page. `slow`: the
        same, and the event is answered before the handler runs, which draws by `PageEvent.draw` and returns nothing."""
        if isinstance(trigger, str):
            trigger = partial(EventListener(event_name=trigger).listener, self.parts.bus)
        told = [part for part in self.parts.told if outputs is None or part in outputs]
        return trigger(
            self.guarded(handler, inputs, told, apart=apart, slow=slow),
            list(inputs),
            told,
            **_QUIET | options,
        )

    def guarded(
        self,
        handler: Callable[..., Any],
        inputs: Sequence[Any] = (),
        outputs: Sequence[Any] = (),
        *,
        apart: bool = False,
        slow: bool = False,
    ) -> Callable[..., Any]:
        """Wrap a handler, which gets a PageEvent and the values of `inputs`. It changes what the page shows, by
        `Session.show`, and may return values of controls."""
        known = {component._id for component in outputs}

        def called(request: gr.Request, data: gr.EventData, values: Sequence[Any]) -> Any:
            given = dict(zip(inputs, checked(values, inputs), strict=True))
            controls = given.pop(self.parts.controls, None)
            read = None if controls is None else self._controls(controls)
            event = PageEvent(request, fields(data._data), self.session_of, self.draw, read)
            return handler(event, *given.values())

        def answered(request: gr.Request, data: gr.EventData = _NO_DATA, *given: Any) -> Update:
            with spoken(_language(request)), nullcontext() if apart or slow else self._turn(request):
                try:
                    values = called(request, data, given) or {}
                except Exception as error:
                    with self._turn(request):
                        # A page without a session gets no answer, and loads itself again.
                        if session := self.sessions.find(request.session_hash):
                            self._tell(error, session)
                        return self._answer({}, request, known)
                return values if apart or slow else self._answer(values, request, known)

        async def begun(request: gr.Request, data: gr.EventData = _NO_DATA, *values: Any) -> Update:
            does = partial(answered, request, data, *values)
            work = asyncio.create_task(to_thread.run_sync(does, limiter=self._slow))
            RUNNING.add(work)
            work.add_done_callback(RUNNING.discard)
            return {}

        wrapper = begun if slow else answered
        wrapper.__name__ = getattr(handler, "__name__", "handler")
        return wrapper

    def draw(self, session: Session, values: Update) -> None:
        """Draw what changed, and these values, in the turn of a page, while a handler of it goes on."""
        with session.lock:
            self._take(self._written(session) | values, session)

    def _turn(self, request: gr.Request) -> AbstractContextManager[Any]:
        """Wait for the turn of a page's event."""
        session = self.sessions.find(request.session_hash)
        return session.lock if session else nullcontext()

    def catch_up(self, session: Session) -> None:
        """Bring the screen of a page up to date with what happened by itself."""
        with session.lock:
            try:
                update = self._written(session, again=True)
            except StoreError as error:  # tried again in a second
                log.debug("a page could not be drawn: %s", type(error).__name__)
                return
            self._take(update, session)

    def close(self, session: Session) -> None:
        """Forget a page that was closed. Its replies go on."""
        if self.sessions.close(session.key) is None:
            return
        session.page.wake()  # its streams end
        # Gradio would hold what it has of 10,000 pages that are gone.
        self.app.state_holder.session_data.pop(session.key, None)
        session.show(conversation=None)
        end_incognito(self.service, session)

    def _woken(self, user: int) -> None:
        for session in self.sessions.all():
            if session.user == user:
                session.page.wake()

    def _answer(self, values: Update, request: gr.Request, known: Container[int]) -> Update:
        """Put what changed into the page's stream; return what is for the controls of Gradio's in this answer."""
        session = self.sessions.find(request.session_hash)
        if session is None:
            return {}
        self._take(self._written(session) | values, session, known)
        return {part: session.pending.pop(part) for part in list(session.pending) if part._id in known}

    def _take(self, update: Update, session: Session, known: Container[int] = ()) -> None:
        """Put parts into the page's stream. The page fetches values of controls that are not `known` to an answer."""
        drawn: dict[str, str] = {}
        update = {self.parts.bus: f"{session.key} {session.screen.conversation or 0}"} | update
        for part, value in update.items():
            if isinstance(part, str):
                drawn[part] = value
            elif part not in self.parts.told:
                drawn[part.elem_id] = str(value)
            elif not self._was_given(session, part, value):
                session.pending[part] = value
                session.fetch += part._id not in known
        if not session.gone:
            session.page.put(drawn | self.views.words(session))

    def _was_given(self, session: Session, part: Any, value: Any) -> bool:
        """Return whether a control that no user changes has this value already, and note that it has."""
        if part is not self.parts.bus and not isinstance(part, gr.Timer):
            return False
        now = value.active if isinstance(value, gr.Timer) else value
        before, session.given[part] = session.given.get(part), now
        return bool(before == now)

    def carry_controls(self) -> None:
        """Have the browser collect the values of all controls into one component. As inputs of an event that has ended,
        Gradio 6.31 would tell each of them of each frame of a reply, and let some draw themselves sixty times a second:
        a third of a core."""
        parts, together = self.parts, "(...values) => JSON.stringify(values)"
        gr.on(
            [part.change for part in parts.carried],
            None,
            parts.carried,
            [parts.controls],
            js=together,
            **_QUIET,
        )

    def _controls(self, text: str) -> Controls:
        """Parse the values of a page's controls. Raises Foreign."""
        compare, shown, *settings = checked(parsed(text, list), self.parts.carried)
        return Controls(compare, shown, settings)

    def session_of(self, request: gr.Request) -> Session:
        """Return the session of the requesting page, its user that of the login, never of a component. Raises Stale."""
        session = self.sessions.of(request.session_hash)
        session.name = request.username or LOCAL_USER
        if session.name not in self.users:
            self.users[session.name] = self.service.users.ensure(session.name)
        session.user = self.users[session.name]
        return session

    def _written(self, session: Session, *, again: bool = False) -> Update:
        """Return what changed on a page. If it cannot be drawn, it says why; raises StoreError if that is tried
        `again`."""
        try:
            return self.writer.write(session)
        except Exception as error:
            if again and isinstance(error, StoreError) and not isinstance(error, NotFound):
                raise
            if not isinstance(error, StoreError):
                session.screen = session.drawn
            self._tell(error, session)
        try:
            return self.writer.write(session)
        except Exception as error:
            log.debug("a page could not be drawn anew: %s", type(error).__name__)
            return {self.parts.live: session.screen.remark or session.screen.note}

    def _tell(self, error: Exception, session: Session) -> None:
        """Show an error to the user of a page."""
        if isinstance(error, NotFound):
            with suppress(StoreError):
                self.views.missing(session, kept=False)
                return
        sentence = error.drawn if isinstance(error, Remark) else status.error(logs.error_message(error))
        self.views.tell(session, sentence)


class HandlerGroup:
    """Base of the handlers of one part of the page, with the objects they work on."""

    def __init__(self, page: PageEvents) -> None:
        self._page = page
        self._service = page.service
        self._parts = page.parts
        self._views = page.views

    def _refuse_while_writing(self, session: Session, sentence: str = status.LATER) -> None:
        """Raise Remark while a reply is written in the open chat."""
        if self._views.now(session) is not None:
            raise Remark(_(sentence), notice=True)


def _language(request: gr.Request) -> str:
    """Return the language that a request's browser asks for; English for one without headers, as tests send."""
    headers = getattr(request, "headers", None)
    return chosen(headers) if headers else ENGLISH
