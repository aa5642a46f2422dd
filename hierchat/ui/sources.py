"""One colour and one underline for each source of tokens: the single table behind legend, bar and tokens."""

from __future__ import annotations

import html
from collections.abc import Iterable
from dataclasses import dataclass

from hierchat.engine.step import TARGET


@dataclass(frozen=True, slots=True)
class Style:
    """How one source is drawn. `fill` is the same in both themes; `line` carries contrast against each page."""

    slug: str
    label: str
    fill: str
    line_light: str
    line_dark: str
    underline: str
    """A CSS text-decoration-style, or "none"."""


STYLES = {
    TARGET: Style("target", "model", "#8A8F98", "#6B7280", "#9CA3AF", "none"),
    "context": Style("context", "context", "#0072B2", "#0072B2", "#4BA3DB", "solid"),
    "history": Style("history", "history", "#E69F00", "#A66F00", "#E69F00", "dashed"),
    "statistics": Style("statistics", "corpus", "#009E73", "#00805D", "#1FBF92", "dotted"),
}
_DRAFT = Style("draft", "draft", "#CC79A7", "#B3558A", "#CC79A7", "double")


def style_of(source: str) -> Style:
    """The style of a source; every name that is not in the table is a draft model's."""
    known = STYLES.get(source)
    if known is not None:
        return known
    return Style(_DRAFT.slug, source, _DRAFT.fill, _DRAFT.line_light, _DRAFT.line_dark, _DRAFT.underline)


def in_order(sources: Iterable[str]) -> list[str]:
    """Sources as the page lists them: the table's order, then draft models by name, the model alone last."""
    ranks = {name: rank for rank, name in enumerate(STYLES)}
    return sorted(set(sources), key=lambda s: (s == TARGET, ranks.get(s, len(ranks)), s))


def css() -> str:
    """Variables for both themes and one rule per source, generated so that no colour is written twice."""
    styles = [*STYLES.values(), _DRAFT]
    light = "".join(f"--{s.slug}-fill:{s.fill};--{s.slug}-line:{s.line_light};" for s in styles)
    dark = "".join(f"--{s.slug}-line:{s.line_dark};" for s in styles)
    rules = "".join(
        f".hc-src-{s.slug}{{text-decoration:underline {s.underline} var(--{s.slug}-line) 2px;"
        f"background:color-mix(in srgb,var(--{s.slug}-fill) 14%,transparent)}}"
        for s in styles
        if s.underline != "none"
    )
    return f":root{{{light}}}.dark{{{dark}}}{rules}"


def swatch(source: str) -> str:
    """A short sample of the underline, for legends."""
    style = style_of(source)
    if style.underline == "none":
        return ""
    width = "4px" if style.underline == "double" else "3px"
    return (
        f'<i class="hc-swatch" style="border-bottom:{width} {style.underline} var(--{style.slug}-line)"></i>'
    )


def legend(sources: Iterable[str]) -> str:
    """Names of the sources beside their samples."""
    entries = "".join(
        f"<li>{swatch(source)}{html.escape(style_of(source).label)}{' (unmarked)' if source == TARGET else ''}</li>"
        for source in in_order(sources)
    )
    return f'<ul class="hc-legend" aria-label="Where the tokens came from">{entries}</ul>'


def coloured(spans: Iterable[tuple[str, str]]) -> str:
    """A reply with its tokens marked by source: exact text, white space kept, nothing rendered."""
    runs = list(spans)
    body = "".join(
        f'<span class="hc-src-{style_of(source).slug}" title="{html.escape(style_of(source).label)}">'
        f"{html.escape(text)}</span>"
        for source, text in runs
    )
    return f'<div class="hc-spans">{body}</div>{legend(source for source, _ in runs)}'
