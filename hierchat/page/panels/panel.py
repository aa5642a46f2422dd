"""What every panel has: components in a column of the page, their handlers, and what it shows when it is opened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from hierchat.page.guard import PageEvents
    from hierchat.page.page_sessions import Session


class PanelPart(Protocol):
    """Components that belong together, with their handlers. A panel is one, and may have more inside."""

    @property
    def outputs(self) -> list[Any]:
        """The components that `show` may change."""

    def build(self) -> None:
        """Make its components, inside the column that is open."""

    def wire(self, page: PageEvents) -> None:
        """Join its controls to their handlers, each by `page.on`."""

    def show(self, session: Session) -> dict[Any, Any]:
        """Draw what stands in it now, each time that its panel is opened."""


class Panel(PanelPart, Protocol):
    """What stands on the screen in place of a conversation."""

    name: str
    """In the address."""
    title: str
