"""Figures as HTML: one quiet line under a reply, and the details behind it. Pure functions."""

from __future__ import annotations

import html

from hierchat.chat.frames import Figures
from hierchat.engine.step import TARGET
from hierchat.ui.sampling import escaped
from hierchat.ui.sources import in_order, style_of

_TIMES = "\N{MULTIPLICATION SIGN}"
_ENDS = {
    "end": "the model had finished",
    "stop": "the stop string “{}”",
    "length": "the longest reply allowed",
    "context": "the context window was full",
    "stopped": "stopped by you",
}
_MEASURED = "Compared with plain decoding measured during this reply, {} tok/s."


def number(value: float) -> str:
    """A figure for the eye: one decimal below 100, thousands separated."""
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def percent(share: float) -> str:
    """A share as a whole percentage; a trace of something is not nothing."""
    return "<1 %" if 0 < share < 0.005 else f"{share * 100:.0f} %"


def _speedup(speedup: float, figures: Figures) -> str:
    why = _MEASURED.format(number(figures.baseline_tokens_per_second or 0.0))
    shown = f"{speedup:.2f}"
    quiet = " hc-slower" if float(shown) < 1 else ""
    return f'<span class="hc-figure hc-speedup{quiet}" title="{why}">{shown}{_TIMES}</span>'


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


def figures_line(figures: Figures, note: str = "", model: str = "") -> str:
    """Speed and speed-up where they deserve it, else tokens and seconds; the model, where it is to be named; and where
    the tokens came from."""
    parts: list[str] = []
    tokens = "1 token" if figures.tokens == 1 else f"{figures.tokens:,} tokens"
    speedup = figures.deserved_speedup
    if speedup is not None and figures.tokens_per_second is not None:
        speed = f"<b>{number(figures.tokens_per_second)}</b> tok/s"
        parts.append(f'<span class="hc-figure">{speed}</span>{_speedup(speedup, figures)}')
        parts.append(f'<span class="hc-figure">{tokens}</span>')
        if figures.first_token_seconds is not None:
            parts.append(f'<span class="hc-figure">first after {figures.first_token_seconds:.1f} s</span>')
    elif figures.tokens:
        seconds = f" in {number(figures.seconds)} s" if figures.seconds else ""
        parts.append(f'<span class="hc-figure">{tokens}{seconds}</span>')
    if note:
        parts.append(f'<span class="hc-note">{html.escape(note)}</span>')
    if model:
        parts.append(f'<span class="hc-writer" dir="auto">{html.escape(model)}</span>')
    joined = '<span class="hc-sep">·</span>'.join(parts)
    return f'<div class="hc-figures"><span class="hc-numbers">{joined}</span>{shares_bar(figures)}</div>'


def details(figures: Figures | None, model: str = "") -> str:
    """Who wrote it, and every measured figure by name, for the fold-out under a reply."""
    rows = [("Written by", model)] if model else []
    rows += _measured(figures) if figures else []
    cells = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>" for name, value in rows)
    return f'<dl class="hc-facts">{cells}</dl>'


def _measured(figures: Figures) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    if figures.seconds:
        rows.append(("Decoding time", f"{figures.seconds:.2f} s"))
    if figures.tokens_per_second is not None:
        rows.append(("Speed", f"{number(figures.tokens_per_second)} tok/s"))
    if figures.first_token_seconds is not None:
        rows.append(("First token after", f"{figures.first_token_seconds:.2f} s"))
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
    if figures.speedup is not None:
        doubt = "" if figures.deserved_speedup is not None else ", too little measured to rely on"
        rows.append(("Speed-up", f"{figures.speedup:.2f}{_TIMES}{doubt}"))
    if figures.finish in _ENDS:
        rows.append(("Stop reason", _ENDS[figures.finish].format(escaped(figures.stop_string or ""))))
    if figures.seed is not None:
        rows.append(("Seed", str(figures.seed)))
    for s in in_order(figures.shares):
        accepted = (
            f", {percent(figures.acceptance[s])} of its drafts accepted" if s in figures.acceptance else ""
        )
        rows.append((f"From {style_of(s).label}", percent(figures.shares[s]) + accepted))
    return rows
