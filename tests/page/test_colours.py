"""Colours can be read: contrast of the style sheets, as WCAG counts it."""

import re
from pathlib import Path

import pytest

from hierchat.page import figures, templates
from hierchat.page.markdown.parser import CLASSES

STYLE = Path(templates.ASSETS) / "style"


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


@pytest.mark.parametrize("dark", [False, True])
def test_colours_of_code_can_be_read(dark: bool) -> None:
    colours = variables(STYLE / "palette.css", dark) | variables(STYLE / "markdown.css", dark)
    for name in [*CLASSES, "hc-ink", "hc-quiet", "hc-comment"]:
        assert contrast(colours[f"--{name}"], colours["--hc-soft"]) >= 4.5, name


@pytest.mark.parametrize("source", [*figures.STYLES, "SmolLM2 tiny"])
def test_source_colours_stand_out_in_both_themes(source: str) -> None:
    style = figures.style_of(source)
    assert contrast(style.line_light, "#ffffff") >= 3
    assert contrast(style.line_dark, "#17171b") >= 3
