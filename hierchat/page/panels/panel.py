"""Define what every panel has: components in a column of the page, their handlers, and what it shows when it is
opened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import gradio as gr

from hierchat.language import _
from hierchat.page.buttons import button
from hierchat.page.page_sessions import Session

# preprocess: components check values themselves, before any handler of ours could answer with a sentence.
# show_progress_on: with none, Gradio 6.31 tells each output at each answer how far the event is, which takes a browser
# 30 ms for the outputs of a reply in progress, hidden or not.
QUIET: dict[str, Any] = {
    "show_progress": "hidden",
    "show_progress_on": [],
    "api_visibility": "private",
    "preprocess": False,
}
"""How every handler of the page is joined."""
SessionOf = Callable[[gr.Request], tuple[Session, int]]
"""The page that asks and the user behind it. Raises sessions.Stale."""


class Panel(Protocol):
    """One panel. Handlers that it joins are covered by the page's guard like all others."""

    name: str
    """In the address."""
    title: str

    def build(self) -> None:
        """Make its components, inside the column that is open."""

    def wire(self, session_of: SessionOf, live: Any) -> None:
        """Join its controls to their handlers. The owner comes from `session_of`, never from a component.

        `live`: where the page says what went wrong, an output of every handler.
        """

    @property
    def outputs(self) -> list[Any]:
        """The components that `show` may change."""

    def show(self, user_id: int) -> dict[Any, Any]:
        """Draw what stands in it now, each time that it is opened."""


def links(panels: Sequence[Panel], current: str = "") -> str:
    """Draw the links to all panels, the open one marked."""

    def way(panel: Panel) -> str:
        marks: dict[str, Any] = {"aria_current": "page"} if panel.name == current else {}
        return f"<li>{button('hc_panel', _(panel.title), text=panel.name, css='hc-link', **marks)}</li>"

    entries = "".join(way(panel) for panel in panels)
    return f'<nav class="hc-links" aria-label="{_("Views")}"><ul>{entries}</ul></nav>'
