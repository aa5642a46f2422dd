"""Settings: how the page looks, and where everything lies."""

from __future__ import annotations

import html
from typing import Any

import gradio as gr

from hierchat.ui.panels.panel import Who

THEMES = (("As the system", "system"), ("Light", "light"), ("Dark", "dark"))


class SettingsPanel:
    """The panel."""

    name = "settings"
    title = "Settings"

    def __init__(self, place: str) -> None:
        self._place = place

    def build(self) -> None:
        """Its components."""
        # The choice belongs to this browser, not to the account: the page's script keeps it (theme.js).
        choices = "".join(
            f'<label><input type="radio" name="hc-theme" value="{value}">{name}</label>'
            for name, value in THEMES
        )
        gr.HTML(f'<fieldset class="hc-choice" id="hc-theme"><legend>Theme</legend>{choices}</fieldset>')
        gr.HTML(
            f'<h2>Your data</h2><p class="hc-quiet">Everything lies on this machine, in '
            f'<span class="hc-path">{html.escape(self._place)}</span>.</p>'
        )

    def wire(self, who: Who) -> None:
        """Nothing reaches the server."""

    @property
    def outputs(self) -> list[Any]:
        """Nothing changes."""
        return []

    def show(self, user_id: int) -> dict[Any, Any]:
        """Nothing changes."""
        return {}
