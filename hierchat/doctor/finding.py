"""One line of the report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Finding:
    """`advice`: what to do; only where something is wrong."""

    text: str
    advice: str = ""


def anonymous(text: str) -> str:
    """The text without the home folder, which names who is at home there."""
    for home in sorted({str(Path.home()), str(Path.home().resolve())}, key=len, reverse=True):
        if len(home) > 1:
            text = text.replace(home, "~")
    return text
