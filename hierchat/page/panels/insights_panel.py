"""Draw Insights: how drafting has fared from day to day, what it costs, and what is kept for it."""

from collections.abc import Mapping
from datetime import date, timedelta
from typing import Any

import gradio as gr
from markupsafe import Markup

from hierchat.chat.service import ChatService
from hierchat.chat.wording import TIMES, against_plain, in_order, pace, percent
from hierchat.engine.engine import TARGET
from hierchat.language import _, later, plural
from hierchat.language import number as written
from hierchat.page import charts, sidebar
from hierchat.page.event_data import PageEvent
from hierchat.page.figures import DASH, plan_picture, style_of
from hierchat.page.guard import PageEvents
from hierchat.page.page_sessions import Session
from hierchat.page.panels.panel import Panel, still
from hierchat.page.templates import Macros
from hierchat.runtime.costs import meters
from hierchat.store.records import DraftingFigures, OverTimeFigures, SourceCount

_LONG = 62
"""More days than these are drawn by weeks."""


def replies_page(
    found: OverTimeFigures, names: Mapping[str, str], today: date, days: int | None, ever: bool
) -> Markup:
    """Draw the cards for a range of days. `names` of models by key; `ever`: some range has measured replies."""
    cards = [speed_card(found, today, days, ever), shares_card(found, today, days, ever)]
    cards.append(sources_card(found.whole.sources, ever))
    if len(found.models) > 1:
        cards.append(models_card(found.models, names))
    return tiles(found.whole) + _drawn.grid(cards)


def speed_card(found: OverTimeFigures, today: date, days: int | None, ever: bool) -> Markup:
    title = _("Speed by day")
    known = {day: one for day, one in found.days.items() if one.speedup is not None}
    if not known:
        return charts.empty_card(
            title,
            _("How much faster or slower each day's replies came than without drafts."),
            _("It begins with the first reply of some dozens of tokens: in shorter ones the speed without drafts is "
              "not measured."),
            ever and days is not None,
        )  # fmt: skip
    across = _days(known, today, days)
    points = [(float(day.toordinal()), one.speedup or 0.0) for day, one in known.items()]
    up = charts.upward(_("times the speed without drafts"), max(1.0, *(y for _day, y in points)), TIMES)
    said = _("Speed by day: at first {first}, at last {last}. A table follows.").format(
        first=against_plain(points[0][1]), last=against_plain(points[-1][1])
    )
    rows = [
        (sidebar.day(day), against_plain(one.speedup or 1.0), written(one.compared))
        for day, one in known.items()
    ]
    line = charts.Line(_("speed"), charts.Ink(), points)
    drawn = charts.lines([line], across, up, said, charts.level(up, 1.0))
    explained = _(
        "The dashed line is the speed without drafts. A point is the median of the replies where both were measured."
    )
    return charts.charted(title, drawn + charts.note(explained), (_("Day"), _("Speed"), _("Replies")), rows)


def shares_card(found: OverTimeFigures, today: date, days: int | None, ever: bool) -> Markup:
    title = _("Where the words came from")
    if not found.days:
        return charts.empty_card(
            title,
            _("Which part of the words stood in this chat, in your earlier chats or in other texts before, and which "
              "the model wrote alone."), _("It begins with the first reply."), ever,
        )  # fmt: skip
    across = _days(found.days, today, days)
    first, last = date.fromordinal(int(across.low)), date.fromordinal(int(across.high))
    step = 1 if (last - first).days <= _LONG else 7
    begins = [date.fromordinal(n) for n in range(first.toordinal(), last.toordinal() + 1, step)]
    periods = {begin: _shares(found.days, begin, begin + timedelta(days=step)) for begin in begins}
    names = [name for name in in_order(found.whole.sources) if any(p.get(name) for p in periods.values())]
    stacks = [[(charts.ink_of(name), shares.get(name, 0.0)) for name in names] for shares in periods.values()]
    caption, end = across.caption if step == 1 else _("weeks"), begins[-1].toordinal() + step - 0.5
    places = charts.Axis(caption, across.low - 0.5, end, across.ticks)
    drafted = sum(count.accepted for count in found.whole.sources.values()) / found.whole.tokens
    said = _("Share of the tokens by source; {share} came from drafts. A table follows.")
    up = charts.percentages(_("of the tokens"))
    drawn = charts.columns(stacks, places, up, said.format(share=percent(drafted)))
    drawn += charts.key((style_of(name).label, charts.ink_of(name)) for name in names)
    rows = [
        (sidebar.day(begin), *(percent(shares.get(name, 0.0)) for name in names))
        for begin, shares in periods.items()
        if shares
    ]
    head = (_("Day") if step == 1 else _("Week from"), *(style_of(name).label for name in names))
    return charts.charted(title, drawn + charts.note(_("The rest the model wrote by itself.")), head, rows)


def sources_card(sources: Mapping[str, SourceCount], ever: bool) -> Markup:
    title = _("Drafts that were right, by source")
    asked = [name for name in in_order(sources) if name != TARGET and sources[name].proposed]
    if not asked:
        return charts.empty_card(
            title,
            _("How many of its drafts the model would have written itself."), _("It begins with the first reply."), ever
        )  # fmt: skip
    rows = []
    for name in asked:
        count = sources[name]
        share = count.accepted / count.proposed
        said = _("{share} of {proposed:,}").format(share=percent(share), proposed=count.proposed)
        rows.append(charts.ChartBar(style_of(name).label, charts.ink_of(name), share, said))
    return charts.card(
        title, charts.bars(rows) + charts.note(_("A wrong draft costs a little time and changes no word."))
    )


def models_card(models: Mapping[str, DraftingFigures], names: Mapping[str, str]) -> Markup:
    ranked = sorted(models.items(), key=lambda model: -model[1].replies)
    most = max([one.speedup or 0.0 for one in models.values()]) or 1.0
    rows = []
    for model, one in ranked:
        speed = against_plain(one.speedup) if one.speedup else _("not measured")
        said = f"{speed}, {plural('{n:,} reply', '{n:,} replies', one.replies)}"
        rows.append(charts.ChartBar(names.get(model, "?"), charts.Ink(), (one.speedup or 0.0) / most, said))
    return charts.card(
        _("Speed by model"), charts.bars(rows) + charts.note(_("Each compared with itself without drafts."))
    )


def _days(known: Mapping[date, DraftingFigures], today: date, days: int | None) -> charts.Axis:
    last = max(today, *known) if known else today
    first = today - timedelta(days=days - 1) if days else min(known, default=today)
    low, high = first.toordinal(), last.toordinal()
    count = min(high - low + 1, 4)
    named = sorted({low + round(n * (high - low) / max(count - 1, 1)) for n in range(count)})
    far = (high - low) > 300
    return charts.Axis(
        "", float(low), float(high),
        [(float(n), sidebar.month(date.fromordinal(n)) if far else sidebar.day(date.fromordinal(n))) for n in named],
    )  # fmt: skip


def _shares(days: Mapping[date, DraftingFigures], begin: date, end: date) -> dict[str, float]:
    inside = [one for day, one in days.items() if begin <= day < end]
    tokens = sum(one.tokens for one in inside)
    found: dict[str, float] = {}
    for one in inside:
        for name, count in one.sources.items():
            found[name] = found.get(name, 0.0) + count.accepted / tokens
    return found


_PLAN = later("Which smaller models draft for the loaded one, how far ahead, and why others do not.")


_drawn = Macros(
    "insights.html",
    DASH=DASH,
    duration=charts.duration,
    written=written,
    pace_of=pace,
    percent=percent,
    size_words=charts.size,
)
tiles, meters_card = _drawn.tiles, _drawn.meters
RANGES = {later("7 days"): 7, later("30 days"): 30, later("All"): None}
USUAL = "30 days"
ALL_MODELS = later("All models")
METER_SECONDS = 2.0


class InsightsPanel(Panel):
    """Panel of insights. What a user chose last stays chosen until the program ends."""

    name = "insights"
    title = later("Insights")

    def __init__(self, service: ChatService) -> None:
        super().__init__(service)
        self._chosen: dict[int, tuple[str, str]] = {}
        """User -> a name in RANGES, and a model's key; empty: all."""

    def build(self) -> None:
        with gr.Row(elem_id="hc-insights-choice"):
            self._range = gr.Radio(
                [(_(name), name) for name in RANGES], value=USUAL, label=_("Days"), show_label=False,
                container=False, elem_id="hc-range", min_width=0, scale=0,
            )  # fmt: skip
            self._model = gr.Dropdown(
                [(_(ALL_MODELS), "")], value="", label=_("Model that wrote"), show_label=False, container=False,
                elem_id="hc-writer", min_width=0, scale=0, filterable=False,
            )  # fmt: skip
        self._replies, self._machine = still("hc-insights-replies"), still("hc-insights-machine")
        self._meters = still("hc-insights-meters")
        self._timer = gr.Timer(METER_SECONDS, active=False)
        self._changing = [self._range, self._model, self._replies, self._machine]
        self.outputs = [*self._changing, self._meters, self._timer]

    def wire(self, page: PageEvents) -> None:
        chosen = [self._range, self._model]
        for control in chosen:
            page.on(control.input, self.choose, chosen, self._changing, trigger_mode="always_last")
        page.on(self._timer.tick, self.tick, outputs=[self._meters, self._timer])

    def choose(self, event: PageEvent, period: str, model: Any) -> dict[Any, Any]:
        self._chosen[event.user] = period, model if isinstance(model, str) else ""
        return self._drawn(event.user)

    def tick(self, event: PageEvent) -> dict[Any, Any]:
        """Draw the meters; the timer rests while another view is open."""
        if event.session.panel != self.name:
            return {self._timer: gr.update(active=False)}
        return {self._meters: meters_card(meters())}

    def show(self, session: Session) -> dict[Any, Any]:
        """Draw all figures as they are now, and start the timer of the meters."""
        update = {self._meters: meters_card(meters()), self._timer: gr.update(active=True)}
        return self._drawn(session.user) | update

    def _drawn(self, user_id: int) -> dict[Any, Any]:
        service, (period, model) = self._service, self._chosen.get(user_id, (USUAL, ""))
        names = service.data.models(user_id)
        model = model if model in names else ""  # its chats may have been deleted
        days = RANGES[period]
        found = service.data.insights(user_id, model or None, days)
        models = [(_(ALL_MODELS), ""), *((name, key) for key, name in names.items())]
        cards = [
            charts.card(
                _("Draft models"),
                plan_picture(service.plan()) or charts.nothing(_(_PLAN), _("The loaded model has none.")),
            ),
            _drawn.sizes(found.history, service.index_memory(user_id)),
        ]
        if found.generated.texts:
            cards.append(_drawn.generated(found.generated, found.generated_drafts))
        return {
            self._range: period,
            self._model: gr.update(choices=models, value=model),
            self._replies: replies_page(found.over_time, names, date.today(), days, found.ever),
            self._machine: _drawn.grid(cards),
        }
