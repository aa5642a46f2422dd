"""The programs whose files can be read. A file's kind is told by what is in it, not by its name."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from hierchat.texts.importers import chatgpt, lm_studio, open_webui, own

KINDS = (own, chatgpt, open_webui, lm_studio)


def reader_of(value: Any) -> ModuleType | None:
    """Return the reader of the program that wrote a value; None if none of them did."""
    return next((kind for kind in KINDS if kind.recognises(value)), None)
