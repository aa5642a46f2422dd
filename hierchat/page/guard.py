"""Connect the page's controls to handlers. Whatever goes wrong in one becomes a sentence; the page stays usable."""

import inspect
import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from copy import copy
from functools import partial
from typing import Any

import gradio as gr
from gradio.events import EventListener

from hierchat import logs
from hierchat.chat.service import ChatService
from hierchat.language import ENGLISH, _, chosen, current, each_spoken, spoken, translated
from hierchat.page import status
from hierchat.page.chat_settings import InvalidSettings
from hierchat.page.components import Components
from hierchat.page.event_data import Controls, PageEvent, checked, fields, parsed
from hierchat.page.page_sessions import KeptFiles, Session, Sessions, Stale
from hierchat.page.panels.panel import Panel
from hierchat.page.views import Update, Views
from hierchat.store import LOCAL_USER, NotFound, StoreError

log = logging.getLogger(__name__)
SETTINGS = "settings"
"""What a remark is about, until settings are right again."""
# preprocess: components check values themselves, before any handler of ours could answer with a sentence.
# show_progress_on: with none, Gradio 6.31 tells each output at each answer how far the event is, which takes a browser
# 30 ms for the outputs of a reply in progress, hidden or not.
_QUIET: dict[str, Any] = {
    "show_progress": "hidden",
    "show_progress_on": [],
    "api_visibility": "private",
    "preprocess": False,
}
_NO_DATA = gr.EventData(None, None)


class Remark(Exception):
    """Raised to end a handler with a sentence for the line above the box. `about`: its topic, until settled."""

    def __init__(self, sentence: str, about: str = "", *, notice: bool = False) -> None:
        super().__init__(sentence)
        self.drawn = (status.notice if notice else status.error)(sentence)
        self.about = about


class OwnerOnly(Exception):
    """Raised if a user who is not the owner asks for what only the owner may do. The message is for the page."""


def require_owner(service: ChatService, user_id: int) -> None:
    """Raise OwnerOnly if this user is not the owner. The user is the request's, never one that the page names."""
    if not service.users.is_owner(user_id):
        raise OwnerOnly(_("Only the owner of this hierchat can do that."))


class PageEvents:
    """Connects controls to handlers, each behind the same wrapper, and knows the open pages. What a handler drew of a
    conversation that is not on the screen any more is drawn anew: handlers of one page run beside each other."""

    def __init__(
        self, service: ChatService, app: gr.Blocks, parts: Components, panels: Sequence[Panel]
    ) -> None:
        self.service = service
        self.app = app
        self.parts = parts
        self.sessions = Sessions()
        self.kept = KeptFiles()
        self.views = Views(service, parts, panels)
        self.users: dict[str, int] = {}
        """Names and ids of users that were seen. Known ones need no store: Stop works while the file is locked."""

    def on(
        self,
        trigger: Any,
        handler: Callable[..., Any],
        inputs: Sequence[Any] = (),
        outputs: Sequence[Any] | None = None,
        **options: Any,
    ) -> Any:
        """Connect a control, or an action of the page's script by its name, to a handler. `inputs`: go to the
        handler by value, but `Components.controls` to the event; `outputs`: by default all of the page."""
        if isinstance(trigger, str):
            trigger = partial(EventListener(event_name=trigger).listener, self.parts.bus)
        live = [self.parts.live] if outputs else []
        shown = self.parts.every if outputs is None else list(dict.fromkeys([*outputs, *live]))
        return trigger(self.guarded(handler, inputs, shown), list(inputs), shown, **_QUIET | options)

    def guarded(
        self, handler: Callable[..., Any], inputs: Sequence[Any] = (), outputs: Sequence[Any] = ()
    ) -> Callable[..., Any]:
        """Wrap a handler, which gets a PageEvent and the values of `inputs`, and returns or yields updates."""
        known = {component._id for component in outputs}
        draws = known - {self.parts.cue._id, self.parts.live._id}

        def called(request: gr.Request, data: gr.EventData, values: Sequence[Any]) -> Any:
            given = dict(zip(inputs, checked(values, inputs), strict=True))
            controls = given.pop(self.parts.controls, None)
            read = None if controls is None else self._controls(controls)
            return handler(PageEvent(request, fields(data._data), self.session_of, read), *given.values())

        def within(update: Update | None) -> Update:
            return {part: value for part, value in (update or {}).items() if part._id in known}

        def yielding(
            request: gr.Request, data: gr.EventData = _NO_DATA, *values: Any
        ) -> Generator[Update, None, None]:
            language, some = _language(request), False
            try:
                with closing(called(request, data, values)) as updates:
                    latest = map(within, self._on_screen(updates, request))
                    for update in each_spoken(language, latest):
                        some = True
                        yield update
                if not some:  # Gradio would empty all outputs
                    yield {}
            except Exception as error:
                with spoken(language):
                    mended = within(self._mended(error, request))
                yield mended

        def returning(request: gr.Request, data: gr.EventData = _NO_DATA, *values: Any) -> Update:
            with spoken(_language(request)), self._beside(request) if draws else nullcontext():
                try:
                    return within(self._latest(called(request, data, values), request))
                except Exception as error:
                    return within(self._mended(error, request))

        wrapper = yielding if inspect.isgeneratorfunction(handler) else returning
        wrapper.__name__ = getattr(handler, "__name__", "handler")
        return wrapper

    @contextmanager
    def _beside(self, request: gr.Request) -> Iterator[None]:
        """Have the page drawn anew after handlers that ran side by side: either answer may be the last to arrive."""
        try:
            session = self.session_of(request)
        except (Stale, StoreError):  # whom it concerns says so
            yield
            return
        session.running.append(None)
        several = len(session.running) > 1
        try:
            yield
        finally:
            session.running.pop()
            if several:
                self.service.changes.notify(session.user)

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

    def _latest(self, update: Update | None, request: gr.Request) -> Update | None:
        """Return an update redrawn for the conversation that is on the screen by now."""
        bus = self.parts.bus
        if not update or bus not in update:
            return update
        session = self.session_of(request)
        while update[bus] != self.views.place(session):
            update |= self.views.everything(session)
        return update

    def _on_screen(self, updates: Iterator[Update], request: gr.Request) -> Iterator[Update]:
        """Yield updates for the screen as it is by now; all of it again if it changed while one was made or on its
        way, because the answer that changed it may have been the first to arrive."""
        session, on_screen = self.session_of(request), {self.parts.live, self.parts.growing, self.parts.bus}
        left = session.left
        for update in updates:
            drawn = on_screen & (update or {}).keys()
            late, left = drawn and session.left != left, session.left
            yield update | self.views.everything(session) if late else self._latest(update, request) or {}
            while drawn and session.left != left:
                left = session.left
                yield self.views.everything(session)
            left = session.left

    def _mended(self, error: Exception, request: gr.Request) -> Update:
        """Return the update that shows an error to the user."""
        live = self.parts.live
        if isinstance(error, Stale):
            return {live: status.stale(str(error))}
        sentence = error.drawn if isinstance(error, Remark) else status.error(logs.error_message(error))
        try:
            session = self.session_of(request)
            if isinstance(error, NotFound):
                return self.views.missing(session, kept=bool(session.unsent))
            about = SETTINGS if isinstance(error, InvalidSettings) else getattr(error, "about", "")
            return self.views.busy(session) | self.views.tell(session, sentence, about)
        except Exception as another:
            log.debug("the page could not be drawn anew: %s", type(another).__name__)
            return {live: sentence}


class HandlerGroup:
    """Base of the handlers of one part of the page, with the objects they work on."""

    def __init__(self, page: PageEvents) -> None:
        self._page = page
        self._service = page.service
        self._parts = page.parts
        self._views = page.views


def _language(request: gr.Request) -> str:
    """Return the language that a request's browser asks for; English for one without headers, as tests send."""
    headers = getattr(request, "headers", None)
    return chosen(headers) if headers else ENGLISH


class Page(gr.Blocks):
    """Sends browsers only the outputs that changed, and the page in their language: it is built inside of `marked`."""

    fresh: Mapping[int, Callable[[], Mapping[str, Any]]] = {}
    """By a component's id: properties as they are now, for a page that opens. All others are as they were built."""

    @property
    def config(self) -> Any:
        """Return the configuration from which a browser builds the page, in its language."""
        language = current()
        if language not in self._told:
            self._told[language] = translated(self._config)
        told = self._told[language]
        components = [
            {**one, "props": {**one["props"], **self.fresh[one["id"]]()}} if one["id"] in self.fresh else one
            for one in told["components"]
        ]
        return {**told, "components": components}

    @config.setter
    def config(self, made: Any) -> None:
        self._config = made
        self._told: dict[str, Any] = {}

    async def postprocess_data(self, block_fn: Any, predictions: Any, state: Any) -> list[Any]:
        """Process only the outputs that `predictions` names. Gradio 6.31 makes each output of an event anew for each
        answer, also what is skipped: 30 ms of a processor for a hundred outputs, a dozen times a second while a reply
        is written, and the engine waits for the interpreter."""
        if not isinstance(predictions, dict) or not all(
            isinstance(key, gr.blocks.Block) for key in predictions
        ):
            return await super().postprocess_data(block_fn, predictions, state)
        skipped = gr.skip()
        named = {block._id: value for block, value in predictions.items() if value != skipped}
        part = copy(block_fn)
        part.outputs = [block for block in block_fn.outputs if block._id in named]
        if len(part.outputs) < len(named):  # one is no output of this event: Gradio says which
            return await super().postprocess_data(block_fn, predictions, state)
        made: dict[int, Any] = {}
        if part.outputs:
            values = {block: named[block._id] for block in part.outputs}
            done = await super().postprocess_data(part, values, state)
            made = {block._id: value for block, value in zip(part.outputs, done, strict=True)}
        return [made.get(block._id, gr.skip()) for block in block_fn.outputs]
