"""What all cards of the Insights view share: their frame, and sizes and times in words."""

from __future__ import annotations

from hierchat.language import _
from hierchat.ui.charts import Ink
from hierchat.ui.sources import style_of

DASH = "\N{EN DASH}"
_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def size(number_of_bytes: float) -> str:
    """For the eye, in decimal units."""
    for unit, name in _UNITS:
        if number_of_bytes >= unit:
            shown = number_of_bytes / unit
            return f"{shown:.1f} {name}" if shown < 100 else f"{shown:.0f} {name}"
    return _("{bytes:.0f} bytes").format(bytes=number_of_bytes)


def duration(seconds: float) -> str:
    """For the eye: seconds, minutes or hours."""
    if seconds < 90:
        return _("{n:.0f} s").format(n=seconds)
    return (
        _("{n:.0f} min").format(n=seconds / 60) if seconds < 5400 else _("{n:.1f} h").format(n=seconds / 3600)
    )


def ink_of(source: str) -> Ink:
    """The colour and the line of a source, as everywhere on the page."""
    style = style_of(source)
    return Ink(f"var(--{style.slug}-line)", style.underline)


def card(title: str, inside: str) -> str:
    """A card of the view; `inside` is HTML."""
    return f'<section class="hc-insight"><h2>{title}</h2>{inside}</section>'


def note(sentence: str) -> str:
    """A quiet sentence below a chart."""
    return f'<p class="hc-quiet">{sentence}</p>'


def nothing(what: str, when: str, ever: bool) -> str:
    """What will stand here. `ever`: there is something in a longer range."""
    comes = _("Nothing in these days: choose a longer range.") if ever else when
    return f'<div class="hc-nothing"><p>{what}</p><p class="hc-quiet">{comes}</p></div>'
