"""Build the page and serve it: its parts, their handlers, and the access control in front."""

import asyncio
import logging
import os
import secrets
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, cast

import gradio as gr
from anyio import CapacityLimiter, create_task_group, to_thread
from gradio.routes import STATIC_TEMPLATE_LIB, App, ORJSONResponse, templates
from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hierchat.access import limits
from hierchat.access.files import files, give_out, take_in, take_model
from hierchat.access.hosts import AllowedHosts, SameOriginMiddleware, is_loopback
from hierchat.access.login import USER, LoginMiddleware
from hierchat.access.login_sessions import LoginSessions, Member, Members
from hierchat.chat.service import ChatService
from hierchat.freed_memory import overwrite_small_pieces
from hierchat.language import _, chosen, current, marked, spoken, translated
from hierchat.page import handlers, status
from hierchat.page.components import Components
from hierchat.page.guard import PageEvents
from hierchat.page.markdown.drawing import empty_caches
from hierchat.page.page_sessions import MOST_PAGES, Session
from hierchat.page.panels.insights_panel import InsightsPanel
from hierchat.page.panels.models_panel import ModelsPanel
from hierchat.page.panels.panel import Panel
from hierchat.page.panels.settings_panel import SettingsPanel
from hierchat.page.reply_handlers import AttachingHandlers, ReplyHandlers
from hierchat.page.stream import PageStreams
from hierchat.page.templates import ASSETS, Macros, style
from hierchat.store import LOCAL_USER, Store, StoreError

_log = logging.getLogger(__name__)
_MEET_SECONDS = 0.5
"""Seconds that worker threads wait for each other."""
# After every event Gradio would sum up the last 10,000, for a view that is switched off here.
_NO_SUMS = {"GRADIO_ANALYTICS_MAX_EVENTS": "1", "GRADIO_ANALYTICS_CACHE_FREQUENCY": str(10**9)}


class Page(gr.Blocks):
    """Sends browsers only the outputs that changed, and the page in their language: it is built inside of `marked`."""

    page_events: PageEvents
    streams: PageStreams
    fresh: Mapping[int, Callable[[], Mapping[str, Any]]] = {}
    """By a component's id: properties as they are now, for a page that opens. All others are as they were built."""

    first_screen: Callable[[Request], str] = staticmethod(lambda request: "")
    """Draws what the document of a request shows until the page is built."""

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


def build_app(service: ChatService, log_ins: LoginSessions | None = None) -> gr.Blocks:
    """Build the page over a chat service; `log_ins`: if there is a login."""
    os.environ |= _NO_SUMS
    blocks = Page(title="hierchat", analytics_enabled=False, fill_width=True, fill_height=True)
    with blocks as app, marked():
        panels: list[Panel] = [
            ModelsPanel(service, shared=lambda: bool(app.share_url)),
            InsightsPanel(service),
            SettingsPanel(service, log_ins),
        ]
        parts = Components(service.models.names, log_ins is not None, panels)
        page = PageEvents(service, app, parts, panels)
        blocks.fresh = {parts.model._id: page.views.picker}
        for group in (*handlers.GROUPS, ReplyHandlers, AttachingHandlers):
            group(page).wire()
        for panel in panels:
            panel.wire(page)
        page.carry_controls()
        blocks.page_events, blocks.streams = page, PageStreams(page)
        blocks.first_screen = partial(first_screen, page)
    if log_ins is not None:
        log_ins.on_end.append(partial(_forget_guest, page))
    # No event of the page waits in Gradio's queue (guard.py), which looks a thousand times a second whether one does.
    app._queue.start = lambda: None
    service.deleted_texts.screens.append(partial(_forget_drawn, page))
    service.deleted_texts.overwrites.append(partial(_overwrite_in_threads, app))
    return app


def _forget_guest(page: PageEvents, member: Member) -> None:
    if member.account is not None:
        return
    files.forget(member.name)
    if (user := page.service.users.ids().get(member.name)) is not None:
        page.kept.forget(user)
        all_gone = page.service.forget_user(user)
    else:  # tried before, or never here
        all_gone = page.service.data.rewrite()
    if not all_gone:
        raise StoreError(_("Another program keeps what a guest wrote in the file."))


def _forget_drawn(page: PageEvents, users: Collection[int]) -> None:
    """Drop what was drawn: caches of Markdown, what these users' pages show, and Gradio's copies of what is typed."""
    empty_caches()
    for session in page.sessions.all():
        if session.user in users:
            if not page.service.chats.can_undo(session.user):
                session.show(undo="")
            session.forget_drawn()
    for state in list(page.app.state_holder.session_data.values()):
        for id, config in list(state.config_values.items()):
            if isinstance(page.app.blocks.get(id), gr.Textbox):
                config["props"]["value"] = ""


def _overwrite_in_threads(app: gr.Blocks) -> None:
    """Have the threads of the page's server overwrite what they keep of freed memory: they drew what was deleted."""

    async def each() -> None:
        overwrite_small_pieces()
        workers = sum(thread.name.startswith("AnyIO") for thread in threading.enumerate())
        if not workers:
            return
        met, limiter = threading.Barrier(workers), CapacityLimiter(workers)

        def one() -> None:
            overwrite_small_pieces()
            with suppress(threading.BrokenBarrierError):  # no worker takes two, unless others are busy
                met.wait(_MEET_SECONDS)

        async with create_task_group() as group:
            for _worker in range(workers):
                group.start_soon(partial(to_thread.run_sync, one, limiter=limiter))

    for server in getattr(getattr(app, "server", None), "servers", [])[:1]:
        with suppress(TimeoutError, RuntimeError):  # it ends
            asyncio.run_coroutine_threadsafe(each(), server.get_loop()).result(10 * _MEET_SECONDS)


Before = Callable[[ASGIApp, Callable[[Scope], bool]], ASGIApp]
"""Puts an app in front of the page's; the second argument tells whether a request was made on this machine."""
# Gradio needs inline scripts and eval; what matters is that nothing leaves for another origin.
_POLICY = (
    "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; object-src 'none'; base-uri 'self'; "
    "form-action 'self'; frame-ancestors 'self'"
)
_HEAD = (  # the frame of a dark window: --hc-side of palette.css. Of metas of one name Gradio keeps one alone
    '<meta name="theme-color" content="#121215" media="(prefers-color-scheme: dark)">'
    '<link rel="apple-touch-icon" href="icon.png">'
)
_BEHIND = {"body_background_fill": "#ffffff", "body_background_fill_dark": "#17171b"}
"""Background of a window whose style sheets have not come yet; the same colours as --hc-page in palette.css."""
_SANS = ["system-ui", "-apple-system", "Segoe UI", "Roboto", "Ubuntu", "Noto Sans", "sans-serif"]
_MONO = ["ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "DejaVu Sans Mono", "monospace"]


# What Gradio believes of where it is served, whoever says so.
_ROOTS = (b"x-forwarded-host", b"x-gradio-server")


_FIRST = 8
"""Messages of a chat that the first screen shows, the last ones: they fill a window."""


def first_screen(page: PageEvents, request: Request) -> Markup:
    """Return the list of chats, and the chat of the request's address or the empty page, as HTML with a script that
    takes them away when the page itself is drawn (early.js). Nothing if it cannot be drawn."""
    parts, views, service = page.parts, page.views, page.service
    try:
        session = Session(user=service.users.ensure(request.scope.get(USER) or LOCAL_USER))
        screen = replace(views.at_address(session.user, request.query_params), drawn=_FIRST)
        session.screen, session.reply = screen, service.in_progress.of(session.user, screen.conversation)
        drawn = views.chats(session) | views.heading(session)
        drawn |= {} if screen.panel else views.middle(session)
        begins = screen.conversation is None and not screen.panel
    except Exception as error:  # the page itself will say what is wrong
        _log.debug("the first screen could not be drawn: %s", type(error).__name__)
        return Markup()
    return Macros("page.html").first(
        *(Markup(drawn[part]) for part in (parts.list, parts.links, parts.title)),
        host=Markup("" if screen.panel else status.slot_line(service.model_status)),
        login=parts.account.visible,
        thread=Markup(drawn.get(parts.thread, "")),
        growing=Markup(drawn.get(parts.growing, "")),
        begins=begins,
        language=current(),
        gradio=gr.__version__.replace(".", "-"),
        script=Markup((ASSETS / "page" / "first_screen.js").read_text(encoding="utf-8")),
    )


class OurTemplates(FileSystemLoader):
    """Loads Gradio's templates. Adds early.js before Gradio's own script, which is not possible by its option `head`,
    and the first screen before its page."""

    def get_source(self, environment: Environment, template: str) -> Any:
        # Its template for a public link fetches its script from a server of its maker's, which _POLICY forbids
        source, *facts = super().get_source(environment, template.replace("share.html", "index.html"))
        early = (ASSETS / "page" / "early.js").read_text(encoding="utf-8")
        theme = """<link rel="stylesheet" href="theme.css?v={{ config['theme_hash'] }}">"""
        source = source.replace("<head>", f"<head><script>{early}</script>{theme}", 1)
        return source.replace("<gradio-app", "{{ hc_first(request) }}<gradio-app", 1), *facts


class OwnOriginOnly:
    """Answers each request in its language, with a policy: no reply can make the browser fetch from elsewhere."""

    def __init__(self, app: ASGIApp, origins: AllowedHosts) -> None:
        self._app = app
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_policy(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["Content-Security-Policy"] = _POLICY
                headers.setdefault("Referrer-Policy", "no-referrer")
                headers["X-Content-Type-Options"] = "nosniff"
                if headers.get("Content-Type", "").startswith("text/html"):
                    headers["Cache-Control"] = "no-store"  # it holds a chat, which may be deleted
            await send(message)

        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        with spoken(chosen(Headers(scope=scope))):
            await self._app(self._rooted(scope), receive, with_policy)

    def _rooted(self, scope: Scope) -> Scope:
        headers = [one for one in scope["headers"] if one[0].lower() not in _ROOTS]
        if len(headers) < len(scope["headers"]):
            headers.append((b"via", b"a proxy"))  # what was taken out said so
        if (public := self._origins.public()) and self._origins.is_public(scope):
            headers.append((b"x-gradio-server", public.encode()))
        return {**scope, "headers": headers}


class ProtectedApp(App):
    """Puts access control in front of Gradio's app and its own middleware, which answers some requests itself."""

    def __init__(
        self, host: str, log_ins: LoginSessions | None, before: Before | None = None, public_url: str = ""
    ) -> None:
        """Set the app up. `before`: the endpoint for programs, in front of the login; `public_url`: of a proxy."""
        super().__init__(
            auth_dependency=(lambda request: request.scope.get(USER)) if log_ins else None,
            default_response_class=ORJSONResponse,
            openapi_url=None,
        )
        self._host = host
        self._log_ins = log_ins
        self._before = before
        self._public_url = public_url
        # What a browser reads to install the page as an app. Gradio's own has no identity, no colours, and no icon that
        # Windows, Android and iOS can draw.
        manifest = FileResponse(ASSETS / "manifest.json", media_type="application/manifest+json")
        for path, file in (("/manifest.json", manifest), ("/icon.png", FileResponse(ASSETS / "icon.png"))):
            self.router.routes.append(Route(path, file, methods=["GET"]))
        self.add_route("/transfer/in", take_in, methods=["POST"])
        self.add_route("/transfer/out/{ticket}", give_out, methods=["GET"])
        self.add_route("/models/{name}", take_model, methods=["PUT"])
        self.add_route("/gradio_api/page/{hash}", self._stream, methods=["GET"])

    async def _stream(self, request: Request) -> Response:
        return await cast(Page, self.get_blocks()).streams.answer(request)

    def build_middleware_stack(self) -> ASGIApp:
        """Return the app behind all middleware. Starlette calls it once, before the first request."""
        origins = AllowedHosts(self._host, lambda: self._public_url or self.get_blocks().share_url)
        app: ASGIApp = limits.PageOwnerMiddleware(
            super().build_middleware_stack(), alone=self._log_ins is None
        )
        app = limits.ConcurrencyMiddleware(limits.JsonMiddleware(app, lambda: self.get_blocks().fns))
        if self._log_ins:
            app = LoginMiddleware(
                app, self._log_ins, origins, starting=lambda: not self.startup_events_triggered
            )
        app = limits.BodySizeMiddleware(app)
        if self._before:
            app = self._before(app, origins.is_local)
        return OwnOriginOnly(SameOriginMiddleware(app, origins), origins)


def login(host: str, public: bool, asked: bool, store: Store) -> tuple[LoginSessions, str] | None:
    """Return login sessions and a fresh guest password if a login is needed; None on loopback unless asked for."""
    if public or asked or not is_loopback(host):
        password = secrets.token_urlsafe(24)
        return LoginSessions(Members(store, password)), password
    return None


def serve(
    app: gr.Blocks,
    log_ins: LoginSessions | None = None,
    host: str = "127.0.0.1",
    before: Before | None = None,
    *,
    port: int | None = None,
    share: bool = False,
    public_url: str = "",
) -> tuple[str, str | None]:
    """Serve the page in a thread; return its address and public link. `port` None: a free one. Raises OSError."""
    options: dict[str, Any] = {
        "server_name": f"[{host}]" if ":" in host and "[" not in host else host,
        "theme": gr.themes.Base(primary_hue="indigo", font=_SANS, font_mono=_MONO).set(**_BEHIND),
        "css": style(),
        "head": _HEAD,
        "favicon_path": ASSETS / "icon.svg",
        "footer_links": [],
        "run_history": False,
        "enable_monitoring": False,
        "mcp_server": False,
        "pwa": False,  # it would only add advice to a view of Gradio's that is switched off here; see manifest.json
        "ssr_mode": False,
        "quiet": True,
        "max_file_size": 1,
        "state_session_capacity": MOST_PAGES,
        "_app": ProtectedApp(host, log_ins, before, public_url),
    }
    templates.env.loader = OurTemplates(STATIC_TEMPLATE_LIB)
    templates.env.globals["hc_first"] = lambda request: request.app.get_blocks().first_screen(request)
    _, local, public = app.launch(server_port=port, share=share, prevent_thread_lock=True, **options)
    limits.limit_connections(app.server.config)
    return local, public
