"""Colours of the style sheets and their contrast, as WCAG counts it."""

from __future__ import annotations

import re
from pathlib import Path


def variables(sheet: Path, dark: bool) -> dict[str, str]:
    """The colours that a style sheet names, in one of both themes."""
    found: dict[str, str] = {}
    for selector, body in re.findall(
        r"^(:root|\.dark) \{(.*?)\}", sheet.read_text(encoding="utf-8"), re.S | re.M
    ):
        if selector == ":root" or dark:
            found |= dict(re.findall(r"(--[\w-]+): (#[0-9a-f]{6});", body))
    return found


def contrast(one: str, other: str) -> float:
    """From 1 (the same) to 21 (black on white)."""

    def luminance(colour: str) -> float:
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)
