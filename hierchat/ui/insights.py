"""What the Insights view shows, as HTML. Pure functions of what was measured."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

from hierchat.engine.step import TARGET
from hierchat.ui import charts
from hierchat.ui.charts import Axis, Bar, Ink, Line
from hierchat.ui.figures import percent
from hierchat.ui.plan import plan_picture
from hierchat.ui.sources import in_order, style_of

if TYPE_CHECKING:
    from hierchat.chat.insights import ForwardCosts, IndexMemory
    from hierchat.chat.plan import PlanView
    from hierchat.drafting.acceptance import Acceptance, Calibration
    from hierchat.runtime.meters import Meter
    from hierchat.store import DraftingFigures, HistorySize, OverTimeFigures, SourceCount

_TIMES = "\N{MULTIPLICATION SIGN}"
_MINUS = "\N{MINUS SIGN}"
_DASH = "\N{EN DASH}"
_MATCHES = (1, 2, 3, 5, 9, 17)
"""Where the groups of match lengths begin; the last has no end."""
_FEW = 20
"""Fewer cases than these are no point of a chart."""
_WIDTHS = (1, 2, 4, 8, 16, 24, 32)
"""Rows that are named."""
_LONG = 62
"""More days than these are drawn by weeks."""
_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def size(number_of_bytes: float) -> str:
    """For the eye, in decimal units."""
    for unit, name in _UNITS:
        if number_of_bytes >= unit:
            shown = number_of_bytes / unit
            return f"{shown:.1f} {name}" if shown < 100 else f"{shown:.0f} {name}"
    return f"{number_of_bytes:.0f} bytes"


def duration(seconds: float) -> str:
    """For the eye: seconds, minutes or hours."""
    sign, amount = (_MINUS if seconds <= -0.5 else ""), abs(seconds)
    if amount < 90:
        return f"{sign}{amount:.0f} s"
    return f"{sign}{amount / 60:.0f} min" if amount < 5400 else f"{sign}{amount / 3600:.1f} h"


def replies_page(
    found: OverTimeFigures, names: Mapping[str, str], today: date, days: int | None, ever: bool
) -> str:
    """What changes with the range. `names` of models by key; `ever`: there are measured replies in some range."""
    cards = [speed_card(found, today, days, ever), shares_card(found, today, days, ever)]
    cards.append(sources_card(found.whole.sources, ever))
    if len(found.models) > 1:
        cards.append(models_card(found.models, names))
    return tiles(found.whole) + f'<div class="hc-cards-grid">{"".join(cards)}</div>'


def machine_page(
    learned: Acceptance,
    costs: ForwardCosts | None,
    plan: PlanView | None,
    kept: HistorySize,
    index: IndexMemory,
) -> str:
    """What stands for all days: estimates, costs, the plan, sizes."""
    cards = [
        match_card(learned.by_match().tolist()),
        calibration_card(learned.calibration()),
        costs_card(costs),
        plan_card(plan),
        sizes_card(kept, index),
    ]
    return f'<div class="hc-cards-grid">{"".join(cards)}</div>'


def tiles(whole: DraftingFigures) -> str:
    """The four figures that are asked for first; a dash where there is none yet."""
    few = f"median of {_count(whole.compared, 'reply', 'replies')} beside which it was measured"
    unknown = "once a reply is long enough to measure both"
    replies = _count(whole.replies, "measured reply", "measured replies")
    accepted = sum(count.accepted for count in whole.sources.values())
    per_run = f"{whole.tokens_per_forward or 0:.2f} tokens for each run of the model"
    shown = [
        ("Speed", f"{whole.speedup:.2f}{_TIMES}" if whole.speedup else _DASH, "faster than without drafts",
         few if whole.speedup else unknown),
        ("Time", duration(whole.saved_seconds) if whole.compared else _DASH, "saved against plain decoding",
         f"over {whole.compared:,} of {replies}" if whole.compared else unknown),
        ("Written", f"{whole.tokens:,}", "tokens", f"in {replies}"),
        ("Drafts", percent(accepted / whole.tokens) if whole.tokens else _DASH, "of the tokens came from drafts",
         per_run if whole.tokens else "with the first reply"),
    ]  # fmt: skip
    cells = "".join(
        f'<div class="hc-tile"><dt>{name}</dt><dd><b>{value}</b> <span>{what}</span><small>{note}</small></dd></div>'
        for name, value, what, note in shown
    )
    return f'<dl class="hc-tiles">{cells}</dl>'


def speed_card(found: OverTimeFigures, today: date, days: int | None, ever: bool) -> str:
    """Speed-up by day."""
    title = "Speed by day"
    known = {day: one for day, one in found.days.items() if one.speedup is not None}
    if not known:
        return _card(title, _nothing(
            "How much faster each day's replies came than without drafts.",
            "It begins with the first reply of some dozens of tokens: in shorter ones plain decoding is not measured.",
            ever,
        ))  # fmt: skip
    across = _days(known, today, days)
    points = [(float(day.toordinal()), one.speedup or 0.0) for day, one in known.items()]
    up = charts.upward("times faster than without drafts", max(1.0, *(y for _, y in points)), _TIMES)
    said = f"Speed by day, from {points[0][1]:.2f} to {points[-1][1]:.2f} times. A table follows."
    rows = [(_day(day), f"{one.speedup:.2f}{_TIMES}", f"{one.compared:,}") for day, one in known.items()]
    return _card(
        title,
        charts.lines([Line("speed", Ink(), points)], across, up, said, charts.level(up, 1.0))
        + _note(
            "The dashed line is plain decoding. A point is the median of the day's replies beside which it was measured."
        )
        + charts.table(("Day", "Faster", "Replies"), rows),
    )


def shares_card(found: OverTimeFigures, today: date, days: int | None, ever: bool) -> str:
    """Share of the tokens by source, by day or week."""
    title = "Where the words came from"
    if not found.days:
        return _card(title, _nothing(
            "Which part of the words stood in this chat, in your earlier chats or in other texts before, and which the "
            "model wrote alone.", "It begins with the first reply.", ever,
        ))  # fmt: skip
    across = _days(found.days, today, days)
    first, last = date.fromordinal(int(across.low)), date.fromordinal(int(across.high))
    step = 1 if (last - first).days <= _LONG else 7
    begins = [date.fromordinal(n) for n in range(first.toordinal(), last.toordinal() + 1, step)]
    periods = {begin: _shares(found.days, begin, begin + timedelta(days=step)) for begin in begins}
    names = [name for name in in_order(found.whole.sources) if any(p.get(name) for p in periods.values())]
    stacks = [[(_ink(name), shares.get(name, 0.0)) for name in names] for shares in periods.values()]
    places = Axis(
        across.caption if step == 1 else "weeks",
        across.low - 0.5,
        begins[-1].toordinal() + step - 0.5,
        across.ticks,
    )
    drafted = sum(count.accepted for count in found.whole.sources.values())
    said = f"Share of the tokens by source; {percent(drafted / found.whole.tokens)} came from drafts. A table follows."
    rows = [
        (_day(begin), *(percent(shares.get(name, 0.0)) for name in names))
        for begin, shares in periods.items()
        if shares
    ]
    return _card(
        title,
        charts.columns(stacks, places, charts.percentages("of the tokens"), said)
        + charts.key((style_of(name).label, _ink(name)) for name in names)
        + _note("The rest the model wrote by itself.")
        + charts.table(
            ("Day" if step == 1 else "Week from", *(style_of(name).label for name in names)), rows
        ),
    )


def sources_card(sources: Mapping[str, SourceCount], ever: bool) -> str:
    """How many drafts of each source were right."""
    title = "Drafts that were right, by source"
    asked = [name for name in in_order(sources) if name != TARGET and sources[name].proposed]
    if not asked:
        return _card(title, _nothing(
            "How many of its drafts the model would have written itself.", "It begins with the first reply.", ever
        ))  # fmt: skip
    rows = []
    for name in asked:
        count = sources[name]
        share = count.accepted / count.proposed
        said = f"{percent(share)} of {count.proposed:,}"
        rows.append(Bar(style_of(name).label, _ink(name), share, said))
    return _card(title, charts.bars(rows) + _note("A wrong draft costs a little time and changes no word."))


def models_card(models: Mapping[str, DraftingFigures], names: Mapping[str, str]) -> str:
    """Speed-up of each model, the one that wrote most first."""
    ranked = sorted(models.items(), key=lambda model: -model[1].replies)
    most = max([one.speedup or 0.0 for one in models.values()]) or 1.0
    rows = []
    for model, one in ranked:
        speed = f"{one.speedup:.2f}{_TIMES}" if one.speedup else "not measured"
        said = f"{speed}, {_count(one.replies, 'reply', 'replies')}"
        rows.append(Bar(names.get(model, "?"), Ink(), (one.speedup or 0.0) / most, said))
    return _card(
        "Speed by model", charts.bars(rows) + _note("Times faster than the same model without drafts.")
    )


def match_card(counts: Sequence[Sequence[float]]) -> str:
    """By length of match, how often the likeliest draft was right. `counts` [length]: how many, how many right."""
    title = "Drafts that were right, by what matched"
    ends = [*_MATCHES[1:], len(counts)]
    groups = [
        (first, end, *(sum(row[i] for row in counts[first:end]) for i in (0, 1)))
        for first, end in zip(_MATCHES, ends, strict=True)
    ]
    if not any(number >= _FEW for _, _, number, _ in groups):
        return _card(title, _nothing(
            "A draft is found by the words before it. The more of them match, the more often it is right.",
            "It is counted while replies are written, and kept twice a minute.", False,
        ))  # fmt: skip
    labels = [_group(first, end) for first, end in pairwise([*_MATCHES, 0])]
    ticks = [(n + 0.5, label) for n, label in enumerate(labels)]
    across = Axis("tokens before it that matched", 0.0, float(len(groups)), ticks)
    stacks = [[(Ink(), right / number if number >= _FEW else 0.0)] for _, _, number, right in groups]
    rows = [
        (label, percent(right / number) if number else _DASH, f"{number:,.0f}")
        for label, (_, _, number, right) in zip(labels, groups, strict=True)
    ]
    said = "Share of likeliest drafts that were right, by how many tokens matched. A table follows."
    return _card(
        title,
        charts.columns(stacks, across, charts.percentages("of the likeliest drafts were right"), said)
        + _note("Of all days.")
        + charts.table(("Tokens that matched", "Right", "Drafts"), rows),
    )


def calibration_card(calibration: Calibration) -> str:
    """Expected chances of drafts against what came true."""
    title = "Are the expected chances true?"
    series = []
    for name in in_order(calibration):
        points = [(chance, right) for chance, right, count in calibration[name] if count >= _FEW]
        if points:
            series.append(Line(style_of(name).label, _ink(name), points))
    if not series:
        return _card(title, _nothing(
            "Of drafts with an expected chance of 60 %, six in ten should be right: then no time is lost on bad ones.",
            "It is counted while replies are written, and kept twice a minute.", False,
        ))  # fmt: skip
    rows = [
        (style_of(name).label, percent(chance), percent(right), f"{count:,}")
        for name in in_order(calibration)
        for chance, right, count in calibration[name]
    ]
    across = charts.percentages("expected chance of a draft")
    said = "Expected chances of drafts against the share that was right. A table follows."
    return _card(
        title,
        charts.lines(series, across, charts.percentages("were right"), said, charts.diagonal())
        + charts.key((line.name, line.ink) for line in series)
        + _note("On the dashed line, what was expected came true. Of all days.")
        + charts.table(("Source", "Expected", "Right", "Drafts"), rows),
    )


def costs_card(costs: ForwardCosts | None) -> str:
    """Milliseconds of a forward by rows."""
    title = "What a run of the model costs"
    if costs is None:
        return _card(title, _nothing(
            "How much longer a run takes that checks several drafts at once.",
            "It is measured when a model has been loaded on this machine.", False,
        ))  # fmt: skip
    ms, most = costs.ms, len(costs.ms)
    across = Axis("tokens in one run: one, and the drafts that are checked with it", 1.0, float(most),
                  [(float(n), str(n)) for n in _WIDTHS if n <= most])  # fmt: skip
    points = [(float(n), value) for n, value in enumerate(ms, 1)]
    said = f"A run takes {ms[0]:.1f} ms for one token and {ms[-1]:.1f} ms for {most}. A table follows."
    rows = [(str(n), f"{ms[n - 1]:.1f} ms", f"{ms[n - 1] / ms[0]:.2f}{_TIMES}") for n in _WIDTHS if n <= most]
    model = html.escape(costs.model)
    return _card(
        title,
        charts.lines(
            [Line("ms", Ink(), points, marked=False)], across, charts.upward("milliseconds", max(ms)), said
        )
        + _note(f"{model}, {costs.context:,} tokens into a chat. Measured here, and anew with every reply.")
        + charts.table(("Tokens", "Time", "Beside one"), rows),
    )


def plan_card(plan: PlanView | None) -> str:
    """The arrangement of draft models."""
    drawn = plan_picture(plan) or _nothing(
        "Which smaller models draft for the loaded one, how far ahead, and why others do not.",
        "The loaded model has none.", False,
    )  # fmt: skip
    return _card("Draft models", drawn)


def sizes_card(kept: HistorySize, index: IndexMemory) -> str:
    """What lies on the disk and in memory."""
    replies, tokens = _count(kept.replies, "reply", "replies"), _count(kept.tokens, "token", "tokens")
    rows = [
        ("Your history", f"{replies}, {tokens}"),
        ("Its index, to draft from", f"{size(index.history)} in memory, {size(kept.index_bytes)} on disk"),
        ("Other texts that draft", f"{size(index.corpora)}, read from files as needed"),
        ("Database, with all chats", f"{size(kept.file_bytes)} on disk"),
    ]
    cells = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in rows)
    return _card("What is kept", f'<dl class="hc-kept">{cells}</dl>')


def meters_card(meters: Sequence[Meter]) -> str:
    """Memory, as it is now."""
    drawn = []
    for meter in meters:
        ours, others = meter.ours / meter.total, (meter.used - meter.ours) / meter.total
        name = html.escape(meter.name or "Memory of this machine")
        said = f"hierchat {size(meter.ours)}, others {size(meter.used - meter.ours)}, of {size(meter.total)}"
        drawn.append(
            f'<li><span class="hc-bar-name">{name}</span><span class="hc-bar-said">{said}</span>'
            f'<span class="hc-meter" aria-hidden="true"><i style="width:{ours:.2%}"></i>'
            f'<i style="width:{others:.2%}"></i></span></li>'
        )
    return _card("Memory now", f'<ul class="hc-bars">{"".join(drawn)}</ul>')


def _ink(source: str) -> Ink:
    style = style_of(source)
    return Ink(f"var(--{style.slug}-line)", style.underline)


def _card(title: str, inside: str) -> str:
    return f'<section class="hc-insight"><h2>{title}</h2>{inside}</section>'


def _note(sentence: str) -> str:
    return f'<p class="hc-quiet">{sentence}</p>'


def _nothing(what: str, when: str, ever: bool) -> str:
    """What will stand here. `ever`: there is something in a longer range."""
    comes = "Nothing in these days: choose a longer range." if ever else when
    return f'<div class="hc-nothing"><p>{what}</p><p class="hc-quiet">{comes}</p></div>'


def _count(count: int, one: str, many: str) -> str:
    return f"1 {one}" if count == 1 else f"{count:,} {many}"


def _day(day: date) -> str:
    return f"{day.day} {day:%b}"


def _group(first: int, end: int) -> str:
    """The name of match lengths from `first` to before `end`; 0 for no end."""
    if not end:
        return f"{first}+"
    return str(first) if end == first + 1 else f"{first}{_DASH}{end - 1}"


def _days(known: Mapping[date, DraftingFigures], today: date, days: int | None) -> Axis:
    """The days of the range, or from the first to the last that is known; a few of them named."""
    last = max(today, *known) if known else today
    first = today - timedelta(days=days - 1) if days else min(known, default=today)
    low, high = first.toordinal(), last.toordinal()
    count = min(high - low + 1, 4)
    named = sorted({low + round(n * (high - low) / max(count - 1, 1)) for n in range(count)})
    far = (high - low) > 300
    return Axis(
        "days", float(low), float(high),
        [(float(n), f"{date.fromordinal(n):%b %Y}" if far else _day(date.fromordinal(n))) for n in named],
    )  # fmt: skip


def _shares(days: Mapping[date, DraftingFigures], begin: date, end: date) -> dict[str, float]:
    """Of the tokens from `begin` to before `end`, the share of each source; empty where there are none."""
    inside = [one for day, one in days.items() if begin <= day < end]
    tokens = sum(one.tokens for one in inside)
    found: dict[str, float] = {}
    for one in inside:
        for name, count in one.sources.items():
            found[name] = found.get(name, 0.0) + count.accepted / tokens
    return found
