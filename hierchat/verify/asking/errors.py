"""Why a command cannot do what it was asked for. Each message is for the user."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path


class RequestError(Exception):
    """What was asked for cannot be done, or not in this way."""


def unreadable(path: Path, error: OSError | ValueError) -> str:
    """A file that could not be read, or is not what it should be, as a sentence."""
    if isinstance(error, OSError):
        return f"{path} cannot be read ({error.strerror})."
    if isinstance(error, UnicodeDecodeError):
        return f"{path} is no text in UTF-8. Is it the right file?"
    return f"{path} is no JSON ({error}). Is it the right file?"


def unknown(what: str, name: str, known: Iterable[str]) -> RequestError:
    """The error about a name that is none of `known`, with the nearest of them."""
    names = list(known)
    near = difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.5)
    hint = f"Did you mean {' or '.join(near)}?" if near else f"There are {', '.join(names)}."
    return RequestError(f"No {what} is called {name!r}. {hint}")
