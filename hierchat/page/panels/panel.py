"""Define panels: components in a column of the page, their handlers, and what they show when opened."""

from abc import ABC, abstractmethod
from typing import Any

import gradio as gr

from hierchat.chat.service import ChatService
from hierchat.page.page_sessions import Session


class PanelPart(ABC):
    """Components that belong together, with their handlers. A panel is one, and may have more inside."""

    outputs: list[Any]
    """The components that `show` may change, as `build` made them."""

    def __init__(self, service: ChatService) -> None:
        self._service = service

    @abstractmethod
    def build(self) -> None:
        """Make the part's components, inside the column that is open."""

    def wire(self, page: Any) -> None:  # noqa: B027  a part may have nothing to press
        """Connect the part's controls to their handlers, each by `page.on` of these guard.PageEvents."""

    def show(self, session: Session) -> dict[Any, Any]:
        """Return the updates that draw the part, each time that its panel is opened; empty if nothing changed."""
        return {}


class Panel(PanelPart):
    """Part that fills the screen in place of a conversation."""

    name: str
    """In the address."""
    title: str


def still(elem_id: str) -> Any:
    """Make a component for HTML in our own style. Gradio changes only those nodes that differ from the value before."""
    return gr.HTML("", elem_id=elem_id, apply_default_css=False, js_on_load=None)
