"""The page: its parts joined to their handlers."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import gradio as gr
from gradio.routes import App, ORJSONResponse
from starlette.datastructures import MutableHeaders
from starlette.responses import FileResponse, JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hierchat.access.files import files, give_out, take_in, take_model
from hierchat.access.files import sweep as sweep_dropped
from hierchat.access.hosts import AllowedHosts, SameOriginMiddleware, is_loopback
from hierchat.access.limits import (
    BodySizeMiddleware,
    ConcurrencyMiddleware,
    JsonMiddleware,
    PageOwnerMiddleware,
    limit_connections,
)
from hierchat.access.login import USER, LoginMiddleware
from hierchat.access.login_sessions import LoginSessions
from hierchat.access.members import Members
from hierchat.engine.scheduler import MOST_WAITING
from hierchat.language import marked
from hierchat.page import account, components
from hierchat.page.buttons import ASSETS, style
from hierchat.page.comparison_view import SetupHandlers
from hierchat.page.composer import AttachingHandlers
from hierchat.page.figures import css as source_css
from hierchat.page.guard import Guard, Page, Speaks
from hierchat.page.handlers import Handlers
from hierchat.page.organising import OrganisingHandlers
from hierchat.page.page_sessions import MOST_PAGES
from hierchat.page.panels.comparisons_panel import ComparisonsPanel
from hierchat.page.panels.insights_panel import InsightsPanel
from hierchat.page.panels.models_panel import ModelsPanel
from hierchat.page.panels.panel import QUIET, Panel
from hierchat.page.panels.settings_panel import SettingsPanel
from hierchat.page.panels.transfer_panel import TransferHandlers
from hierchat.page.preset_handlers import PresetHandlers
from hierchat.page.reply_handlers import ReplyHandlers
from hierchat.page.unsent import KeptFiles
from hierchat.runtime.model_slot import PLACES
from hierchat.store import Store

if TYPE_CHECKING:
    from hierchat.chat.service import ChatService


# Replies wait below the page, for the engine; so all of them may run here. Those that another page
# asked for are followed apart, so that they keep none from being asked.
_ENGINE: dict[str, Any] = {**QUIET, "concurrency_id": "engine", "concurrency_limit": MOST_WAITING + PLACES}
_FOLLOW: dict[str, Any] = {**QUIET, "concurrency_id": "follow", "concurrency_limit": MOST_WAITING + PLACES}

# One step after the other, and the last one counts. Gradio 6.31's "always_last" would run the first click again.
_STEP: dict[str, Any] = {
    **QUIET,
    "trigger_mode": "multiple",
    "concurrency_id": "step",
    "concurrency_limit": 1,
}

# After every event Gradio would sum up the last 10,000, for a view that is switched off here.
_NO_SUMS = {"GRADIO_ANALYTICS_MAX_EVENTS": "1", "GRADIO_ANALYTICS_CACHE_FREQUENCY": str(10**9)}


def build_app(service: ChatService, place: str, log_ins: LoginSessions | None = None) -> gr.Blocks:
    """The page over a chat service; `place` is where the data lies, for the eye; `log_ins`: where there is a login."""
    os.environ |= _NO_SUMS
    page = Page(title="hierchat", analytics_enabled=False, fill_width=True, fill_height=True)
    with page as app, marked():
        models = ModelsPanel(service, shared=lambda: bool(app.share_url))
        settings_panel = SettingsPanel(service, log_ins)
        comparisons = ComparisonsPanel(service)
        panels: list[Panel] = [models, InsightsPanel(service), comparisons, settings_panel]
        p = components.build(service.models.names, place, log_ins is not None, panels)
        handlers = Handlers(service, app, p, panels)
        page.fresh = {p.model._id: handlers.picker}
        unsent = KeptFiles()
        replies = ReplyHandlers(service, p, handlers.views, handlers.sessions, handlers.session_of, unsent)
        attaching = AttachingHandlers(service, p, handlers.views, handlers.session_of, unsent)
        organising = OrganisingHandlers(service, p, handlers.views, handlers.session_of)
        presets = PresetHandlers(service, p, handlers.views, handlers.session_of)

        middle = [
            p.empty,
            p.tiny,
            p.chat,
            p.thread,
            p.growing,
            p.versus,
            p.context,
            p.title,
            p.bus,
            p.links,
            p.tray,
        ]
        middle += [p.incognito, *p.panels.values(), *(output for panel in panels for output in panel.outputs)]
        chats = [p.list, p.undo, p.footer]
        columns = [component for pair in p.columns.values() for component in pair]
        buttons = [p.send, p.stop]
        every = [*middle, *chats, *columns, *buttons, p.live, p.box]
        every += p.settings.components
        every += [p.verdict, p.asked, p.result, p.back, p.cue]
        asking, settled = [p.compare, p.query], [p.box, p.live, p.tray, *buttons]
        settings = [p.bus, *p.settings.fields]

        polled = [p.host, p.timer, p.model, p.pair, p.settings.thinks]
        loaded = app.load(handlers.load, None, [*every, *polled, p.pulse], **QUIET)
        app.unload(handlers.unload)
        p.pulse.tick(handlers.pulse, None, p.cue, queue=False, **QUIET)
        p.bus.hc_watch(handlers.watch, None, every, trigger_mode="always_last", **QUIET)
        # The panel looks after the poll that may have ended the timer: so it never misses the end.
        polling: dict[str, Any] = {"outputs": [*polled, p.live, p.tiny], **QUIET}
        p.timer.tick(handlers.poll, None, **polling).then(
            models.tick, None, [*models.outputs, p.live], **QUIET
        ).then(handlers.loaded, None, [p.thread, p.live], **QUIET)
        p.model.select(handlers.choose, [p.model, p.query, *p.settings.fields], [*every, *polled], **QUIET)
        p.bus.hc_sources_load(
            handlers.load_for_sources, [p.query, *p.settings.fields], [*every, *polled], **QUIET
        )
        for name, does in models.acts.items():
            # Each press counts, one after the other: an answer of several steps is still under way when it is seen.
            pressed: dict[str, Any] = {"trigger_mode": "multiple", "concurrency_limit": 1, **QUIET}
            done = getattr(p.bus, name)(does, None, [*models.outputs, p.live], **pressed)
            done.then(handlers.poll, None, **polling).then(
                models.tick, None, [*models.outputs, p.live], **QUIET
            )

        # "multiple": a message may wait for the reply in another chat.
        for trigger in (p.box.submit, p.send.click):
            sent = trigger(
                replies.send, [p.box, *asking, *settings], every, trigger_mode="multiple", **_ENGINE
            )
            sent.then(handlers.settle, p.box, settled, trigger_mode="always_last", **QUIET)
        for ask, asks in ((p.bus.hc_example, replies.example), (p.bus.hc_edit, replies.edit)):
            sent = ask(asks, [*asking, *settings], every, trigger_mode="multiple", **_ENGINE)
            sent.then(handlers.settle, p.box, settled, trigger_mode="always_last", **QUIET)
        for go_on, goes_on in ((p.bus.hc_again, replies.again), (p.bus.hc_continue, replies.resume)):
            sent = go_on(goes_on, [p.query, *settings], every, trigger_mode="multiple", **_ENGINE)
            sent.then(handlers.settle, p.box, settled, trigger_mode="always_last", **QUIET)
        followed = p.bus.hc_follow(replies.follow, None, every, trigger_mode="multiple", **_FOLLOW)
        followed.then(handlers.settle, p.box, settled, trigger_mode="always_last", **QUIET)
        p.stop.click(handlers.stop, None, every, queue=False, **QUIET)
        p.bus.hc_dismiss(handlers.dismiss, None, p.live, **QUIET)

        steps = [
            p.new.click(handlers.new, p.query, every, **_STEP),
            p.bus.hc_open(handlers.open, p.query, every, **_STEP),
            p.bus.hc_go(handlers.go, p.query, every, **_STEP),
            p.bus.hc_panel(handlers.panel, p.query, [*every, p.timer], **_STEP),
        ]
        for answered in (loaded, *steps):
            answered.then(None, js="() => window.hcArrived?.()", trigger_mode="multiple", **QUIET)
        p.bus.hc_incognito(handlers.incognito, None, every, **QUIET)
        p.bus.hc_incognito_keep(handlers.keep_incognito, p.query, every, **QUIET)
        p.bus.hc_more(handlers.more, p.query, every, **QUIET)
        for act, does in (
            (p.bus.hc_rename, organising.rename), (p.bus.hc_pin, organising.pin),
            (p.bus.hc_archive, organising.archive), (p.bus.hc_show_archived, organising.show_archived),
            (p.bus.hc_delete, organising.delete), (p.bus.hc_restore, organising.restore),
            (p.bus.hc_fork, organising.fork),
        ):  # fmt: skip
            act(does, p.query, every, **QUIET)
        p.bus.hc_forget(handlers.forget, p.query, every, **QUIET)
        p.bus.hc_earlier(handlers.earlier, None, every, **QUIET)
        p.bus.hc_latest(handlers.latest, None, every, **QUIET)
        p.bus.hc_branch(handlers.branch, None, every, **QUIET)
        p.bus.hc_sources(handlers.sources, None, every, **QUIET)
        above = [p.tray, p.live]
        p.bus.hc_attached(attaching.attach, None, above, trigger_mode="multiple", **QUIET)
        p.bus.hc_kept(attaching.again, None, above, **QUIET)
        p.bus.hc_detach(attaching.detach, None, above, trigger_mode="multiple", **QUIET)
        p.bus.hc_inline(attaching.inline, p.box, [*above, p.box], **QUIET)
        p.bus.hc_next_edit(attaching.edit_next, p.box, [*above, p.box], **QUIET)
        p.bus.hc_next_cancel(attaching.cancel_next, None, above, **QUIET)
        p.bus.hc_count(
            attaching.count, [p.box, *settings], [p.count, *above], trigger_mode="always_last", **QUIET
        )
        p.bus.hc_attachment(attaching.show, None, every, **QUIET)
        p.query.change(handlers.search, p.query, every, trigger_mode="always_last", **QUIET)
        p.compare.change(handlers.compare, p.compare, every, **QUIET)
        p.back.click(handlers.back, None, every, **QUIET)
        setup = SetupHandlers(handlers.session_of, p.setup)
        # Each change, one after the other: the last one counts.
        p.bus.hc_setup(
            setup.choose, None, [p.setup, p.live], trigger_mode="multiple", concurrency_limit=1, **QUIET
        )
        comparisons.listen(p.bus, handlers.session_of, p.live)
        settings_panel.texts.wire(p.bus, handlers.session_of, p.live)
        settings_panel.learning.wire(p.bus, handlers.session_of, p.live)

        kept = [*p.settings.components, p.live]
        p.bus.hc_keep(presets.keep, settings, kept, trigger_mode="always_last", **QUIET)
        p.bus.hc_settings_back(presets.bring_back, None, kept, **QUIET)
        p.settings.preset.input(presets.choose, settings, kept, **QUIET)
        for asked, answers in (
            (p.bus.hc_preset_new, presets.create), (p.bus.hc_preset_save, presets.save),
            (p.bus.hc_preset_rename, presets.rename), (p.bus.hc_preset_delete, presets.delete),
            (p.bus.hc_preset_default, presets.default),
        ):  # fmt: skip
            asked(answers, settings, kept, **QUIET)
        for panel in panels:
            panel.wire(handlers.session_of, p.live)
        settings_panel.connected.wire(p.bus, handlers.session_of, p.live)
        if log_ins is not None:
            account.wire(app, p.account, settings_panel.password)
            log_ins.on_end.append(partial(account.forget_guest, service, unsent))
        organising.wire(every, QUIET)
        TransferHandlers(service, p, settings_panel.transfer, handlers.views, handlers.session_of).wire(
            every, QUIET
        )
        Guard(p, handlers.views, handlers.session_of).cover(app)
    # What Gradio itself may queue: replies over all pages, and the short handlers beside them.
    app.queue(max_size=64, default_concurrency_limit=8)
    return app


# How the page is served: theme, headers that keep it to its own origin, and who must log in.


Before = Callable[[ASGIApp, Callable[[Scope], bool]], ASGIApp]
"""Puts an app in front of the page's; the second argument tells whether a request was made on this machine."""
# Gradio needs inline scripts and eval; what matters is that nothing leaves for another origin.
_POLICY = (
    "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; object-src 'none'; base-uri 'self'; "
    "form-action 'self'; frame-ancestors 'self'"
)
# What a browser reads to install the page as an app. Gradio's own has no identity, no colours, and no icon that
# Windows, Android and iOS can draw.
_MANIFEST = {
    "id": "/", "name": "hierchat", "short_name": "hierchat", "start_url": "./", "scope": "./",
    "description": "A private chat with a language model on your own machine.",
    "display": "standalone", "theme_color": "#f7f7f8", "background_color": "#ffffff",
    "icons": [{"src": "icon.png", "sizes": "512x512", "type": "image/png"}],
}  # fmt: skip
_HEAD = (  # the frame of a dark window: --hc-side of palette.css. Of metas of one name Gradio keeps one alone
    '<meta name="theme-color" content="#121215" media="(prefers-color-scheme: dark)">'
    '<link rel="apple-touch-icon" href="icon.png">'
)
_SANS = ["system-ui", "-apple-system", "Segoe UI", "Roboto", "Ubuntu", "Noto Sans", "sans-serif"]
_MONO = ["ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "DejaVu Sans Mono", "monospace"]


class OwnOriginOnly:
    """Adds a content security policy to every answer, so that no reply can make the browser fetch elsewhere."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_policy(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["Content-Security-Policy"] = _POLICY
                headers.setdefault("Referrer-Policy", "no-referrer")
                headers["X-Content-Type-Options"] = "nosniff"
            await send(message)

        await self._app(scope, receive, with_policy if scope["type"] == "http" else send)


class ProtectedApp(App):
    """Puts access control in front of Gradio's app and its own middleware, which answers some requests itself."""

    def __init__(self, host: str, log_ins: LoginSessions | None, before: Before | None = None) -> None:
        """`before`: what answers other programs, in front of the login; it checks keys itself."""
        super().__init__(
            auth_dependency=(lambda request: request.scope.get(USER)) if log_ins else None,
            default_response_class=ORJSONResponse,
            openapi_url=None,
        )
        self._host = host
        self._log_ins = log_ins
        self._before = before
        manifest = JSONResponse(_MANIFEST, media_type="application/manifest+json")
        for path, file in (("/manifest.json", manifest), ("/icon.png", FileResponse(ASSETS / "icon.png"))):
            self.router.routes.append(Route(path, file, methods=["GET"]))
        self.add_route("/transfer/in", take_in, methods=["POST"])
        self.add_route("/transfer/out/{ticket}", give_out, methods=["GET"])
        self.add_route("/models/{name}", take_model, methods=["PUT"])

    def build_middleware_stack(self) -> ASGIApp:
        """Starlette asks for it once, before the first request."""
        origins = AllowedHosts(self._host, share=lambda: self.get_blocks().share_url)
        app: ASGIApp = super().build_middleware_stack()
        app = PageOwnerMiddleware(app) if self._log_ins else app
        app = ConcurrencyMiddleware(JsonMiddleware(app, lambda: self.get_blocks().fns))
        if self._log_ins:
            app = LoginMiddleware(
                app, self._log_ins, origins, starting=lambda: not self.startup_events_triggered
            )
        app = BodySizeMiddleware(app)
        if self._before:
            app = self._before(app, origins.is_local)
        return OwnOriginOnly(SameOriginMiddleware(Speaks(app), origins))


def login(host: str, share: bool, asked: bool, store: Store) -> tuple[LoginSessions, str] | None:
    """Who is logged in, and a fresh password for guests, where a login is needed; None on loopback unless asked for."""
    if share or asked or not is_loopback(host):
        password = secrets.token_urlsafe(24)
        return LoginSessions(Members(store, password)), password
    return None


def sweep() -> None:
    """Remove files on their way that processes left that were killed."""
    files.sweep()
    sweep_dropped()


def serve(
    app: gr.Blocks,
    log_ins: LoginSessions | None = None,
    host: str = "127.0.0.1",
    before: Before | None = None,
    *,
    port: int | None = None,
    share: bool = False,
) -> tuple[str, str | None]:
    """Serve the page in a thread of its own. Returns its address and its public link. `port` None: a free one. Raises
    OSError."""
    _, local, public = app.launch(
        server_port=port, share=share, prevent_thread_lock=True, **_options(log_ins, host, before)
    )
    limit_connections(app.server.config)
    return local, public


def _options(log_ins: LoginSessions | None, host: str, before: Before | None) -> dict[str, Any]:
    return {
        "server_name": f"[{host}]" if ":" in host and "[" not in host else host,
        "theme": gr.themes.Base(primary_hue="indigo", font=_SANS, font_mono=_MONO),
        "css": source_css() + style(),
        "head": _HEAD,
        "favicon_path": ASSETS / "icon.svg",
        "footer_links": [],
        "run_history": False,
        "enable_monitoring": False,
        "mcp_server": False,
        "pwa": False,  # it would only add advice to a view of Gradio's that is switched off here; see _MANIFEST
        "ssr_mode": False,
        "quiet": True,
        "max_file_size": 1,
        "state_session_capacity": MOST_PAGES,
        "_app": ProtectedApp(host, log_ins, before),
    }
