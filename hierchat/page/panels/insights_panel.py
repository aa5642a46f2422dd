"""Draw Insights: how drafting has fared during the last days."""

from datetime import date
from typing import Any

from markupsafe import Markup

from hierchat.chat.wording import TIMES, against_plain, in_order, pace, percent
from hierchat.language import _, later
from hierchat.language import number as written
from hierchat.page import charts, sidebar
from hierchat.page.figures import DASH, style_of
from hierchat.page.page_sessions import Session
from hierchat.page.panels.panel import Panel, still
from hierchat.page.templates import Macros
from hierchat.store.records import DraftingFigures, OverTimeFigures

DAYS = 30
"""Days that are drawn, today included."""


def replies_page(found: OverTimeFigures, today: date) -> Markup:
    """Draw the cards for the last DAYS days."""
    return tiles(found.whole) + _drawn.grid([speed_card(found, today), shares_card(found, today)])


def speed_card(found: OverTimeFigures, today: date) -> Markup:
    title = _("Speed by day")
    known = {day: one for day, one in found.days.items() if one.speedup is not None}
    if not known:
        return charts.empty_card(
            title,
            _("How much faster or slower each day's replies came than without drafts."),
            _("It begins with the first reply of some dozens of tokens: in shorter ones the speed without drafts is "
              "not measured."),
        )  # fmt: skip
    across = _days(today)
    points = [(float(day.toordinal()), one.speedup or 0.0) for day, one in known.items()]
    up = charts.upward(_("times the speed without drafts"), max(1.0, *(y for _day, y in points)), TIMES)
    said = _("Speed by day: at first {first}, at last {last}. A table follows.").format(
        first=against_plain(points[0][1]), last=against_plain(points[-1][1])
    )
    rows = [
        (sidebar.day(day), against_plain(one.speedup or 1.0), written(one.compared))
        for day, one in known.items()
    ]
    drawn = charts.line(points, across, up, said, guide=1.0)
    explained = _(
        "The dashed line is the speed without drafts. A point is the median of the replies where both were measured."
    )
    return charts.charted(title, drawn + charts.note(explained), (_("Day"), _("Speed"), _("Replies")), rows)


def shares_card(found: OverTimeFigures, today: date) -> Markup:
    title = _("Where the words came from")
    if not found.days:
        return charts.empty_card(
            title,
            _("Which part of the words stood in this chat, in your earlier chats or in other texts before, and which "
              "the model wrote alone."), _("It begins with the first reply."),
        )  # fmt: skip
    across = _days(today)
    begins = [date.fromordinal(n) for n in range(int(across.low), int(across.high) + 1)]
    periods = {day: _shares(found.days[day]) if day in found.days else {} for day in begins}
    names = [name for name in in_order(found.whole.sources) if any(p.get(name) for p in periods.values())]
    stacks = [[(style_of(name), shares.get(name, 0.0)) for name in names] for shares in periods.values()]
    places = charts.Axis("", across.low - 0.5, across.high + 0.5, across.ticks)
    drafted = sum(count.accepted for count in found.whole.sources.values()) / found.whole.tokens
    said = _("Share of the tokens by source; {share} came from drafts. A table follows.")
    up = charts.Axis(_("of the tokens"), 0.0, 1.0, [(0.0, "0"), (0.5, "50 %"), (1.0, "100 %")])
    drawn = charts.columns(stacks, places, up, said.format(share=percent(drafted)))
    drawn += charts.key(map(style_of, names))
    rows = [
        (sidebar.day(begin), *(percent(shares.get(name, 0.0)) for name in names))
        for begin, shares in periods.items()
        if shares
    ]
    head = (_("Day"), *(style_of(name).label for name in names))
    return charts.charted(title, drawn + charts.note(_("The rest the model wrote by itself.")), head, rows)


def _days(today: date) -> charts.Axis:
    low, high = today.toordinal() - DAYS + 1, today.toordinal()
    named = [low + round(n * (high - low) / 3) for n in range(4)]
    return charts.Axis(
        "", float(low), float(high), [(float(n), sidebar.day(date.fromordinal(n))) for n in named]
    )


def _shares(day: DraftingFigures) -> dict[str, float]:
    return {name: count.accepted / day.tokens for name, count in day.sources.items()}


_drawn = Macros(
    "insights.html",
    DASH=DASH,
    duration=charts.duration,
    written=written,
    pace_of=pace,
    percent=percent,
)
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
