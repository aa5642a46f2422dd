"""Draw what stands for all days: how good estimates are, what the model costs, what is kept, memory."""

from __future__ import annotations

import html
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from hierchat.chat.wording import TIMES, in_order, percent
from hierchat.language import _, plural
from hierchat.page import charts
from hierchat.page.charts import DASH, Axis, Ink, Line, card, ink_of, note, nothing, size
from hierchat.page.figures import plan_picture, style_of

if TYPE_CHECKING:
    from hierchat.chat.statistics import ForwardCosts, IndexMemory, PlanView
    from hierchat.chat.user_data import Insights
    from hierchat.drafting.acceptance import Calibration
    from hierchat.runtime.costs import Meter
    from hierchat.store import GeneratedDrafts, GeneratedSize, HistorySize

_MATCHES = (1, 2, 3, 5, 9, 17)
"""Where the groups of match lengths begin; the last has no end."""
_FEW = 20
"""Fewer cases than these are no point of a chart."""
_WIDTHS = (1, 2, 4, 8, 16, 24, 32)
"""Rows that are named."""


def machine_page(
    found: Insights, costs: ForwardCosts | None, plan: PlanView | None, index: IndexMemory
) -> str:
    """Draw what stands for all days: estimates, costs, the plan, sizes, what models wrote while idle."""
    cards = [
        match_card(found.acceptance.by_match().tolist()),
        calibration_card(found.acceptance.calibration()),
        costs_card(costs),
        plan_card(plan),
        sizes_card(found.history, index),
    ]
    if found.generated.texts:
        cards.append(self_card(found.generated, found.generated_drafts))
    return f'<div class="hc-cards-grid">{"".join(cards)}</div>'


def match_card(counts: Sequence[Sequence[float]]) -> str:
    """Draw by length of match how often the likeliest draft was right. `counts` [length]: how many, how many right."""
    title = _("Drafts that were right, by what matched")
    ends = [*_MATCHES[1:], len(counts)]
    groups = [
        (first, end, *(sum(row[i] for row in counts[first:end]) for i in (0, 1)))
        for first, end in zip(_MATCHES, ends, strict=True)
    ]
    if not any(number >= _FEW for _, _, number, _ in groups):
        return card(title, nothing(
            _("A draft is found by the words before it. The more of them match, the more often it is right."),
            _("It is counted while replies are written, and kept twice a minute."), False,
        ))  # fmt: skip
    labels = [_group(first, end) for first, end in pairwise([*_MATCHES, 0])]
    ticks = [(n + 0.5, label) for n, label in enumerate(labels)]
    across = Axis(_("tokens before it that matched"), 0.0, float(len(groups)), ticks)
    stacks = [[(Ink(), right / number if number >= _FEW else 0.0)] for _, _, number, right in groups]
    rows = [
        (label, percent(right / number) if number else DASH, f"{number:,.0f}")
        for label, (_, _, number, right) in zip(labels, groups, strict=True)
    ]
    said = _("Share of likeliest drafts that were right, by how many tokens matched. A table follows.")
    return card(
        title,
        charts.columns(stacks, across, charts.percentages(_("of the likeliest drafts were right")), said)
        + note(_("Of all days."))
        + charts.table(title, (_("Tokens that matched"), _("Right"), _("Drafts")), rows),
    )


def calibration_card(calibration: Calibration) -> str:
    """Expected chances of drafts against what came true."""
    title = _("Are the expected chances true?")
    series = []
    for name in in_order(calibration):
        points = [(chance, right) for chance, right, count in calibration[name] if count >= _FEW]
        if points:
            series.append(Line(style_of(name).label, ink_of(name), points))
    if not series:
        return card(title, nothing(
            _("Of drafts with an expected chance of 60 %, six in ten should be right: then no time is lost on bad "
              "ones."),
            _("It is counted while replies are written, and kept twice a minute."), False,
        ))  # fmt: skip
    rows = [
        (style_of(name).label, percent(chance), percent(right), f"{count:,}")
        for name in in_order(calibration)
        for chance, right, count in calibration[name]
    ]
    across = charts.percentages(_("expected chance of a draft"))
    said = _("Expected chances of drafts against the share that was right. A table follows.")
    return card(
        title,
        charts.lines(series, across, charts.percentages(_("were right")), said, charts.diagonal())
        + charts.key((line.name, line.ink) for line in series)
        + note(_("On the dashed line, what was expected came true. Of all days."))
        + charts.table(title, (_("Source"), _("Expected"), _("Right"), _("Drafts")), rows),
    )


def costs_card(costs: ForwardCosts | None) -> str:
    """Milliseconds of a forward by rows."""
    title = _("What a run of the model costs")
    if costs is None:
        return card(title, nothing(
            _("How much longer a run takes that checks several drafts at once."),
            _("It is measured when a model has been loaded on this machine."), False,
        ))  # fmt: skip
    ms, most = costs.ms, len(costs.ms)
    across = Axis(_("tokens in one run: one, and the drafts that are checked with it"), 1.0, float(most),
                  [(float(n), str(n)) for n in _WIDTHS if n <= most and n not in (2, 4)])  # fmt: skip
    points = [(float(n), value) for n, value in enumerate(ms, 1)]
    said = _("A run takes {one:.1f} ms for one token and {all:.1f} ms for {most}. A table follows.").format(
        one=ms[0], all=ms[-1], most=most
    )
    rows = [(str(n), f"{ms[n - 1]:.1f} ms", f"{ms[n - 1] / ms[0]:.2f}{TIMES}") for n in _WIDTHS if n <= most]
    model = html.escape(costs.model)
    return card(
        title,
        charts.lines(
            [Line("ms", Ink(), points, marked=False)], across, charts.upward(_("milliseconds"), max(ms)), said
        )
        + note(
            _("{model}, {context:,} tokens into a chat. Measured here, and anew with every reply.").format(
                model=model, context=costs.context
            )
        )
        + charts.table(title, (_("Tokens"), _("Time"), _("Beside one")), rows),
    )


def plan_card(plan: PlanView | None) -> str:
    """The arrangement of draft models."""
    drawn = plan_picture(plan) or nothing(
        _("Which smaller models draft for the loaded one, how far ahead, and why others do not."),
        _("The loaded model has none."), False,
    )  # fmt: skip
    return card(_("Draft models"), drawn)


def sizes_card(kept: HistorySize, index: IndexMemory) -> str:
    """Draw what lies on the disk and in memory."""
    replies = plural("{n:,} reply", "{n:,} replies", kept.replies)
    tokens = plural("{n:,} token", "{n:,} tokens", kept.tokens)
    rows = [
        (_("Your history"), f"{replies}, {tokens}"),
        (
            _("Its index, to draft from"),
            _("{memory} in memory, {disk} on disk").format(
                memory=size(index.history), disk=size(kept.index_bytes)
            ),
        ),
        (
            _("Other texts that draft"),
            _("{size}, read from files as needed").format(size=size(index.corpora)),
        ),
        (_("Database, with all chats"), _("{size} on disk").format(size=size(kept.file_bytes))),
    ]
    cells = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in rows)
    return card(_("What is kept"), f'<dl class="hc-kept">{cells}</dl>')


def self_card(kept: GeneratedSize, worth: GeneratedDrafts) -> str:
    """Draw what the model wrote for itself, and what that was worth: at most, since other texts may have held the
    same."""
    tokens = plural("{n:,} token", "{n:,} tokens", kept.tokens)
    wrote = _("{tokens} for itself, {size}").format(tokens=tokens, size=size(kept.size))
    rows = [(_("It wrote"), wrote)]
    said = _("It counts from the next reply on.")
    if worth.forwards:
        now, without = worth.tokens / worth.forwards, worth.tokens / (worth.forwards + worth.found)
        rows += [
            (
                _("Of your replies since"),
                _("{share} of the tokens were drafted from it").format(
                    share=percent(worth.found / worth.tokens)
                ),
            ),
            (
                _("Tokens a run of the model"),
                _("{now:.2f}, up to {gain:.2f} of them by it").format(now=now, gain=now - without),
            ),
        ]
        said = _(
            "Up to: other texts may hold the same. Without any of these drafts, each of their tokens had taken a run "
            "of its own at most."
        )
    cells = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in rows)
    return card(_("What the model wrote for itself"), f'<dl class="hc-kept">{cells}</dl>' + note(said))


def meters_card(meters: Sequence[Meter]) -> str:
    """Memory, as it is now."""
    drawn = []
    for meter in meters:
        ours, others = meter.ours / meter.total, (meter.used - meter.ours) / meter.total
        name = html.escape(meter.name or _("Memory of this machine"))
        said = _("hierchat {ours}, others {others}, of {total}").format(
            ours=size(meter.ours), others=size(meter.used - meter.ours), total=size(meter.total)
        )
        drawn.append(
            f'<li><span class="hc-bar-name">{name}</span><span class="hc-bar-said">{said}</span>'
            f'<span class="hc-meter" aria-hidden="true"><i style="width:{ours:.2%}"></i>'
            f'<i style="width:{others:.2%}"></i></span></li>'
        )
    return card(_("Memory now"), f'<ul class="hc-bars">{"".join(drawn)}</ul>')


def _group(first: int, end: int) -> str:
    """The name of match lengths from `first` to before `end`; 0 for no end."""
    if not end:
        return f"{first}+"
    return str(first) if end == first + 1 else f"{first}{DASH}{end - 1}"
