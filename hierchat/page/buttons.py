"""Draw buttons in generated HTML. The script honours only this process's key: nothing a model writes can press one."""

import json
import re
import secrets
from typing import Any

from markupsafe import Markup, escape

from hierchat.config import shipped
from hierchat.language import COOKIE, THIS, _

KEY = secrets.token_hex(16)
ASSETS = shipped("assets")


def button(act: str, label: str, *, id: int = 0, text: str = "", css: str = "", **attributes: Any) -> Markup:
    """Return the HTML of a button that does `act` to the thing with this id; `label` is its text, `text` is
    sent along. An attribute that is None is left out."""
    given = {name.replace("_", "-"): value for name, value in attributes.items() if value is not None}
    extra = "".join(f' {name}="{escape(value)}"' for name, value in given.items())
    # A bare carriage return would reach the page as a line feed.
    carried = f' data-text="{escape(text)}"'.replace("\r", "&#13;") if text else ""
    return Markup(
        f'<button type="button" class="hc-act {css}" data-act="{act}" data-key="{KEY}" data-id="{id}"'
        f"{carried}{extra}>{escape(label)}</button>"
    )


_SAID = re.compile(r"(?<![\w.])_\('((?:[^'\\]|\\.)+)'")
_SCRIPTS = (
    "language", "buttons", "watch", "dialog", "copy", "sidebar", "list", "menu", "undo", "scroll", "details",
    "edit", "drawer", "keys", "shortcuts", "spoken", "unsent", "attach", "address", "theme", "forget",
    "comparisons", "hit", "origin", "login", "connection", "tags", "projects", "titles", "transfer", "going_on",
    "models", "own_texts", "learning", "thought", "notices",
)  # fmt: skip
"""Parts of the page's script, in order: all share one scope."""
_STYLES = (
    "palette", "glyphs", "base", "buttons", "sidebar", "main", "thread", "markdown", "figures", "sources", "status",
    "composer", "attach", "compare", "dialogs", "menu", "panels", "incognito", "insights", "comparisons", "drawer",
    "chats", "projects", "going_on", "models", "own_texts", "learning", "account", "thought", "narrow",
)  # fmt: skip


def script() -> str:
    """Return the page's script with this process's key and the translated sentences filled in."""
    whole = "\n".join((ASSETS / "page" / f"{name}.js").read_text(encoding="utf-8") for name in _SCRIPTS)
    words = json.dumps({"": _(THIS), **{text: _(text) for text in said(whole)}}, ensure_ascii=False)
    whole = whole.replace("__KEY__", KEY).replace("__LANGUAGE_COOKIE__", COOKIE)
    return whole.replace("__WORDS__", words)


def said(script: str) -> list[str]:
    """Return the sentences of a script that are to be translated."""
    return sorted({found[1].replace("\\'", "'") for found in _SAID.finditer(script)})


def style() -> str:
    """Return the page's style sheet without the colours of sources."""
    return "\n".join((ASSETS / "style" / f"{name}.css").read_text(encoding="utf-8") for name in _STYLES)
