"""Colours of sources can be told from the page: their contrast, as WCAG counts it."""

import re

import pytest

from hierchat.chat.wording import SOURCES
from hierchat.page.figures import style_of
from hierchat.page.templates import ASSETS


def contrast(one: str, other: str) -> float:
    """From 1 (the same) to 21 (black on white)."""

    def luminance(colour: str) -> float:
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize(("theme", "page"), [(":root", "#ffffff"), (".dark", "#17171b")])
def test_source_colours_stand_out_in_both_themes(theme: str, page: str) -> None:
    rules = (ASSETS / "style" / "sources.css").read_text(encoding="utf-8")
    variables = rules.partition(f"{theme} {{")[2].partition("}")[0]
    colours = dict(re.findall(r"--(\w+)-line: (#[0-9A-F]{6});", variables))
    for source in (*SOURCES, "SmolLM2 tiny"):
        assert contrast(colours[style_of(source).slug], page) >= 3
