"""A picture of a result that can be shared: one SVG that needs nothing else, light or dark by the class of its root."""

from __future__ import annotations

import html
import textwrap
import time

from hierchat.chat.comparison import ARMS, Comparison
from hierchat.chat.words import number, pace, percent
from hierchat.language import _

WIDTH, PAD = 1200, 64
_LINE, _MOST_LINES, _WRAP = 46, 3, 54
_BARS = 640
_STYLE = (
    "text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Noto Sans',sans-serif}"
    ".page{fill:#fff}.ink{fill:#1d1d21}.quiet{fill:#63636c}.first{fill:#8a8f98}.second{fill:#5b5bd6}.rule{fill:#e4e4e9}"
    ".dark .page{fill:#17171b}.dark .ink{fill:#ececf1}.dark .quiet{fill:#a2a2ad}.dark .second{fill:#a5a5f3}"
    ".dark .rule{fill:#313139}"
)


def picture(result: Comparison) -> str:
    """The question stands in a group of its own at the top, `data-question` pixels high: without it the picture begins
    below."""
    lines = textwrap.wrap(result.question, _WRAP, max_lines=_MOST_LINES, placeholder=" …") or [""]
    above = len(lines) * _LINE + 56
    height = above + 486
    question = "".join(_text(PAD, 80 + at * _LINE, 34, "ink", text) for at, text in enumerate(_quoted(lines)))
    question += f'<rect class="rule" x="{PAD}" y="{above - 2}" width="{WIDTH - 2 * PAD}" height="2"/>'
    speeds = {arm: result.sides[arm].figures.tokens_per_second or 0.0 for arm in ARMS}
    most = max(speeds.values()) or 1.0
    bars = "".join(
        _text(PAD, above + 152 + 108 * at, 28, "ink", textwrap.shorten(result.sides[arm].name, 70, placeholder=" …"))
        + f'<rect class="{arm}" x="{PAD}" y="{above + 168 + 108 * at}" rx="6" height="36" '
        f'width="{max(8.0, speeds[arm] / most * _BARS):.0f}"/>'
        + _text(
            PAD + 20 + max(8.0, speeds[arm] / most * _BARS), above + 196 + 108 * at, 30, "ink",
            _("{speed} tokens/s").format(speed=number(speeds[arm])), bold=True,
        )
        for at, arm in enumerate(ARMS)
    )  # fmt: skip
    models = _(" and ").join(dict.fromkeys(result.sides[arm].model for arm in ARMS))
    day = time.strftime("%Y-%m-%d", time.localtime(result.at))
    foot = _text(
        PAD,
        above + 408,
        22,
        "quiet",
        textwrap.shorten(
            _("{models} on {machine}").format(models=models, machine=result.machine), 92, placeholder=" …"
        ),
    )
    runs = _("one run of each{others}").format(others=busy(result))
    foot += _text(PAD, above + 442, 22, "quiet", f"{day}, hierchat {result.hierchat}, {runs}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'data-question="{above}"><style>{_STYLE}</style>'
        f'<rect class="page" width="{WIDTH}" height="{height}"/><g class="question">{question}</g>'
        f"{_text(PAD, above + 84, 44, 'ink', headline(result), bold=True)}{bars}{foot}</svg>"
    )


def headline(result: Comparison) -> str:
    """How fast the second side is against the first, and whether the words are the same."""
    same = _("word for word the same") if result.verdict.identical else _("other words")
    if not (speedup := result.deserved_speedup):
        return same.capitalize()
    told = pace(speedup)
    return (
        _("{pace}, {same}").format(pace=told, same=same) if told else _("As fast, {same}").format(same=same)
    )


def busy(result: Comparison) -> str:
    """What other programs used of the processor meanwhile, as the end of a sentence; empty where that is not known."""
    others = result.verdict.others
    told = _(", while other programs used {share} of the processor")
    return "" if others is None else told.format(share=percent(others))


def _quoted(lines: list[str]) -> list[str]:
    return f"“{chr(10).join(lines)}”".split(chr(10))


def _text(x: float, y: float, size: int, css: str, text: str, *, bold: bool = False) -> str:
    weight = ' font-weight="700"' if bold else ""
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" class="{css}"{weight}>{html.escape(text)}</text>'
    )
