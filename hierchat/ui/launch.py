"""How the page is served: theme, headers that keep it to its own origin, and who must log in."""

from __future__ import annotations

import ipaddress
import secrets
from typing import Any

import gradio as gr
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hierchat.ui.actions import ASSETS
from hierchat.ui.sources import css as source_css

LOGIN_NAME = "me"
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
                headers["Referrer-Policy"] = "no-referrer"
                headers["X-Content-Type-Options"] = "nosniff"
            await send(message)

        await self._app(scope, receive, with_policy if scope["type"] == "http" else send)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server on `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def login(host: str, share: bool, asked: bool) -> tuple[str, str] | None:
    """A name and a fresh password where one is needed; None on loopback unless asked for."""
    if share or asked or not is_loopback(host):
        return LOGIN_NAME, secrets.token_urlsafe(24)
    return None


def options(auth: tuple[str, str] | None = None) -> dict[str, Any]:
    """Arguments of Blocks.launch that are the same in the app and in its tests."""
    return {
        "theme": gr.themes.Base(primary_hue="indigo", font=_SANS, font_mono=_MONO),
        "css": source_css() + (ASSETS / "page.css").read_text(encoding="utf-8"),
        "favicon_path": ASSETS / "icon.svg",
        "footer_links": [],
        "run_history": False,
        "enable_monitoring": False,
        "mcp_server": False,
        "pwa": False,
        "ssr_mode": False,
        "quiet": True,
        "max_file_size": 1,
        "auth": auth,
        "app_kwargs": {"middleware": [Middleware(OwnOriginOnly)], "docs_url": None, "redoc_url": None},
    }
