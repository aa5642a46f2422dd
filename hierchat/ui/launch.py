"""How the page is served: theme, headers that keep it to its own origin, and who must log in."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import gradio as gr
from gradio.routes import App, ORJSONResponse
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hierchat.store import Store
from hierchat.ui.actions import ASSETS, style
from hierchat.ui.doors.connections import bound
from hierchat.ui.doors.dropped import sweep as sweep_dropped
from hierchat.ui.doors.dropped import take_model
from hierchat.ui.doors.files import files, give_out, take_in
from hierchat.ui.doors.limits import Bodies, Sound, Turns
from hierchat.ui.doors.login import USER, Login
from hierchat.ui.doors.members import Members
from hierchat.ui.doors.origins import Origins, OwnOrigins, is_loopback
from hierchat.ui.doors.pages import OwnPages
from hierchat.ui.doors.sessions import LogIns
from hierchat.ui.sessions import MOST_PAGES
from hierchat.ui.sources import css as source_css
from hierchat.ui.speaking import Speaks

Before = Callable[[ASGIApp, Callable[[Scope], bool]], ASGIApp]
"""Puts an app in front of the page's; the second argument tells whether a request was made on this machine."""
# Gradio needs inline scripts and eval; what matters is that nothing leaves for another origin.
_POLICY = (
    "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; object-src 'none'; base-uri 'self'; "
    "form-action 'self'; frame-ancestors 'self'"
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


class DooredApp(App):
    """Gradio's app behind our doors, which stand before its own middleware, too: that answers some requests itself."""

    def __init__(self, host: str, log_ins: LogIns | None, before: Before | None = None) -> None:
        """`before`: what answers other programs, in front of the login; it has a door of its own."""
        super().__init__(
            auth_dependency=(lambda request: request.scope.get(USER)) if log_ins else None,
            default_response_class=ORJSONResponse,
            openapi_url=None,
        )
        self._host = host
        self._log_ins = log_ins
        self._before = before
        self.add_route("/transfer/in", take_in, methods=["POST"])
        self.add_route("/transfer/out/{ticket}", give_out, methods=["GET"])
        self.add_route("/models/{name}", take_model, methods=["PUT"])

    def build_middleware_stack(self) -> ASGIApp:
        """Starlette asks for it once, before the first request."""
        origins = Origins(self._host, share=lambda: self.get_blocks().share_url)
        app: ASGIApp = super().build_middleware_stack()
        app = OwnPages(app) if self._log_ins else app
        app = Turns(Sound(app, lambda: self.get_blocks().fns))
        if self._log_ins:
            app = Login(app, self._log_ins, origins, starting=lambda: not self.startup_events_triggered)
        app = Bodies(app)
        if self._before:
            app = self._before(app, origins.is_local)
        return OwnOriginOnly(OwnOrigins(Speaks(app), origins))


def login(host: str, share: bool, asked: bool, store: Store) -> tuple[LogIns, str] | None:
    """Who is logged in, and a fresh password for guests, where a login is needed; None on loopback unless asked for."""
    if share or asked or not is_loopback(host):
        password = secrets.token_urlsafe(24)
        return LogIns(Members(store, password)), password
    return None


def sweep() -> None:
    """Remove files on their way that processes left that were killed."""
    files.sweep()
    sweep_dropped()


def serve(
    app: gr.Blocks,
    log_ins: LogIns | None = None,
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
    bound(app.server.config)
    return local, public


def _options(log_ins: LogIns | None, host: str, before: Before | None) -> dict[str, Any]:
    return {
        "server_name": f"[{host}]" if ":" in host and "[" not in host else host,
        "theme": gr.themes.Base(primary_hue="indigo", font=_SANS, font_mono=_MONO),
        "css": source_css() + style(),
        "favicon_path": ASSETS / "icon.svg",
        "footer_links": [],
        "run_history": False,
        "enable_monitoring": False,
        "mcp_server": False,
        "pwa": False,
        "ssr_mode": False,
        "quiet": True,
        "max_file_size": 1,
        "state_session_capacity": MOST_PAGES,
        "_app": DooredApp(host, log_ins, before),
    }
