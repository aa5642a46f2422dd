"""Insights: how drafting has fared from day to day, what it costs, and what is kept for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

import gradio as gr

from hierchat.chat.wording import TIMES, against_plain, in_order, pace, percent
from hierchat.engine.engine import TARGET
from hierchat.language import _, later, plural
from hierchat.page import charts, sidebar
from hierchat.page.charts import DASH, Axis, ChartBar, Ink, Line, card, duration, ink_of, note, nothing
from hierchat.page.figures import style_of
from hierchat.page.panels.machine import machine_page, meters_card
from hierchat.page.panels.panel import QUIET, SessionOf
from hierchat.runtime.costs import meters

if TYPE_CHECKING:
    from hierchat.chat.service import ChatService
    from hierchat.store import DraftingFigures, OverTimeFigures, SourceCount


# How drafting has fared in a range of days.


_LONG = 62
"""More days than these are drawn by weeks, and without points."""


def replies_page(
    found: OverTimeFigures, names: Mapping[str, str], today: date, days: int | None, ever: bool
) -> str:
    """Draw what changes with the range. `names` of models by key; `ever`: there are measured replies in some range."""
    cards = [speed_card(found, today, days, ever), shares_card(found, today, days, ever)]
    cards.append(sources_card(found.whole.sources, ever))
    if len(found.models) > 1:
        cards.append(models_card(found.models, names))
    return tiles(found.whole) + f'<div class="hc-cards-grid">{"".join(cards)}</div>'


def tiles(whole: DraftingFigures) -> str:
    """The four figures that are asked for first; a dash where there is none yet."""
    few = _("median of {compared} where both were measured").format(compared=_replies(whole.compared))
    unknown = _("once a reply is long enough to measure both")
    replies = plural("{n:,} measured reply", "{n:,} measured replies", whole.replies)
    accepted = sum(count.accepted for count in whole.sources.values())
    per_run = _("{tokens:.2f} tokens for each run of the model").format(tokens=whole.tokens_per_forward or 0)
    over = _("over {compared:,} of {replies}").format(compared=whole.compared, replies=replies)
    shown = [
        (_("Speed"), *_against_plain(whole.speedup), few if whole.speedup else unknown),
        (_("Time"), duration(abs(whole.saved_seconds)) if whole.compared else DASH,
         _("lost by drafts") if whole.saved_seconds < 0 else _("saved by drafts"),
         over if whole.compared else unknown),
        (_("Written"), f"{whole.tokens:,}", _("tokens"), _("in {replies}").format(replies=replies)),
        (_("Drafts"), percent(accepted / whole.tokens) if whole.tokens else DASH, _("of the tokens came from drafts"),
         per_run if whole.tokens else _("with the first reply")),
    ]  # fmt: skip
    cells = "".join(
        f'<div class="hc-tile"><dt>{name}</dt><dd><b>{value}</b> <span>{what}</span><small>{note}</small></dd></div>'
        for name, value, what, note in shown
    )
    return f'<dl class="hc-tiles">{cells}</dl>'


def speed_card(found: OverTimeFigures, today: date, days: int | None, ever: bool) -> str:
    """Speed-up by day."""
    title = _("Speed by day")
    known = {day: one for day, one in found.days.items() if one.speedup is not None}
    if not known:
        return card(title, nothing(
            _("How much faster or slower each day's replies came than without drafts."),
            _("It begins with the first reply of some dozens of tokens: in shorter ones the speed without drafts is "
              "not measured."),
            ever and days is not None,
        ))  # fmt: skip
    across = _days(known, today, days)
    points = [(float(day.toordinal()), one.speedup or 0.0) for day, one in known.items()]
    up = charts.upward(_("speed, without drafts it is 1"), max(1.0, *(y for _day, y in points)), TIMES)
    said = _("Speed by day: at first {first}, at last {last}. A table follows.").format(
        first=against_plain(points[0][1]), last=against_plain(points[-1][1])
    )
    rows = [(_day(day), against_plain(one.speedup or 1.0), f"{one.compared:,}") for day, one in known.items()]
    return card(
        title,
        charts.lines(
            [Line(_("speed"), Ink(), points, len(points) <= _LONG)], across, up, said, charts.level(up, 1.0)
        )
        + note(
            _(
                "The dashed line is the speed without drafts. A point is the median of the replies where both were "
                "measured."
            )
        )
        + charts.table(title, (_("Day"), _("Speed"), _("Replies")), rows),
    )


def shares_card(found: OverTimeFigures, today: date, days: int | None, ever: bool) -> str:
    """Share of the tokens by source, by day or week."""
    title = _("Where the words came from")
    if not found.days:
        return card(title, nothing(
            _("Which part of the words stood in this chat, in your earlier chats or in other texts before, and which "
              "the model wrote alone."), _("It begins with the first reply."), ever,
        ))  # fmt: skip
    across = _days(found.days, today, days)
    first, last = date.fromordinal(int(across.low)), date.fromordinal(int(across.high))
    step = 1 if (last - first).days <= _LONG else 7
    begins = [date.fromordinal(n) for n in range(first.toordinal(), last.toordinal() + 1, step)]
    periods = {begin: _shares(found.days, begin, begin + timedelta(days=step)) for begin in begins}
    names = [name for name in in_order(found.whole.sources) if any(p.get(name) for p in periods.values())]
    stacks = [[(ink_of(name), shares.get(name, 0.0)) for name in names] for shares in periods.values()]
    places = Axis(
        across.caption if step == 1 else _("weeks"),
        across.low - 0.5,
        begins[-1].toordinal() + step - 0.5,
        across.ticks,
    )
    drafted = sum(count.accepted for count in found.whole.sources.values())
    said = _("Share of the tokens by source; {share} came from drafts. A table follows.").format(
        share=percent(drafted / found.whole.tokens)
    )
    rows = [
        (_day(begin), *(percent(shares.get(name, 0.0)) for name in names))
        for begin, shares in periods.items()
        if shares
    ]
    return card(
        title,
        charts.columns(stacks, places, charts.percentages(_("of the tokens")), said)
        + charts.key((style_of(name).label, ink_of(name)) for name in names)
        + note(_("The rest the model wrote by itself."))
        + charts.table(
            title,
            (_("Day") if step == 1 else _("Week from"), *(style_of(name).label for name in names)),
            rows,
        ),
    )


def sources_card(sources: Mapping[str, SourceCount], ever: bool) -> str:
    """Draw how many drafts of each source were right."""
    title = _("Drafts that were right, by source")
    asked = [name for name in in_order(sources) if name != TARGET and sources[name].proposed]
    if not asked:
        return card(title, nothing(
            _("How many of its drafts the model would have written itself."), _("It begins with the first reply."), ever
        ))  # fmt: skip
    rows = []
    for name in asked:
        count = sources[name]
        share = count.accepted / count.proposed
        said = _("{share} of {proposed:,}").format(share=percent(share), proposed=count.proposed)
        rows.append(ChartBar(style_of(name).label, ink_of(name), share, said))
    return card(title, charts.bars(rows) + note(_("A wrong draft costs a little time and changes no word.")))


def models_card(models: Mapping[str, DraftingFigures], names: Mapping[str, str]) -> str:
    """Speed-up of each model, the one that wrote most first."""
    ranked = sorted(models.items(), key=lambda model: -model[1].replies)
    most = max([one.speedup or 0.0 for one in models.values()]) or 1.0
    rows = []
    for model, one in ranked:
        speed = against_plain(one.speedup) if one.speedup else _("not measured")
        said = f"{speed}, {_replies(one.replies)}"
        rows.append(ChartBar(names.get(model, "?"), Ink(), (one.speedup or 0.0) / most, said))
    return card(_("Speed by model"), charts.bars(rows) + note(_("Each against itself without drafts.")))


def _against_plain(speedup: float | None) -> tuple[str, str]:
    """A tile's figure, and what it says."""
    if not speedup:
        return DASH, _("against the same model without drafts")
    told = pace(speedup)
    return (told, _("than without drafts")) if told else (_("As fast"), _("as without drafts"))


def _days(known: Mapping[date, DraftingFigures], today: date, days: int | None) -> Axis:
    """The days of the range, or from the first to the last that is known; a few of them named."""
    last = max(today, *known) if known else today
    first = today - timedelta(days=days - 1) if days else min(known, default=today)
    low, high = first.toordinal(), last.toordinal()
    count = min(high - low + 1, 4)
    named = sorted({low + round(n * (high - low) / max(count - 1, 1)) for n in range(count)})
    far = (high - low) > 300
    return Axis(
        "", float(low), float(high),
        [(float(n), sidebar.month(date.fromordinal(n)) if far else _day(date.fromordinal(n))) for n in named],
    )  # fmt: skip


def _shares(days: Mapping[date, DraftingFigures], begin: date, end: date) -> dict[str, float]:
    """Return the share of each source of the tokens from `begin` to before `end`; empty where there are none."""
    inside = [one for day, one in days.items() if begin <= day < end]
    tokens = sum(one.tokens for one in inside)
    found: dict[str, float] = {}
    for one in inside:
        for name, count in one.sources.items():
            found[name] = found.get(name, 0.0) + count.accepted / tokens
    return found


def _replies(count: int) -> str:
    return plural("{n:,} reply", "{n:,} replies", count)


def _day(day: date) -> str:
    return sidebar.day(day)


RANGES = {"7 days": 7, "30 days": 30, "All": None}
_RANGES = ((later("7 days"), "7 days"), (later("30 days"), "30 days"), (later("All"), "All"))
USUAL = "30 days"
ALL_MODELS = later("All models")
METER_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Choice:
    """Keep what is shown: a name in RANGES, and a model's key or an empty one for all."""

    period: str = USUAL
    model: str = ""


class InsightsPanel:
    """The panel. What a user chose last stays chosen until the program ends."""

    name = "insights"
    title = later("Insights")

    def __init__(self, service: ChatService) -> None:
        self._service = service
        self._chosen: dict[int, Choice] = {}

    def build(self) -> None:
        """Make its components."""
        with gr.Row(elem_id="hc-insights-choice"):
            self._range = gr.Radio(
                [(_(said), name) for said, name in _RANGES], value=USUAL, label=_("Days"), show_label=False,
                container=False, elem_id="hc-range", min_width=0, scale=0,
            )  # fmt: skip
            self._model = gr.Dropdown(
                [(_(ALL_MODELS), "")], value="", label=_("Model that wrote"), show_label=False, container=False,
                elem_id="hc-writer", min_width=0, scale=0, filterable=False,
            )  # fmt: skip
        self._replies = self._still("hc-insights-replies")
        self._machine = self._still("hc-insights-machine")
        self._meters = self._still("hc-insights-meters")
        self._timer = gr.Timer(METER_SECONDS, active=False)

    @staticmethod
    def _still(elem_id: str) -> Any:
        return gr.HTML("", elem_id=elem_id, apply_default_css=False, js_on_load=None)

    def wire(self, session_of: SessionOf, live: Any) -> None:
        """Range and model draw the charts anew. The meters go on while the panel is open."""

        def chosen(name: str, model: str, request: gr.Request) -> dict[Any, Any]:
            user = session_of(request)[1]
            self._chosen[user] = Choice(
                name if name in RANGES else USUAL, model if isinstance(model, str) else ""
            )
            return self._drawn(user)

        def tick(request: gr.Request) -> dict[Any, Any]:
            session = session_of(request)[0]
            if session.panel != self.name:
                return {self._timer: gr.update(active=False)}
            return {self._meters: meters_card(meters())}

        drawn = [self._range, self._model, self._replies, self._machine, live]
        for control in (self._range, self._model):
            control.input(chosen, [self._range, self._model], drawn, trigger_mode="always_last", **QUIET)
        self._timer.tick(tick, None, [self._meters, self._timer, live], **QUIET)

    @property
    def outputs(self) -> list[Any]:
        """Return all its components."""
        return [self._range, self._model, self._replies, self._machine, self._meters, self._timer]

    def show(self, user_id: int) -> dict[Any, Any]:
        """Draw it as it is now; the meters begin to tick."""
        return self._drawn(user_id) | {
            self._meters: meters_card(meters()),
            self._timer: gr.update(active=True),
        }

    def _drawn(self, user_id: int) -> dict[Any, Any]:
        service, choice = self._service, self._chosen.get(user_id, Choice())
        names = service.data.models(user_id)
        if choice.model not in names:  # its chats may have been deleted
            choice = replace(choice, model="")
        days = RANGES[choice.period]
        found = service.data.insights(user_id, choice.model or None, days)
        models = [(_(ALL_MODELS), ""), *((name, key) for key, name in names.items())]
        return {
            self._range: choice.period,
            self._model: gr.update(choices=models, value=choice.model),
            self._replies: replies_page(found.over_time, names, date.today(), days, found.ever),
            self._machine: machine_page(
                found, service.costs(), service.plan(), service.index_memory(user_id)
            ),
        }
