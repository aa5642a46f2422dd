"""One colour, one underline and one name for each source of tokens: the single table behind legend, bar and tokens."""

from __future__ import annotations

import html
from collections.abc import Iterable
from dataclasses import dataclass, replace

from hierchat.chat.words import SOURCES, in_order, source_words
from hierchat.engine.step import TARGET
from hierchat.language import _, later


@dataclass(frozen=True, slots=True)
class Style:
    """How one source is drawn. `fill` is the same in both themes; `line` carries contrast against each page."""

    slug: str
    label: str
    explained: str
    """In one sentence."""
    fill: str
    line_light: str
    line_dark: str
    underline: str
    """A CSS text-decoration-style, or "none"."""


STYLES = {
    TARGET: Style(
        "target", SOURCES[TARGET], later("No draft had it: the model wrote it in a run of its own."),
        "#8A8F98", "#6B7280", "#9CA3AF", "none",
    ),
    "context": Style(
        "context", SOURCES["context"],
        later("It stood earlier in this chat behind the same words, or the model found it likely behind them."),
        "#0072B2", "#0072B2", "#4BA3DB", "solid",
    ),
    "history": Style(
        "history", SOURCES["history"],
        later(
            "It stood in another chat of yours with this model behind the same words, or the model found it likely "
            "behind them."
        ),
        "#E69F00", "#A66F00", "#E69F00", "dashed",
    ),
    "statistics": Style(
        "statistics", SOURCES["statistics"],
        later("It stood in the phrases that come with hierchat, or in files that you added, behind the same words."),
        "#009E73", "#00805D", "#1FBF92", "dotted",
    ),
}  # fmt: skip
_DRAFT = Style(
    "draft", later("draft model"), later("A smaller model guessed it ahead of the large one."),
    "#CC79A7", "#B3558A", "#CC79A7", "double",
)  # fmt: skip


def style_of(source: str) -> Style:
    """The style of a source, its words in the reader's language; other names are draft models'."""
    style = STYLES.get(source, _DRAFT)
    return replace(style, label=source_words(source), explained=_(style.explained))


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
        return '<i class="hc-swatch"></i>'
    width = "4px" if style.underline == "double" else "3px"
    return (
        f'<i class="hc-swatch" style="border-bottom:{width} {style.underline} var(--{style.slug}-line)"></i>'
    )


def legend(sources: Iterable[str]) -> str:
    """What the sources are, beside their samples."""
    entries = "".join(
        f"<li>{swatch(source)}<span><b>{html.escape(style_of(source).label)}</b>"
        f"{_(' (unmarked)') if source == TARGET else ''} {style_of(source).explained}</span></li>"
        for source in in_order(sources)
    )
    return f'<ul class="hc-legend" aria-label="{_("Where the words came from")}">{entries}</ul>'
