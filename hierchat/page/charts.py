"""Draw charts as SVG with labels in HTML, so that stretching keeps lines and labels; each has a table for screen
readers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from hierchat.language import _
from hierchat.language import number as written
from hierchat.models.cache import gigabytes
from hierchat.page.figures import Style
from hierchat.page.templates import Macros

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Axis:
    """Axis of a chart. `ticks`: values and their labels."""

    caption: str
    low: float
    high: float
    ticks: Sequence[tuple[float, str]]

    def at(self, value: float) -> float:
        """Return the place of a value in percent of the axis; values beyond it are put at its ends."""
        return min(max((value - self.low) / ((self.high - self.low) or 1.0), 0.0), 1.0) * 100


def upward(caption: str, highest: float, unit: str) -> Axis:
    """Return an axis from 0 to a round number that is at least `highest`."""
    least = (highest or 1.0) / 4
    power = 10.0 ** math.floor(math.log10(least))
    step = next(step * power for step in _STEPS if step * power >= least * (1 - 1e-9))
    count = max(math.ceil(highest / step - 1e-9), 1)
    values = [n * step for n in range(count + 1)]
    ticks = [(value, written(value, ",.3f").rstrip("0").rstrip(".,") + unit) for value in values]
    return Axis(caption, 0.0, count * step, ticks)


def line(points: Sequence[tuple[float, float]], across: Axis, up: Axis, said: str, guide: float) -> Markup:
    """Draw a line over two axes, and a dashed one at the height `guide`."""
    places = [(across.at(x), 100 - up.at(y)) for x, y in points]
    return _drawn.line(places, across, up, said, 100 - up.at(guide))


def columns(stacks: Sequence[Sequence[tuple[Style, float]]], across: Axis, up: Axis, said: str) -> Markup:
    """Draw a chart of stacked columns, parts from below; each part has its own line on top."""
    width = 100 / len(stacks)
    gap = width * 0.3
    drawn = []
    for number, parts in enumerate(stacks):
        left, right = number * width + gap / 2, (number + 1) * width - gap / 2
        total = 0.0
        for style, value in parts:
            if value > 0:
                bottom, total = total, total + value
                drawn.append((style, left, right, 100 - up.at(bottom), 100 - up.at(total)))
    return _drawn.columns(drawn, across, up, said)


def size(number_of_bytes: float) -> str:
    """Format a size as everywhere on the page."""
    if number_of_bytes < 1e3:
        return _("{bytes:.0f} bytes").format(bytes=number_of_bytes)
    return gigabytes(number_of_bytes)


def duration(seconds: float) -> str:
    if seconds < 90:
        return _("{n:.0f} s").format(n=seconds)
    if seconds < 5400:
        return _("{n:.0f} min").format(n=seconds / 60)
    return _("{n:.1f} h").format(n=seconds / 3600)


_drawn = Macros("charts.html")
charted, empty_card, key, note = _drawn.charted, _drawn.empty_card, _drawn.key, _drawn.note
