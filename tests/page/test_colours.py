"""Colours of sources can be told from the page: their contrast, as WCAG counts it."""

import pytest

from hierchat.page import figures


def contrast(one: str, other: str) -> float:
    """From 1 (the same) to 21 (black on white)."""

    def luminance(colour: str) -> float:
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("source", [*figures.STYLES, "SmolLM2 tiny"])
def test_source_colours_stand_out_in_both_themes(source: str) -> None:
    style = figures.style_of(source)
    assert contrast(style.line_light, "#ffffff") >= 3
    assert contrast(style.line_dark, "#17171b") >= 3
