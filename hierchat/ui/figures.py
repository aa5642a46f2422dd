"""Figures as HTML: one quiet line under a reply, and the details behind it. Pure functions."""

from __future__ import annotations

import html

from hierchat.chat.frames import Figures
from hierchat.engine.step import TARGET
from hierchat.ui.sources import in_order, style_of

DASH = "\N{EN DASH}"
_TIMES = "\N{MULTIPLICATION SIGN}"
_NO_BASELINE = "No speed-up shown: plain decoding has not been measured on this machine with this model yet."
_TOO_SHORT = "No speed-up shown: the reply is too short to measure its speed."
_ESTIMATED = "Estimated: compared with plain decoding as measured when the model was loaded, {} tok/s."
_MEASURED = "Compared with plain decoding measured during this reply, {} tok/s."


def number(value: float) -> str:
    """A figure for the eye: one decimal below 100, thousands separated."""
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def percent(share: float) -> str:
    """A share as a whole percentage; a trace of something is not nothing."""
    return "<1 %" if 0 < share < 0.005 else f"{share * 100:.0f} %"


def _speedup(figures: Figures) -> str:
    if figures.baseline_tokens_per_second is None or figures.baseline is None:
        return f'<span class="hc-figure hc-speedup" title="{_NO_BASELINE}">{DASH}</span>'
    if figures.speedup is None:
        return f'<span class="hc-figure hc-speedup" title="{_TOO_SHORT}">{DASH}</span>'
    estimated = figures.baseline == "estimated"
    why = (_ESTIMATED if estimated else _MEASURED).format(number(figures.baseline_tokens_per_second))
    mark = "≈" if estimated else ""
    return f'<span class="hc-figure hc-speedup" title="{why}">{mark}{figures.speedup:.2f}{_TIMES}</span>'


def shares_bar(figures: Figures) -> str:
    """A thin segmented bar of draft shares with its labels; the model's own share is the empty rest."""
    drafted = [s for s in in_order(figures.shares) if s != TARGET and figures.shares[s] > 0]
    if not drafted:
        return ""
    segments = "".join(
        f'<i style="width:{figures.shares[s] * 100:.2f}%;background:var(--{style_of(s).slug}-line)"></i>'
        for s in drafted
    )
    labels = "".join(
        f'<span class="hc-share"><i class="hc-dot" style="background:var(--{style_of(s).slug}-line)"></i>'
        f"{html.escape(style_of(s).label)} {percent(figures.shares[s])}</span>"
        for s in drafted
    )
    return (
        '<span class="hc-shares"><span class="hc-bar" role="img" aria-label="Draft share by source">'
        f"{segments}</span>{labels}</span>"
    )


def figures_line(figures: Figures, note: str = "") -> str:
    """Speed, speed-up, length, first token, and where the tokens came from."""
    parts: list[str] = []
    if figures.tokens:
        speed = number(figures.tokens_per_second) if figures.tokens_per_second is not None else DASH
        parts.append(f'<span class="hc-figure"><b>{speed}</b> tok/s</span>{_speedup(figures)}')
        parts.append(f'<span class="hc-figure">{figures.tokens:,} tokens</span>')
    if figures.first_token_seconds is not None:
        parts.append(f'<span class="hc-figure">first after {figures.first_token_seconds:.1f} s</span>')
    if note:
        parts.append(f'<span class="hc-note">{html.escape(note)}</span>')
    joined = '<span class="hc-sep">·</span>'.join(parts)
    return f'<div class="hc-figures"><span class="hc-numbers">{joined}</span>{shares_bar(figures)}</div>'


def details(figures: Figures) -> str:
    """Every measured figure by name, for the fold-out under a reply."""
    rows: list[tuple[str, str]] = [("Decoding time", f"{figures.seconds:.2f} s")]
    if figures.tokens_per_forward is not None:
        rows.append(("Tokens per forward", f"{figures.tokens_per_forward:.2f}"))
    if figures.acceptance_rate is not None:
        rows.append(("Drafts accepted", percent(figures.acceptance_rate)))
    if figures.draft_ms is not None:
        rows.append(("Draft time per step", f"{figures.draft_ms:.2f} ms"))
    if figures.baseline_tokens_per_second is not None:
        kind = "measured in this reply" if figures.baseline == "measured" else "measured at load"
        rows.append(("Plain decoding", f"{number(figures.baseline_tokens_per_second)} tok/s, {kind}"))
    else:
        rows.append(("Plain decoding", "not measured"))
    for s in in_order(figures.shares):
        accepted = (
            f", {percent(figures.acceptance[s])} of its drafts accepted" if s in figures.acceptance else ""
        )
        rows.append((f"From {style_of(s).label}", percent(figures.shares[s]) + accepted))
    cells = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>" for name, value in rows)
    return f'<dl class="hc-facts">{cells}</dl>'
