"""Figures as HTML: one quiet line under a reply, and the details behind it. Pure functions."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

from hierchat.chat.frames import Figures
from hierchat.chat.words import in_order, model_words, number, percent
from hierchat.config import GenerationSettings
from hierchat.engine.step import TARGET
from hierchat.language import _, later, plural
from hierchat.ui.sampling import LABELS, THINKS, escaped
from hierchat.ui.sources import style_of

_TIMES = "\N{MULTIPLICATION SIGN}"
_DASH = "\N{EN DASH}"
_MEASURED = later(
    "{speedup} times as fast as the same model without drafts: that writes {plain} tokens a second, measured during "
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


def _speedup(speedup: float, figures: Figures) -> str:
    shown = f"{speedup:.2f}"
    why = html.escape(
        _(_MEASURED).format(speedup=shown, plain=number(figures.baseline_tokens_per_second or 0.0))
    )
    quiet = " hc-slower" if float(shown) < 1 else ""
    return (
        f'<span class="hc-figure hc-speedup{quiet}" tabindex="0" role="note" aria-label="{why}" data-said="{why}">'
        f"{shown}{_TIMES}</span>"
    )


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
        f'<span class="hc-shares"><span class="hc-bar" role="img" aria-label="{_("Where the words came from")}">'
        f"{segments}</span>{labels}</span>"
    )


def figures_line(figures: Figures, note: str = "", model: str = "") -> str:
    """Speed and speed-up where they deserve it, else tokens and seconds; the model, where it is to be named; and where
    the tokens came from."""
    parts: list[str] = []
    written = tokens(figures.tokens)
    speedup = figures.deserved_speedup
    if speedup is not None and figures.tokens_per_second is not None:
        speed = f"<b>{number(figures.tokens_per_second)}</b> {_('tok/s')}"
        parts.append(f'<span class="hc-figure">{speed}</span>{_speedup(speedup, figures)}')
        parts.append(f'<span class="hc-figure">{written}</span>')
        if figures.first_token_seconds is not None:
            first = _("first after {seconds:.1f} s").format(seconds=figures.first_token_seconds)
            parts.append(f'<span class="hc-figure">{first}</span>')
    elif figures.tokens:
        seconds = _(" in {seconds} s").format(seconds=number(figures.seconds)) if figures.seconds else ""
        parts.append(f'<span class="hc-figure">{written}{seconds}</span>')
    if note:
        parts.append(f'<span class="hc-note">{html.escape(note)}</span>')
    if model:
        parts.append(f'<span class="hc-writer" dir="auto">{html.escape(model)}</span>')
    joined = '<span class="hc-sep">·</span>'.join(parts)
    return f'<div class="hc-figures"><span class="hc-numbers">{joined}</span>{shares_bar(figures)}</div>'


def tokens(count: int) -> str:
    """So many, with their noun."""
    return plural("{n:,} token", "{n:,} tokens", count)


def details(figures: Figures | None, model: str = "") -> str:
    """Who wrote a reply, everything that was measured of it and how it was set, for the fold-out under it; a dash where
    nothing is known, as of replies of earlier versions. Without figures only who wrote it."""
    by: list[_Row] = [(_("Written by"), model, "")] if model else []
    groups = [(_("How it was written"), by)]
    if figures:
        groups = [
            (_("Speed"), _speed(figures)),
            (_("Where the words came from"), _sources(figures)),
            (_("How it was written"), [*by, *_ending(figures), *_settings(figures)]),
        ]
    return "".join(
        f"<h3>{name}</h3>" + f'<dl class="hc-facts">{"".join(map(_row, rows))}</dl>' for name, rows in groups
    )


_Row = tuple[str, str | None, str]
"""Name, value, and what that is where the name does not say it."""


def _row(row: _Row) -> str:
    name, value, meaning = row
    explained = f" <small>{html.escape(meaning)}</small>" if meaning and value is not None else ""
    return f"<dt>{html.escape(name)}</dt><dd>{html.escape(_DASH if value is None else value)}{explained}</dd>"


def _speed(figures: Figures) -> list[_Row]:
    f = figures
    rate, plain, forward = f.tokens_per_second, f.baseline_tokens_per_second, f.tokens_per_forward
    kind = (
        _("measured in this reply") if f.baseline == "measured" else _("measured when the model was loaded")
    )
    doubt = "" if f.deserved_speedup is not None else _("too little measured to rely on")
    step = None
    if f.draft_ms is not None and f.forward_ms is not None and f.verify_ms is not None:
        step = _(
            "drafting {draft_ms:.2f} ms, the run {forward_ms:.2f} ms, checking drafts {verify_ms:.2f} ms"
        ).format(draft_ms=f.draft_ms, forward_ms=f.forward_ms, verify_ms=f.verify_ms)
    elif f.draft_ms is not None:
        step = _("drafting {draft_ms:.2f} ms").format(draft_ms=f.draft_ms)
    return [
        (
            _("Speed"),
            _("{speed} tok/s").format(speed=number(rate)) if rate else None,
            _("tokens (pieces of words) a second"),
        ),
        (
            _("Without drafts"),
            _("{speed} tok/s, {kind}").format(speed=number(plain), kind=kind) if plain else None,
            "",
        ),
        (_("Speed-up"), f"{f.speedup:.2f}{_TIMES}" if f.speedup else None, doubt),
        (_("Time"), f"{f.seconds:.2f} s" if f.seconds else None, _("of writing, without reading the prompt")),
        (_("First token after"), _of("{:.2f} s", f.first_token_seconds), ""),
        (_("Reading the prompt"), _reading(f), ""),
        (
            _("Tokens per forward (T)"),
            f"{forward:.2f}" if forward else None,
            _("tokens that the model wrote each time it ran; without drafts it is always 1"),
        ),
        (_("Forwards"), f"{f.forwards:,}" if f.forwards else None, _("how often the model ran")),
        (_("Time per forward"), step, ""),
    ]


def _reading(figures: Figures) -> str | None:
    read, seconds = figures.prompt_read, figures.read_seconds
    if read is None or seconds is None:
        return None
    known = figures.prompt_tokens - read
    before = _("; {known:,} were known already").format(known=known) if known > 1 else ""
    pace = _(" at {speed} tok/s").format(speed=number(read / seconds)) if read and seconds else ""
    return _("{read:,} of {prompt_tokens:,} tokens read{pace}{before}").format(
        read=read, prompt_tokens=figures.prompt_tokens, pace=pace, before=before
    )


def _sources(figures: Figures) -> list[_Row]:
    rows: list[_Row] = [
        (_("Drafts accepted"), _of("{}", figures.acceptance_rate, percent), _("of all that were proposed"))
    ]
    for s in in_order(figures.shares):
        accepted = (
            _(", {share} of its drafts accepted").format(share=percent(figures.acceptance[s]))
            if s in figures.acceptance
            else ""
        )
        rows.append((_first_up(style_of(s).label), percent(figures.shares[s]) + accepted, ""))
    return rows


def _ending(figures: Figures) -> list[_Row]:
    ended = _ENDS.get(figures.finish or "")
    return [(_("Stop reason"), ended and _(ended).format(text=escaped(figures.stop_string or "")), "")]


def _settings(figures: Figures) -> list[_Row]:
    written, models = figures.written, None
    if figures.plan is not None:
        models = ", ".join(
            _("{name} ({length} tokens ahead)").format(name=model_words(name), length=length)
            for name, length in figures.plan
        ) or _("none")
    seed = None if figures.seed is None else str(figures.seed)
    rows: list[_Row] = [
        (_("Draft models"), models, ""),
        (_("Seed"), seed, _("with it, the same words come again")),
    ]
    if written is not None:
        drafts: _Row = (_("Drafts"), _("on") if written.drafted else _("off"), "")
        rows = [drafts, *rows, (_("Sampling"), _sampling(written.settings), "")]
    return rows


def _sampling(settings: Mapping[str, Any]) -> str:
    """The settings that differ from what is usual."""
    usual = GenerationSettings().model_dump(mode="json")
    temperature = settings.get("temperature", 0)
    parts = [
        _("The likeliest token each time")
        if not temperature
        else _("Temperature {temperature:g}").format(temperature=temperature)
    ]
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


def _of(form: str, value: float | None, words: Any = None) -> str | None:
    return None if value is None else form.format(words(value) if words else value)


def _first_up(text: str) -> str:
    return text[:1].upper() + text[1:]
