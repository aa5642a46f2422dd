"""Read what a page sends along with an event by its type. A program may send anything in its place, which is refused
before a handler works on it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import gradio as gr

from hierchat.language import _

_LARGEST = 10**18
"""SQLite holds little more."""


class Foreign(Exception):
    """Something that no page of ours sends."""

    def __init__(self) -> None:
        super().__init__(_("The page sent something that cannot be understood. Load it again."))


def whole(value: Any) -> int:
    """A whole number, such as an id. Raises Foreign."""
    if isinstance(value, str) and len(value) < 20 and value.removeprefix("-").isdecimal():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= _LARGEST:
        raise Foreign
    return value


def record(text: str) -> dict[str, Any]:
    """A JSON object in a text. Raises Foreign."""
    return of_type(_parsed(text), dict)


def records(text: str) -> list[dict[str, Any]]:
    """A JSON array of objects in a text. Raises Foreign."""
    return [of_type(one, dict) for one in of_type(_parsed(text), list)]


class EventFields(dict[str, Any]):
    """The data of an event. Raises Foreign where a field is missing."""

    def __missing__(self, name: str) -> Any:
        raise Foreign


def given(data: Any) -> EventFields:
    """The fields that hierchat's page sends, each of its type; null counts as left out. Raises Foreign."""
    if not isinstance(data, dict):
        return EventFields()
    return EventFields(
        {name: read(data[name]) for name, read in _FIELDS.items() if data.get(name) is not None},
    )


def values(args: Sequence[Any], components: Sequence[Any]) -> list[Any]:
    """A handler's arguments with those from `components` read by their kinds, and the event's data. Raises Foreign."""
    left = iter(components)
    return [
        _event(arg) if isinstance(arg, gr.EventData | gr.Request) else _value(arg, next(left, None))
        for arg in args
    ]


def _event(arg: Any) -> Any:
    if type(arg) is gr.EventData:
        arg._data = given(arg._data)
    return arg


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


def _flag(value: Any) -> bool:
    return bool(of_type(value, bool))


def _words(value: Any) -> list[str]:
    return [str(of_type(one, str)) for one in of_type(value, list)]


def of_type(value: Any, kind: type) -> Any:
    """The value itself. Raises Foreign where it is of another type."""
    if not isinstance(value, kind):
        raise Foreign
    return value


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Foreign from error


_FIELDS = {
    "id": whole, "chat": whole, "size": whole, "step": whole, "on": _flag, "tags": _words, "tickets": _words,
    "text": _text, "name": _text, "key": _text, "title": _text, "pasted": _text, "data": _text,
}  # fmt: skip
"""All that scripts of the page send (assets/page)."""
