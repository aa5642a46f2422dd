"""The programs whose files can be read. A file's kind is told by what is in it, not by its name."""

from __future__ import annotations

from typing import Any

from hierchat.store import Chat
from hierchat.texts.importers import chatgpt, lm_studio, open_webui, own

KINDS = (own, chatgpt, open_webui, lm_studio)


def recognised(value: Any) -> str | None:
    """Return the name of the program that wrote a value; None if none of them did."""
    return next((kind.NAME for kind in KINDS if kind.recognises(value)), None)


def read(value: Any) -> Chat:
    """Read a conversation that was recognised. Raises BadChat."""
    return next(kind for kind in KINDS if kind.recognises(value)).read(value)
