"""Draw figures as HTML: one quiet line under a reply, and the details behind it. Pure functions."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from hierchat.chat import wording
from hierchat.chat.frames import Figures
from hierchat.config import GenerationSettings
from hierchat.drafting.draft_tree import DOCUMENTS
from hierchat.engine.engine import TARGET
from hierchat.language import _, later
from hierchat.language import number as written
from hierchat.page.chat_settings import LABELS, THINKS, escaped
from hierchat.page.templates import Macros


@dataclass(frozen=True, slots=True)
class Style:
    """How one source of tokens is drawn. Its colours and its underline are in assets/style/sources.css, by `slug`."""

    slug: str
    label: str
    explained: str


_EXPLAINED = {
    TARGET: later("The model wrote it by itself: nothing had guessed it."),
    "context": later(
        "The same words came before it earlier in this chat, or the model found it likely after them."
    ),
    DOCUMENTS: later("It is in a passage of this chat's documents, after the same words."),
    "history": later(
        "The same words came before it in another chat of yours with this model, or the model found it likely "
        "after them."
    ),
    "statistics": later(
        "The same words came before it in the phrases that come with hierchat, or in files that you added."
    ),
}
_DRAFT = "draft"
_DRAFT_EXPLAINED = later("A smaller model guessed it ahead of the large one.")


def style_of(source: str) -> Style:
    """Return the style of a source, its words in the reader's language; other names are draft models'."""
    slug = source if source in _EXPLAINED else _DRAFT
    return Style(slug, wording.source_words(source), _(_EXPLAINED.get(source, _DRAFT_EXPLAINED)))


def legend(sources: Iterable[str]) -> Markup:
    """Draw the legend of these sources: each with a sample of its colour."""
    return _drawn.legend(map(style_of, wording.in_order(sources)))


DASH = "\N{EN DASH}"


def figures_line(figures: Figures, note: str = "") -> Markup:
    """Draw the figures of a reply that grows, or is compared: speed, tokens, seconds since Send, all sources."""
    numbers = [("speedup" if figures.deserved_speedup else "figure", wording.speed_words(figures))]
    numbers += [("figure", words) for words in wording.time_words(figures)[:1]]
    shares = _shares(figures)
    named = sorted(shares, key=lambda one: (one[0].slug == "target", -one[2]))
    return _drawn.line(figures, [*numbers, ("note", note)], shares, named)


def foot_line(figures: Figures, note: str = "", model: str = "") -> Markup:
    """Draw the line under a reply: speed-up or time, how it ended, and the model if named."""
    pace = wording.pace(figures.deserved_speedup or 1.0)
    time = wording.seconds_words(figures.whole_seconds) if figures.tokens and figures.whole_seconds else ""
    numbers = [("speedup", pace) if pace else ("figure", time), ("note", note), ("writer", model)]
    return _drawn.line(figures, numbers, (), ())


def _shares(figures: Figures) -> list[tuple[Style, str, float]]:
    return [(style_of(s), words, figures.shares[s]) for s, words in wording.share_words(figures.shares)]


def _sampling(settings: Mapping[str, Any]) -> str:
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


_drawn = Macros("figures.html", rate=wording.number)
details = Macros(
    "details.html", against_plain=wording.against_plain, escaped=escaped, in_order=wording.in_order,
    label_of=lambda source: style_of(source).label, written=written,
    bar=lambda figures: _drawn.bar(_shares(figures)), model_words=wording.model_words,
    percent=wording.percent, rate_of=wording.rate, sampling=_sampling, seconds_words=wording.seconds_words,
    time_words=wording.time_words,
).details  # fmt: skip
