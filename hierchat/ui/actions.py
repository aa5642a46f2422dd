"""Buttons inside generated HTML. The page's script honours only those that carry this process's key, so that
nothing a model writes can press one."""

from __future__ import annotations

import html
import secrets
from pathlib import Path

KEY = secrets.token_hex(16)
EVENTS = ("hc_open", "hc_rename", "hc_delete", "hc_again", "hc_edit", "hc_sources", "hc_branch", "hc_example")
"""Actions that reach the server; "hc_copy" stays in the browser."""
ASSETS = Path(__file__).resolve().parents[2] / "assets"


def button(act: str, label: str, *, id: int = 0, text: str = "", css: str = "", **attributes: str) -> str:
    """A button that does `act` to the thing with this id; `label` is text, `text` travels along."""
    extra = "".join(f' {name.replace("_", "-")}="{html.escape(value)}"' for name, value in attributes.items())
    carried = f' data-text="{html.escape(text)}"' if text else ""
    return (
        f'<button type="button" class="hc-act {css}" data-act="{act}" data-key="{KEY}" data-id="{id}"'
        f"{carried}{extra}>{html.escape(label)}</button>"
    )


def script() -> str:
    """The page's script with the key filled in."""
    return (ASSETS / "page.js").read_text(encoding="utf-8").replace("__KEY__", KEY)
