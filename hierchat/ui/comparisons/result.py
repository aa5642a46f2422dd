"""The result of a comparison as HTML: both texts, their figures, where they differ, and what can be done with it."""

from __future__ import annotations

import html
import json

from hierchat.chat.comparison import ARMS, Comparison, Side, differences
from hierchat.chat.configuration import FROM
from hierchat.chat.frames import Arm, Verdict
from hierchat.chat.words import in_order, number, percent
from hierchat.language import _
from hierchat.ui import status, thought
from hierchat.ui.actions import button
from hierchat.ui.comparisons.chart import chart
from hierchat.ui.comparisons.difference import difference
from hierchat.ui.comparisons.export import export, repeated
from hierchat.ui.comparisons.picture import busy, picture
from hierchat.ui.dates import dated
from hierchat.ui.figures import figures_line
from hierchat.ui.outline import below_message
from hierchat.ui.sources import style_of

_NONE = "\N{EN DASH}"


def verdict_line(verdict: Verdict) -> str:
    """The sentence above both texts."""
    kind = "hc-same" if verdict.identical else "hc-differs"
    proof = status.proof_line(verdict.exact, verdict.identical)
    return f'<div class="hc-verdict {kind}" role="status">{html.escape(verdict.sentence)} {proof}</div>'


def date_of(result: Comparison) -> str:
    """When it was made."""
    return dated(result.at)


def drawn(result: Comparison, more: str = "") -> str:
    """All of it but question and verdict; `more`: further buttons."""
    moments = {arm: differences(result.sides[arm].moments) for arm in ARMS}
    data = {"moments": json.dumps(moments), "export": export(result), "picture": picture(result)}
    carried = "".join(f' data-{name}="{html.escape(value)}"' for name, value in data.items())
    buttons = button("hc_race", _("Replay at true speed"), css="hc-plain") if all(moments.values()) else ""
    buttons += button("hc_picture", _("Picture…"), css="hc-plain") + button(
        "hc_result_save", _("Save as JSON"), css="hc-plain"
    )
    sides = "".join(_side(arm, result.sides[arm]) for arm in ARMS)
    return (
        f'<article class="hc-result" aria-label="{_("Result")}" data-id="{result.id}"{carried}>'
        f'<div class="hc-result-tools">{buttons}{more}</div><div class="hc-sides">{sides}</div>'
        f'{_differs(result)}<div class="hc-measured">{chart(result)}{_table(result)}</div>{_details(result)}</article>'
    )


def _side(arm: Arm, side: Side) -> str:
    text = below_message(thought.drawn(side.text, side.figures.thought_seconds, arm))
    return (
        f'<section class="hc-side" data-arm="{arm}"><div class="hc-arm"><h2>{html.escape(side.name)}</h2>'
        '<p class="hc-race" aria-hidden="true" hidden></p></div>'
        f'<div class="hc-text">{text}</div><div class="hc-arm-figures">{figures_line(side.figures)}</div></section>'
    )


def _differs(result: Comparison) -> str:
    first, second = difference(*(result.sides[arm].text for arm in ARMS))
    if not first and not second:
        return ""
    columns = "".join(
        f'<div><h3>{html.escape(result.sides[arm].name)}</h3><div class="hc-words" dir="auto">{text}</div></div>'
        for arm, text in zip(ARMS, (first, second), strict=True)
    )
    summary = f"<summary>{_('Where the words differ')}</summary>"
    return f'<details class="hc-difference" open>{summary}<div>{columns}</div></details>'


def _table(result: Comparison) -> str:
    figures = [result.sides[arm].figures for arm in ARMS]

    def row(name: str, cells: list[str]) -> str:
        return f'<tr><th scope="row">{html.escape(name)}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'

    def said(value: float | None, form: str) -> str:
        return _NONE if value is None else form.format(value)

    rows = [
        row(
            _("Tokens a second"),
            [_NONE if f.tokens_per_second is None else number(f.tokens_per_second) for f in figures],
        ),
        row(_("Tokens"), [f"{f.tokens:,}" for f in figures]),
        row(_("First token after"), [said(f.first_token_seconds, "{:.2f} s") for f in figures]),
        row(_("Tokens per run of the model (T)"), [said(f.tokens_per_forward, "{:.2f}") for f in figures]),
        row(
            _("Drafts accepted"),
            [_NONE if f.acceptance_rate is None else percent(f.acceptance_rate) for f in figures],
        ),
    ]
    for source in in_order({source for f in figures for source in f.shares}):
        rows.append(
            row(
                _("From {label}").format(label=style_of(source).label),
                [percent(f.shares.get(source, 0.0)) for f in figures],
            )
        )
    heads = "".join(f'<th scope="col">{html.escape(result.sides[arm].name)}</th>' for arm in ARMS)
    return f'<table class="hc-both"><thead><tr><td></td>{heads}</tr></thead><tbody>{"".join(rows)}</tbody></table>'


def _details(result: Comparison) -> str:
    rows = [(_("Precisely"), result.verdict.precise or result.verdict.sentence), (_("Date"), date_of(result))]
    rows.append((_("Speed"), _("One run of each{others}").format(others=busy(result))))
    for arm in ARMS:
        side, settings = result.sides[arm], result.sides[arm].settings
        sampled = _("temperature {temperature:g}, seed {seed}").format(**settings)
        drafting = side.configuration
        models = _("with draft models") if drafting["draft_models"] else _("without draft models")
        rows.append(
            (side.name, _("{model} ({revision}) on {backend}; {sampled}; drafts from {texts}, {models}").format(
                model=side.model, revision=side.revision, backend=side.backend, sampled=sampled, models=models,
                texts=_(FROM[drafting["databases"]]),
            ))
        )  # fmt: skip
    rows += [(_("Machine"), result.machine), ("hierchat", result.hierchat)]
    cells = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>" for name, value in rows)
    again = repeated(result)
    commands = ""
    if again:
        commands = (
            f"<p>{_('Repeat it, with this line in question.jsonl:')}</p>"
            f"<pre>{html.escape(again['question.jsonl'])}</pre>"
            f"<pre>{html.escape(again['words'])}\n{html.escape(again['speed'])}</pre>"
            f"<p>{html.escape(again['note'])}</p>"
        )
    facts = f'<dl class="hc-facts">{cells}</dl>'
    return f'<details class="hc-details"><summary>{_("Details")}</summary>{facts}{commands}</details>'
