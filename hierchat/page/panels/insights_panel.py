"""Draw Insights: how drafting has fared from day to day, what it costs, and what is kept for it."""

from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from itertools import pairwise
from typing import Any

import gradio as gr
from markupsafe import Markup

from hierchat.chat.service import ChatService
from hierchat.chat.statistics import ForwardCosts
from hierchat.chat.wording import TIMES, against_plain, in_order, pace, percent
from hierchat.drafting.acceptance import Calibration
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
"""More days than these are drawn by weeks, and without points."""


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
    line = charts.Line(_("speed"), charts.Ink(), points, len(points) <= _LONG)
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


_MATCHES = (1, 2, 3, 5, 9, 17)
"""Where the groups of match lengths begin; the last has no end."""
_FEW = 20
"""Fewer cases than these are no point of a chart."""
_PLAN = later("Which smaller models draft for the loaded one, how far ahead, and why others do not.")
_WIDTHS = (1, 2, 4, 8, 16, 24, 32)
"""Rows that are named."""


def match_card(counts: Sequence[Sequence[float]]) -> Markup:
    """Draw by length of match how often the likeliest draft was right. `counts` [length]: how many, how many right."""
    title = _("Drafts that were right, by what matched")
    ends = [*_MATCHES[1:], len(counts)]
    groups = [
        (first, end, *(sum(row[i] for row in counts[first:end]) for i in (0, 1)))
        for first, end in zip(_MATCHES, ends, strict=True)
    ]
    if not any(number >= _FEW for _, _, number, _ in groups):
        return charts.empty_card(
            title,
            _("A draft is found by the words before it. The more of them match, the more often it is right."),
            _("It is counted while replies are written, and kept twice a minute."),
        )  # fmt: skip
    labels = [_group(first, end) for first, end in pairwise([*_MATCHES, 0])]
    ticks = [(n + 0.5, label) for n, label in enumerate(labels)]
    across = charts.Axis(_("tokens before it that matched"), 0.0, float(len(groups)), ticks)
    stacks = [[(charts.Ink(), right / number if number >= _FEW else 0.0)] for _, _, number, right in groups]
    rows = [
        (label, percent(right / number) if number else DASH, written(number, ",.0f"))
        for label, (_, _, number, right) in zip(labels, groups, strict=True)
    ]
    said = _("Share of likeliest drafts that were right, by how many tokens matched. A table follows.")
    drawn = charts.columns(stacks, across, charts.percentages(_("of the likeliest drafts were right")), said)
    head = (_("Tokens that matched"), _("Right"), _("Drafts"))
    return charts.charted(title, drawn + charts.note(_("Of all days.")), head, rows)


def calibration_card(calibration: Calibration) -> Markup:
    """Draw the expected acceptance of drafts against the share that was accepted."""
    title = _("Were the guesses as good as expected?")
    series = []
    for name in in_order(calibration):
        points = [(chance, right) for chance, right, count in calibration[name] if count >= _FEW]
        if points:
            series.append(charts.Line(style_of(name).label, charts.ink_of(name), points))
    if not series:
        return charts.empty_card(
            title,
            _("Of drafts with an expected chance of 60 %, six in ten should be right: then no time is lost on bad "
              "ones."),
            _("It is counted while replies are written, and kept twice a minute."),
        )  # fmt: skip
    rows = [
        (style_of(name).label, percent(chance), percent(right), written(count))
        for name in in_order(calibration)
        for chance, right, count in calibration[name]
    ]
    across = charts.percentages(_("expected chance of a draft"))
    said = _("Expected chances of drafts against the share that was right. A table follows.")
    drawn = charts.lines(series, across, charts.percentages(_("were right")), said, charts.diagonal())
    drawn += charts.key((line.name, line.ink) for line in series)
    drawn += charts.note(_("On the dashed line, what was expected came true. Of all days."))
    return charts.charted(title, drawn, (_("Source"), _("Expected"), _("Right"), _("Drafts")), rows)


def costs_card(costs: ForwardCosts | None) -> Markup:
    title = _("What a run of the model costs")
    if costs is None:
        return charts.empty_card(
            title,
            _("How much longer a run takes that checks several drafts at once."),
            _("It is measured when a model has been loaded on this machine."),
        )  # fmt: skip
    ms, most = costs.ms, len(costs.ms)
    across = charts.Axis(_("tokens in one run: one, and the drafts that are checked with it"), 1.0, float(most),
                  [(float(n), str(n)) for n in _WIDTHS if n <= most and n not in (2, 4)])  # fmt: skip
    points = [(float(n), value) for n, value in enumerate(ms, 1)]
    said = _("A run takes {one:.1f} ms for one token and {all:.1f} ms for {most}. A table follows.").format(
        one=ms[0], all=ms[-1], most=most
    )
    times = [(n, written(ms[n - 1], ".1f"), written(ms[n - 1] / ms[0], ".2f")) for n in _WIDTHS if n <= most]
    rows = [(str(n), f"{time} ms", f"{factor}{TIMES}") for n, time, factor in times]
    line = charts.Line("ms", charts.Ink(), points, marked=False)
    drawn = charts.lines([line], across, charts.upward(_("milliseconds"), max(ms)), said)
    about = _("{model}, {context:,} tokens into a chat. Measured here, and anew with every reply.")
    drawn += charts.note(about.format(model=costs.model, context=costs.context))
    return charts.charted(title, drawn, (_("Tokens"), _("Time"), _("Beside one")), rows)


def _group(first: int, end: int) -> str:
    """Return the name of the match lengths from `first` to before `end`; 0 for no end."""
    if not end:
        return f"{first}+"
    return str(first) if end == first + 1 else f"{first}{DASH}{end - 1}"


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
            match_card(found.acceptance.matches.sum(0).tolist()),
            calibration_card(found.acceptance.calibration()),
            costs_card(service.costs()),
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
