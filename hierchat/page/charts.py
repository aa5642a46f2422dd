"""Draw charts as SVG with labels in HTML, stretched to their place: lines keep their width and labels their size.

Each has a table for those who do not see it."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hierchat.language import _
from hierchat.page.figures import style_of

ACCENT = "var(--hc-accent)"
_DASHES = {"dashed": "7 4", "dotted": "0.1 4.5"}
"""Dashes of a line by its CSS text-decoration-style."""
DIAGONAL = '<path class="hc-guide" d="M0 100L100 0"/>'
"""A guide from the lower left to the upper right."""
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Ink:
    """Describe how something is drawn: a CSS colour, and a style of line that tells it apart without the colour."""

    colour: str = ACCENT
    line: str = "solid"
    """As sources.Style.underline."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One side of a chart. `ticks`: values and what stands beside them."""

    caption: str
    low: float
    high: float
    ticks: Sequence[tuple[float, str]]

    def at(self, value: float) -> float:
        """Return where a value stands, in percent of the axis; what lies beyond stands at its end."""
        return min(max((value - self.low) / ((self.high - self.low) or 1.0), 0.0), 1.0) * 100


@dataclass(frozen=True, slots=True)
class Line:
    """One series. `marked`: its points are drawn, too."""

    name: str
    ink: Ink
    points: Sequence[tuple[float, float]]
    marked: bool = True


@dataclass(frozen=True, slots=True)
class ChartBar:
    """A lying bar: its name, its share of the whole length, and what is said behind it."""

    name: str
    ink: Ink
    share: float
    said: str


def upward(caption: str, highest: float, unit: str = "", most: int = 4) -> Axis:
    """An axis from 0 to a round number from `highest` on."""
    least = (highest or 1.0) / most
    power = 10.0 ** math.floor(math.log10(least))
    step = next(step * power for step in _STEPS if step * power >= least * (1 - 1e-9))
    count = max(math.ceil(highest / step - 1e-9), 1)
    values = [n * step for n in range(count + 1)]
    ticks = [(value, f"{f'{value:,.3f}'.rstrip('0').rstrip('.')}{unit}") for value in values]
    return Axis(caption, 0.0, count * step, ticks)


def percentages(caption: str) -> Axis:
    """Return an axis from 0 to 100 percent."""
    return Axis(caption, 0.0, 1.0, [(0.0, "0"), (0.5, "50 %"), (1.0, "100 %")])


def lines(series: Sequence[Line], across: Axis, up: Axis, said: str, guide: str = "") -> str:
    """Lines over two axes. `guide`: SVG below them, in percent of both axes, y from the top."""
    drawn = "".join(_line(one, across, up) for one in series)
    return _chart(guide + drawn, across, up, said)


def columns(stacks: Sequence[Sequence[tuple[Ink, float]]], across: Axis, up: Axis, said: str) -> str:
    """Standing bars of parts from below; each part has its own line on top."""
    width = 100 / max(len(stacks), 1)
    gap = width * (0.3 if len(stacks) < 40 else 0.1)
    drawn = []
    for number, parts in enumerate(stacks):
        left, right = number * width + gap / 2, (number + 1) * width - gap / 2
        total = 0.0
        for ink, value in parts:
            if value <= 0:
                continue
            bottom, total = total, total + value
            low, high = 100 - up.at(bottom), 100 - up.at(total)
            drawn.append(
                f'<path d="M{left:.2f} {low:.2f}V{high:.2f}H{right:.2f}V{low:.2f}Z" fill="{ink.colour}" '
                'fill-opacity=".28"/>' + _stroke(f"M{left:.2f} {high:.2f}H{right:.2f}", ink)
            )
    return _chart("".join(drawn), across, up, said)


def level(up: Axis, value: float) -> str:
    """A guide at one height."""
    return f'<path class="hc-guide" d="M0 {100 - up.at(value):.2f}H100"/>'


def bars(rows: Iterable[ChartBar]) -> str:
    """Lying bars. Their words stand beside them, so that they need no table."""
    drawn = "".join(
        f'<li><span class="hc-bar-name">{html.escape(bar.name)}</span><span class="hc-bar-said">{html.escape(bar.said)}'
        f'</span><svg viewBox="0 0 100 100" preserveAspectRatio="none" aria-hidden="true">'
        f'<path class="hc-bar-rest" d="M0 50H100"/>'
        f'<path d="M0 50H{max(bar.share, 0.004) * 100:.2f}" stroke="{bar.ink.colour}"/></svg></li>'
        for bar in rows
    )
    return f'<ul class="hc-bars">{drawn}</ul>'


def key(entries: Iterable[tuple[str, Ink]]) -> str:
    """Draw the key of a chart: each line with its name."""
    drawn = "".join(
        f'<li><svg viewBox="0 0 24 10" aria-hidden="true">{_stroke("M1 5H23", ink)}</svg>{html.escape(name)}</li>'
        for name, ink in entries
    )
    return f'<ul class="hc-key">{drawn}</ul>'


def table(of: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Draw the figures of a chart as a table, folded. `of`: the chart's title, for screen readers."""
    titles = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in head)
    cells = "".join(
        f'<tr><th scope="row">{html.escape(row[0])}</th>'
        + "".join(f"<td>{html.escape(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    return (
        f'<details class="hc-table"><summary>{_("As a table")}'
        f'<span class="hc-spoken">: {html.escape(of)}</span></summary>'
        f'<div tabindex="0" role="group" aria-label="{html.escape(of)}">'
        f"<table><thead><tr>{titles}</tr></thead><tbody>{cells}</tbody></table></div></details>"
    )


def _chart(drawn: str, across: Axis, up: Axis, said: str) -> str:
    grid = "".join(f'<path class="hc-grid" d="M0 {100 - up.at(value):.2f}H100"/>' for value, _ in up.ticks)
    beside = "".join(
        f'<span class="hc-up" style="bottom:{up.at(value):.2f}%">{html.escape(label)}</span>'
        for value, label in up.ticks
    )
    below = "".join(
        f'<span class="hc-across" style="left:{across.at(value):.2f}%">{html.escape(label)}</span>'
        for value, label in across.ticks
    )
    caption = f'<p class="hc-caption">{html.escape(across.caption)}</p>' if across.caption else ""
    return (
        f'<figure class="hc-chart"><figcaption>{html.escape(up.caption)}</figcaption><div class="hc-plot">'
        f'<svg viewBox="0 0 100 100" preserveAspectRatio="none" role="img" aria-label="{html.escape(said)}">'
        f'{grid}{drawn}</svg><div aria-hidden="true">{beside}{below}</div></div>'
        f"{caption}</figure>"
    )


def _line(line: Line, across: Axis, up: Axis) -> str:
    places = [(across.at(x), 100 - up.at(y)) for x, y in line.points]
    path = "M" + "L".join(f"{x:.2f} {y:.2f}" for x, y in places)
    dots = "".join(f"M{x:.2f} {y:.2f}h0" for x, y in places)
    points = f'<path class="hc-points" d="{dots}" stroke="{line.ink.colour}"/>' if line.marked else ""
    return (_stroke(path, line.ink) if len(places) > 1 else "") + points


def _stroke(path: str, ink: Ink) -> str:
    """A line in its style; a double one is a broad one with a gap of the page's colour."""
    if ink.line == "double":
        return (
            f'<path class="hc-stroke hc-broad" d="{path}" stroke="{ink.colour}"/>'
            f'<path class="hc-stroke hc-hollow" d="{path}"/>'
        )
    dash = _DASHES.get(ink.line)
    more = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<path class="hc-stroke" d="{path}" stroke="{ink.colour}"{more}/>'


_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def size(number_of_bytes: float) -> str:
    """Return a size in bytes in words, in decimal units."""
    for unit, name in _UNITS:
        if number_of_bytes >= unit:
            shown = number_of_bytes / unit
            return f"{shown:.1f} {name}" if shown < 100 else f"{shown:.0f} {name}"
    return _("{bytes:.0f} bytes").format(bytes=number_of_bytes)


def duration(seconds: float) -> str:
    """Return a time in words: seconds, minutes or hours."""
    if seconds < 90:
        return _("{n:.0f} s").format(n=seconds)
    if seconds < 5400:
        return _("{n:.0f} min").format(n=seconds / 60)
    return _("{n:.1f} h").format(n=seconds / 3600)


def ink_of(source: str) -> Ink:
    """The colour and the line of a source, as everywhere on the page."""
    style = style_of(source)
    return Ink(f"var(--{style.slug}-line)", style.underline)


def card(title: str, inside: str) -> str:
    """A card of the view; `inside` is HTML."""
    return f'<section class="hc-insight"><h2>{title}</h2>{inside}</section>'


def charted(title: str, drawn: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A card with a chart, as HTML, and its figures as a table."""
    return card(title, drawn + table(title, head, rows))


def empty_card(title: str, what: str, when: str, ever: bool = False) -> str:
    """A card that says what it will show."""
    return card(title, nothing(what, when, ever))


def note(sentence: str) -> str:
    """A quiet sentence below a chart."""
    return f'<p class="hc-quiet">{sentence}</p>'


def nothing(what: str, when: str, ever: bool = False) -> str:
    """Say what a card will show once there is something. `ever`: there is something in a longer range."""
    comes = _("Nothing in these days: choose a longer range.") if ever else when
    return f'<div class="hc-nothing"><p>{what}</p><p class="hc-quiet">{comes}</p></div>'
