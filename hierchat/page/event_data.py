"""Read what a page sends with an event by its type. A program may send anything else, which is refused here."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import gradio as gr

from hierchat.access.files import files
from hierchat.language import _
from hierchat.page.page_sessions import Session

MOST_FILES = 1_000
"""That are sent at once; a folder that holds more is read where it lies."""
_LARGEST = 10**18
"""SQLite holds little more."""


class Foreign(Exception):
    """Raised for event data that no page of ours sends."""

    def __init__(self) -> None:
        super().__init__(_("The page sent something that cannot be understood. Load it again."))


class EventFields(dict[str, Any]):
    """Fields of an event's data. Reading a field that is missing raises Foreign."""

    def __missing__(self, name: str) -> Any:
        raise Foreign


@dataclass(frozen=True)
class Controls:
    compare: bool
    shown: str
    """The chat whose settings the panel shows, as the page tells it."""
    settings: list[Any]
    """The values of `ChatSettingsComponents.fields`."""


@dataclass(eq=False)
class PageEvent:
    """Event of a page: which page sent it, and its data."""

    request: gr.Request
    data: EventFields
    _session_of: Callable[[gr.Request], Session]
    _draw: Callable[[Session, dict[Any, Any]], None]
    _controls: Controls | None = None

    @property
    def controls(self) -> Controls:
        """Return the values of the page's controls. Raises Foreign if this event does not carry them."""
        if self._controls is None:
            raise Foreign
        return self._controls

    @cached_property
    def session(self) -> Session:
        """Return the session of the page that sent the event. Raises Stale."""
        return self._session_of(self.request)

    @property
    def user(self) -> int:
        """Return the id of the user behind the page. Raises Stale."""
        return self.session.user

    @property
    def id(self) -> int:
        """Return the id of the thing that was clicked. Raises Foreign."""
        return int(self.data["id"])

    @property
    def text(self) -> str:
        """Return the text that the event carries. Raises Foreign."""
        return str(self.data["text"])

    @property
    def step(self) -> int:
        """Return the number of the click: a later one of the same page has a higher number. 0: it was sent without."""
        return int(self.data.get("step", 0))

    @property
    def overtaken(self) -> bool:
        """Return whether a later click on a chat or a view has arrived before this one."""
        return self.session.overtaken(self.step)

    def draw(self, values: dict[Any, Any] | None = None) -> None:
        """Draw what changed on the page, and these values, while the handler goes on."""
        self._draw(self.session, values or {})

    @contextmanager
    def files(self, most: int) -> Iterator[list[Path]]:
        """Take the files uploaded for this event, which are deleted at its end. Raises TicketExpired and Foreign."""
        with ExitStack() as done:
            paths: list[Path] = []
            for ticket in self.data["tickets"][:most]:
                paths.append(files.take(ticket, self.session.name))
                done.callback(files.remove, paths[-1])
            yield paths

    def folder_of_files(self) -> Path:
        """Move the files uploaded for this event into one folder of their own, which the caller removes."""
        folder = files.place("texts").parent
        with self.files(MOST_FILES) as held:
            for path in held:
                names = (
                    path.with_stem(f"{path.stem} ({n})") if n > 1 else path for n in range(1, MOST_FILES + 2)
                )
                path.rename(next(place for one in names if not (place := folder / one.name).exists()))
        return folder


def whole(value: Any) -> int:
    """Return a value as a whole number, such as an id. Raises Foreign."""
    if isinstance(value, str) and len(value) < 20 and value.removeprefix("-").isdecimal():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= _LARGEST:
        raise Foreign
    return value


def parsed(text: str, kind: type) -> Any:
    """Parse JSON that holds a value of this type. Raises Foreign."""
    try:
        return of_type(json.loads(text), kind)
    except (ValueError, RecursionError) as error:
        raise Foreign from error


def of_type(value: Any, kind: type) -> Any:
    """Return the value itself. Raises Foreign if it is of another type."""
    if not isinstance(value, kind):
        raise Foreign
    return value


def fields(data: Any) -> EventFields:
    """Return the known fields of an event's data, each of its type; null counts as left out. Raises Foreign."""
    if not isinstance(data, dict):
        return EventFields()
    return EventFields(
        {name: read(data[name]) for name, read in _FIELDS.items() if data.get(name) is not None}
    )


def checked(values: Sequence[Any], components: Sequence[Any]) -> list[Any]:
    """Return the values of components, each checked by its component's kind. Raises Foreign."""
    if len(values) != len(components):
        raise Foreign
    return [_value(value, component) for value, component in zip(values, components, strict=True)]


def _value(value: Any, component: Any) -> Any:
    match component:
        case gr.Textbox() | gr.HTML():
            return "" if value is None else of_type(value, str)
        case gr.Checkbox():
            return of_type(value or False, bool)
        case gr.Radio() if value not in [choice for _, choice in component.choices]:
            raise Foreign
        case gr.Dropdown() if not isinstance(value, str | int | float | None):
            raise Foreign
    return value


def _text(value: Any) -> str:
    return str(value) if isinstance(value, int | float) else str(of_type(value, str))


def _words(value: Any) -> list[str]:
    return [str(of_type(one, str)) for one in of_type(value, list)]


_FIELDS: dict[str, Callable[[Any], Any]] = {
    "id": whole, "chat": whole, "size": whole, "step": whole, "tickets": _words, "text": _text,
    "name": _text, "key": _text, "title": _text, "pasted": _text, "data": _text, "on": partial(of_type, kind=bool),
}  # fmt: skip
"""All that scripts of the page send (assets/page)."""
