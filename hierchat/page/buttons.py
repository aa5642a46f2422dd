"""Draw buttons in generated HTML. The script honours only this process's key: nothing a model writes can press one."""

from __future__ import annotations

import html
import json
import re
import secrets

from hierchat.config import shipped
from hierchat.language import COOKIE, THIS, _

KEY = secrets.token_hex(16)
EVENTS = (
    "hc_open", "hc_go", "hc_panel", "hc_more", "hc_rename", "hc_pin", "hc_archive", "hc_show_archived", "hc_delete",
    "hc_restore", "hc_fork", "hc_again", "hc_continue", "hc_edit", "hc_sources", "hc_branch", "hc_example", "hc_forget",
    "hc_earlier", "hc_latest",
    "hc_sources_load",
    "hc_incognito", "hc_incognito_keep", "hc_setup", "hc_result", "hc_result_delete",
    "hc_keep", "hc_preset_new", "hc_preset_save", "hc_preset_rename", "hc_preset_delete", "hc_preset_default",
    "hc_settings_back",
    "hc_attached", "hc_detach", "hc_inline", "hc_kept", "hc_attachment", "hc_next_edit", "hc_next_cancel", "hc_count",
    "hc_tags", "hc_titled", "hc_edit_reply", "hc_import", "hc_import_stop", "hc_export", "hc_follow", "hc_watch",
    "hc_model_fetch", "hc_model_stop", "hc_model_load", "hc_model_eject", "hc_model_remove", "hc_model_removed",
    "hc_model_keep", "hc_model_add", "hc_model_draft", "hc_model_undraft", "hc_model_cancel", "hc_model_heard",
    "hc_hub_search", "hc_hub_look", "hc_hub_less", "hc_hub_leave", "hc_hub_take",
    "hc_texts_look", "hc_texts_files", "hc_texts_add", "hc_texts_again", "hc_texts_watch", "hc_texts_stop",
    "hc_texts_remove", "hc_texts_removed", "hc_texts_keep", "hc_end_session",
    "hc_learned_delete", "hc_learned_deleted", "hc_learned_keep", "hc_typing", "hc_dismiss",
)  # fmt: skip
"""Actions that reach the server; those that copy stay in the browser."""
ASSETS = shipped("assets")


def button(act: str, label: str, *, id: int = 0, text: str = "", css: str = "", **attributes: str) -> str:
    """A button that does `act` to the thing with this id; `label` is text, `text` travels along."""
    extra = "".join(f' {name.replace("_", "-")}="{html.escape(value)}"' for name, value in attributes.items())
    # A bare carriage return would reach the page as a line feed.
    carried = f' data-text="{html.escape(text)}"'.replace("\r", "&#13;") if text else ""
    return (
        f'<button type="button" class="hc-act {css}" data-act="{act}" data-key="{KEY}" data-id="{id}"'
        f"{carried}{extra}>{html.escape(label)}</button>"
    )


_SAID = re.compile(r"(?<![\w.])_\('((?:[^'\\]|\\.)+)'")
_SCRIPTS = (
    "language", "buttons", "watch", "dialog", "copy", "sidebar", "list", "menu", "undo", "scroll", "details",
    "edit", "drawer", "keys", "shortcuts", "spoken", "unsent", "attach", "address", "theme", "forget",
    "comparisons", "hit", "origin", "login", "connection", "tags", "titles", "transfer", "going_on", "models",
    "own_texts", "learning", "thought", "notices",
)  # fmt: skip
"""Parts of the page's script, in order: all share one scope."""
_STYLES = (
    "palette", "base", "buttons", "sidebar", "main", "thread", "markdown", "figures", "sources", "status", "composer",
    "attach", "compare", "dialogs", "menu", "panels", "incognito", "insights", "comparisons", "drawer", "chats",
    "going_on", "models", "own_texts", "learning", "account", "thought", "narrow",
)  # fmt: skip


def script() -> str:
    """The page's script with the key and its sentences filled in."""
    whole = "\n".join((ASSETS / "page" / f"{name}.js").read_text(encoding="utf-8") for name in _SCRIPTS)
    return (
        whole.replace("__KEY__", KEY)
        .replace("__EVENTS__", json.dumps(EVENTS))
        .replace("__LANGUAGE_COOKIE__", COOKIE)
        .replace(
            "__WORDS__",
            json.dumps({"": _(THIS), **{text: _(text) for text in said(whole)}}, ensure_ascii=False),
        )
    )


def said(script: str) -> list[str]:
    """The sentences of a script."""
    return sorted({found[1].replace("\\'", "'") for found in _SAID.finditer(script)})


def style() -> str:
    """The page's style sheet, but for the colours of sources."""
    return "\n".join((ASSETS / "style" / f"{name}.css").read_text(encoding="utf-8") for name in _STYLES)
