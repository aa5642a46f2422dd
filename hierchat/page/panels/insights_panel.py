"""Draw Insights: how drafting has fared during the last days.
Charts are SVG with labels in HTML, so that stretching keeps both; each has a table for screen readers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from markupsafe import Markup

from hierchat.chat.wording import TIMES, against_plain, in_order, pace, percent
from hierchat.language import _, later
from hierchat.language import number as written
from hierchat.page import sidebar
from hierchat.page.figures import DASH, Style, style_of
from hierchat.page.page_sessions import Session
from hierchat.page.panels.panel import Panel, still
from hierchat.page.templates import Macros
from hierchat.store.records import DraftingFigures, OverTimeFigures

DAYS = 30
"""Days that are drawn, today included."""
_charts = Macros("charts.html")
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
    return _charts.columns(drawn, across, up, said)


def replies_page(found: OverTimeFigures, today: date) -> Markup:
    """Draw the tiles for the last DAYS days, and a card for each of which there is something to draw."""
    return tiles(found.whole) + _drawn.grid([speed_card(found, today), shares_card(found, today)])


def speed_card(found: OverTimeFigures, today: date) -> Markup:
    known = {day: one for day, one in found.days.items() if one.speedup is not None}
    if not known:
        return Markup()
    across = _days(today)
    points = [(float(day.toordinal()), one.speedup or 0.0) for day, one in known.items()]
    up = upward(_("times the speed without drafts"), max(1.0, *(y for _day, y in points)), TIMES)
    said = _("Speed by day: at first {first}, at last {last}. A table follows.").format(
        first=against_plain(points[0][1]), last=against_plain(points[-1][1])
    )
    rows = [
        (sidebar.day(day), against_plain(one.speedup or 1.0), written(one.compared))
        for day, one in known.items()
    ]
    places = [(across.at(x), 100 - up.at(y)) for x, y in points]
    return _charts.speed(_charts.line(places, across, up, said, 100 - up.at(1.0)), rows)


def shares_card(found: OverTimeFigures, today: date) -> Markup:
    if not found.days:
        return Markup()
    across = _days(today)
    begins = [date.fromordinal(n) for n in range(int(across.low), int(across.high) + 1)]
    periods = {day: _shares(found.days[day]) if day in found.days else {} for day in begins}
    names = [name for name in in_order(found.whole.sources) if any(p.get(name) for p in periods.values())]
    stacks = [[(style_of(name), shares.get(name, 0.0)) for name in names] for shares in periods.values()]
    places = Axis("", across.low - 0.5, across.high + 0.5, across.ticks)
    drafted = sum(count.accepted for count in found.whole.sources.values()) / found.whole.tokens
    said = _("Share of the tokens by source; {share} came from drafts. A table follows.")
    up = Axis(_("of the tokens"), 0.0, 1.0, [(0.0, "0"), (0.5, "50 %"), (1.0, "100 %")])
    drawn = columns(stacks, places, up, said.format(share=percent(drafted)))
    rows = [
        (sidebar.day(begin), *(percent(shares.get(name, 0.0)) for name in names))
        for begin, shares in periods.items()
        if shares
    ]
    return _charts.shares(drawn, [style_of(name) for name in names], rows)


def _days(today: date) -> Axis:
    low, high = today.toordinal() - DAYS + 1, today.toordinal()
    named = [low + round(n * (high - low) / 3) for n in range(4)]
    return Axis("", float(low), float(high), [(float(n), sidebar.day(date.fromordinal(n))) for n in named])


def _shares(day: DraftingFigures) -> dict[str, float]:
    return {name: count.accepted / day.tokens for name, count in day.sources.items()}


_drawn = Macros("insights.html", DASH=DASH, written=written, pace_of=pace, percent=percent)
tiles = _drawn.tiles


class InsightsPanel(Panel):
    """Panel of insights: a user's own figures."""

    name = "insights"
    title = later("Insights")

    def build(self) -> None:
        self._replies = still("hc-insights-replies")
        self.outputs = [self._replies]

    def show(self, session: Session) -> dict[Any, Any]:
        """Draw all figures as they are now."""
        found = self._service.data.over_time(session.user, DAYS)
        return {self._replies: replies_page(found, date.today())}
