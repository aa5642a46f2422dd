"""Figures as HTML: one quiet line under a reply, and the details behind it. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from hierchat.chat import wording
from hierchat.chat.frames import Figures
from hierchat.config import GenerationSettings
from hierchat.engine.engine import TARGET
from hierchat.language import _, later
from hierchat.page.chat_settings import LABELS, THINKS, escaped
from hierchat.page.templates import Macros

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


def legend(sources: Iterable[str]) -> Markup:
    """Draw the sources with a sample of each."""
    return _drawn.legend(map(style_of, wording.in_order(sources)))


DASH = "\N{EN DASH}"
_ENDS = {
    "end": later("the model had finished"),
    "stop": later("the stop string “{text}”"),
    "loop": later("it repeated itself"),
    "length": later("the longest reply allowed"),
    "context": later("the context window was full"),
    "stopped": later("stopped by you"),
    "error": later("something went wrong"),
}


def figures_line(figures: Figures, note: str = "", model: str = "") -> Markup:
    """Draw speed, tokens, seconds from Send on and where they went, the model if it is to be named, and the sources,
    the largest first: where there is little room it stands alone, and Details has them all."""
    numbers = [("speedup" if figures.deserved_speedup else "figure", wording.speed_words(figures))]
    numbers += [("figure", words) for words in wording.time_words(figures)]
    numbers += [("note", note), ("writer", model)]
    shares = [(style_of(s), words, figures.shares[s]) for s, words in wording.share_words(figures.shares)]
    named = sorted(shares, key=lambda one: (one[0].slug == "target", -one[2]))
    return _drawn.line(figures, [one for one in numbers if one[1]], shares, named)


def details(figures: Figures | None, model: str = "") -> Markup:
    """Draw who wrote a reply, all that was measured of it and how it was set; a dash where something is not known."""
    by: list[_Row] = [(_("Written by"), model, "")] if model else []
    groups = [(_("How it was written"), by)]
    if figures:
        groups = [
            (_("Speed"), _speed(figures)),
            (_("Where the words came from"), _sources(figures)),
            (_("How it was written"), [*by, *_settings(figures)]),
        ]
    return _drawn.details(groups)


_Row = tuple[str, str, str]
"""Name, value, and what that is where the name does not say it."""


def known(value: float | None, words: Callable[[float], str]) -> str:
    """Say a value; a dash where there is none."""
    return DASH if value is None else words(value)


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


def plan_picture(view: PlanView | None) -> Markup:
    """Draw the hierarchy; nothing where there is none."""
    if view is None:
        return Markup()
    names = [_("earlier texts")] if view.retrieval else []
    return _drawn.plan(view, names + [wording.model_words(level.name) for level in view.levels])


_drawn = Macros("figures.html", DASH=DASH, model_words=wording.model_words, rate=wording.number)
