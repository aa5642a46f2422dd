"""Figures as HTML: one quiet line under a reply, and the details behind it. Pure functions."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hierchat.chat import wording
from hierchat.chat.frames import Figures
from hierchat.config import GenerationSettings
from hierchat.engine.engine import TARGET
from hierchat.language import _, error_words, later
from hierchat.page.chat_settings import LABELS, THINKS, escaped

if TYPE_CHECKING:
    from hierchat.chat.statistics import PlanView


# One colour, one underline and one name for each source of tokens: the single table behind legend, bar and
# tokens.
@dataclass(frozen=True, slots=True)
class Style:
    """Describe how one source is drawn. `fill` is the same in both themes; `line` has contrast against each page."""

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
        "target", wording.SOURCES[TARGET], later("No draft had it: the model wrote it in a run of its own."),
        "#8A8F98", "#6B7280", "#9CA3AF", "none",
    ),
    "context": Style(
        "context", wording.SOURCES["context"],
        later("It stood earlier in this chat behind the same words, or the model found it likely behind them."),
        "#0072B2", "#0072B2", "#4BA3DB", "solid",
    ),
    "history": Style(
        "history", wording.SOURCES["history"],
        later(
            "It stood in another chat of yours with this model behind the same words, or the model found it likely "
            "behind them."
        ),
        "#E69F00", "#A66F00", "#E69F00", "dashed",
    ),
    "statistics": Style(
        "statistics", wording.SOURCES["statistics"],
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
    return replace(style, label=wording.source_words(source), explained=_(style.explained))


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
    """Draw the sources with a sample of each."""
    entries = "".join(
        f"<li>{swatch(source)}<span><b>{html.escape(style_of(source).label)}</b>"
        f"{_(' (unmarked)') if source == TARGET else ''} {style_of(source).explained}</span></li>"
        for source in wording.in_order(sources)
    )
    return f'<ul class="hc-legend" aria-label="{_("Where the words came from")}">{entries}</ul>'


DASH = "\N{EN DASH}"
_MEASURED = later(
    "While it was written, {drafted} tokens a second came; without drafts this model writes {plain}, measured during "
    "this reply."
)
_ENDS = {
    "end": later("the model had finished"),
    "stop": later("the stop string “{text}”"),
    "loop": later("it repeated itself"),
    "length": later("the longest reply allowed"),
    "context": later("the context window was full"),
    "stopped": later("stopped by you"),
    "error": later("something went wrong"),
}


def _speed_figure(figures: Figures) -> str:
    words = html.escape(wording.speed_words(figures))
    if not figures.deserved_speedup:
        return f'<span class="hc-figure">{words}</span>' if words else ""
    drafted, plain = figures.tokens_per_second or 0.0, figures.baseline_tokens_per_second or 0.0
    why = html.escape(_(_MEASURED).format(drafted=wording.number(drafted), plain=wording.number(plain)))
    return (
        f'<span class="hc-figure hc-speedup" tabindex="0" role="note" aria-label="{words}. {why}" data-said="{why}">'
        f"{words}</span>"
    )


def shares_bar(figures: Figures) -> str:
    """A thin segmented bar of where the tokens came from, each part named; empty where nothing was drafted."""
    words = wording.share_words(figures.shares)
    if not words:
        return ""
    segments = "".join(
        f'<i style="width:{figures.shares[s] * 100:.2f}%;background:var(--{style_of(s).slug}-line)"></i>'
        for s, _words in words
        if s != TARGET
    )
    lines = {s: "--hc-line" if s == TARGET else f"--{style_of(s).slug}-line" for s, _words in words}
    # The largest source first: where there is little room it stands alone, and Details has them all.
    labels = "".join(
        f'<span class="hc-share"><i class="hc-dot" style="background:var({lines[s]})"></i>{html.escape(label)}</span>'
        for s, label in sorted(words, key=lambda word: (word[0] == TARGET, -figures.shares[word[0]]))
    )
    return (
        f'<span class="hc-shares"><span class="hc-bar" role="img" aria-label="{_("Where the words came from")}">'
        f"{segments}</span>{labels}</span>"
    )


def figures_line(figures: Figures, note: str = "", model: str = "") -> str:
    """Draw speed, tokens, seconds from Send on and where they went, the model if it is to be named, and the sources."""
    parts = [_speed_figure(figures)]
    parts += [f'<span class="hc-figure">{html.escape(words)}</span>' for words in wording.time_words(figures)]
    if note:
        parts.append(f'<span class="hc-note">{html.escape(note)}</span>')
    if model:
        parts.append(f'<span class="hc-writer" dir="auto">{html.escape(model)}</span>')
    joined = '<span class="hc-sep">·</span>'.join(filter(None, parts))
    return f'<div class="hc-figures"><span class="hc-numbers">{joined}</span>{shares_bar(figures)}</div>'


def details(figures: Figures | None, model: str = "") -> str:
    """Draw who wrote a reply, all that was measured of it and how it was set; a dash where something is not known."""
    by: list[_Row] = [(_("Written by"), model, "")] if model else []
    groups = [(_("How it was written"), by)]
    if figures:
        groups = [
            (_("Speed"), _speed(figures)),
            (_("Where the words came from"), _sources(figures)),
            (_("How it was written"), [*by, *_settings(figures)]),
        ]
    return "".join(
        f"<h3>{name}</h3>" + f'<dl class="hc-facts">{"".join(map(_row, rows))}</dl>' for name, rows in groups
    )


_Row = tuple[str, str, str]
"""Name, value, and what that is where the name does not say it."""


def known(value: float | None, words: Callable[[float], str]) -> str:
    """Say a value; a dash where there is none."""
    return DASH if value is None else words(value)


def _row(row: _Row) -> str:
    name, value, meaning = row
    explained = f" <small>{html.escape(meaning)}</small>" if meaning and value != DASH else ""
    return f"<dt>{html.escape(name)}</dt><dd>{html.escape(value)}{explained}</dd>"


def _a_second(tokens: float) -> str:
    return _("{speed} tok/s").format(speed=wording.number(tokens))


def _speed(figures: Figures) -> list[_Row]:
    f = figures
    loaded, measured = _("measured when the model was loaded"), _("measured in this reply")
    kind = measured if f.baseline == "measured" else loaded
    plain = f.baseline_tokens_per_second
    doubt = "" if f.deserved_speedup is not None else _("too little measured to rely on")
    step = known(f.draft_ms, lambda ms: _("drafting {draft_ms:.2f} ms").format(draft_ms=ms))
    if f.draft_ms is not None and f.forward_ms is not None and f.verify_ms is not None:
        step = _(
            "drafting {draft_ms:.2f} ms, the model {forward_ms:.2f} ms, checking drafts {verify_ms:.2f} ms"
        ).format(draft_ms=f.draft_ms, forward_ms=f.forward_ms, verify_ms=f.verify_ms)
    from_send = _("tokens (pieces of words) a second, from Send on")
    written = known(f.tokens_per_second or None, _a_second)
    forward = known(f.tokens_per_forward or None, "{:.2f}".format)
    alone = _("{speed} tok/s, {kind}").format(speed=wording.number(plain), kind=kind) if plain else DASH
    return [
        (_("Speed-up"), known(f.speedup or None, wording.against_plain), doubt),
        (_("Time"), known(f.whole_seconds or None, wording.seconds_words), _went(f)),
        (_("Speed"), known(wording.rate(f) or None, _a_second), from_send),
        (_("While writing"), written, _("without waiting and reading the prompt")),
        (_("Without drafts"), alone, ""),
        (_("First token after"), known(f.first_token_seconds, "{:.2f} s".format), ""),
        (_("Reading the prompt"), _reading(f), ""),
        (_("Runs of the model"), known(f.forwards or None, "{:,}".format), ""),
        (_("Tokens per run (T)"), forward, _("without drafts it is always 1")),
        (_("Time per run"), step, ""),
    ]  # fmt: skip


def _went(figures: Figures) -> str:
    """Say where the time went; of earlier versions only reading and writing are known."""
    if figures.total_seconds is None:
        return _("of reading the prompt and writing")
    waits = [figures.waited_seconds or 0.0, figures.loading_seconds or 0.0, figures.read_seconds or 0.0]
    wrote = max(figures.total_seconds - sum(waits), 0.0)
    _tokens, *besides = wording.time_words(figures)
    return ", ".join(
        [_("from Send on"), *besides, _("wrote for {time}").format(time=wording.seconds_words(wrote))]
    )


def _reading(figures: Figures) -> str:
    read, seconds = figures.prompt_read, figures.read_seconds
    if read is None or seconds is None:
        return DASH
    known_before = figures.prompt_tokens - read
    before = _("; {known:,} were known already").format(known=known_before) if known_before > 1 else ""
    pace = _(" at {speed} tok/s").format(speed=wording.number(read / seconds)) if read and seconds else ""
    return _("{read:,} of {prompt_tokens:,} tokens read{pace}{before}").format(
        read=read, prompt_tokens=figures.prompt_tokens, pace=pace, before=before
    )


def _sources(figures: Figures) -> list[_Row]:
    accepted = known(figures.acceptance_rate, wording.percent)
    rows: list[_Row] = [(_("Drafts accepted"), accepted, _("of all that were proposed"))]
    for s in wording.in_order(figures.shares):
        said, label = wording.percent(figures.shares[s]), style_of(s).label
        if s in figures.acceptance:
            said += _(", {share} of its drafts accepted").format(share=wording.percent(figures.acceptance[s]))
        rows.append((label[:1].upper() + label[1:], said, ""))
    return rows


def _settings(figures: Figures) -> list[_Row]:
    written, models, ended = figures.written, DASH, _ENDS.get(figures.finish or "")
    if figures.plan is not None:
        ahead = _("{name} ({length} tokens ahead)")
        named = (ahead.format(name=wording.model_words(name), length=length) for name, length in figures.plan)
        models = ", ".join(named) or _("none")
    seed = known(figures.seed, str)
    stop = _(ended).format(text=escaped(figures.stop_string or "")) if ended else DASH
    rows: list[_Row] = [
        (_("Draft models"), models, ""),
        (_("Seed"), seed, _("with it, the same words come again")),
    ]
    if written is not None:
        drafts = _("on") if written.drafted else _("off")
        rows = [(_("Drafts"), drafts, ""), *rows, (_("Sampling"), _sampling(written.settings), "")]
    return [(_("Stop reason"), stop, ""), *rows]


def _sampling(settings: Mapping[str, Any]) -> str:
    """The settings that differ from what is usual."""
    usual = GenerationSettings().model_dump(mode="json")
    temperature = settings.get("temperature", 0)
    parts = [_("The likeliest token each time")]
    if temperature:
        parts = [_("Temperature {temperature:g}").format(temperature=temperature)]
    for name, label in LABELS.items():
        value = settings.get(name)
        if name in ("temperature", "seed", "end_loops") or value is None or value == usual.get(name):
            continue
        if name == "reasoning":
            shown = _(THINKS[value])
        else:
            shown = ", ".join(f"“{part}”" for part in value) if isinstance(value, list) else f"{value:g}"
        parts.append(f"{_(label)} {shown}")
    return ", ".join(parts)


def plan_picture(view: PlanView | None) -> str:
    """The picture as HTML; empty where there is no hierarchy."""
    if view is None:
        return ""
    levels = [_level(_("earlier texts"), _("as many tokens ahead as save time"))] if view.retrieval else []
    ahead, writes = _("{length} tokens ahead"), _("writes, and checks every draft")
    levels += [
        _level(wording.model_words(level.name), ahead.format(length=level.length) if level.length else writes)
        for level in view.levels
    ]
    measured = "" if view.measured_ms is None else _(", {ms:.1f} measured").format(ms=view.measured_ms)
    expected = _("{ms:.1f} ms a token expected").format(ms=view.expected_ms)
    left_out = "".join(
        f"<li><b>{html.escape(wording.model_words(one.name))}</b> {html.escape(error_words(one.reason))}</li>"
        for one in view.left_out
    )
    names = [_("earlier texts")] if view.retrieval else []
    names += [wording.model_words(level.name) for level in view.levels]
    sentence = _("What drafts: {names}.").format(names=_(", then ").join(names))
    listed = f'<ol aria-label="{html.escape(sentence)}">{"".join(reversed(levels))}</ol>'
    return (
        f'<div class="hc-plan"><h3>{_("What drafts")}</h3>{listed}'
        f'<p class="hc-quiet">{expected}{measured}</p>'
        + (f'<h3>{_("What does not, and why")}</h3><ul class="hc-quiet">{left_out}</ul>' if left_out else "")
        + "</div>"
    )


def _level(name: str, does: str) -> str:
    return f"<li><b>{html.escape(name)}</b><span>{html.escape(does)}</span></li>"
