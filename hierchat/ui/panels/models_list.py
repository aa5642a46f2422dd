"""The list of models as HTML: those that are here, those to fetch, and, folded away, those that are of no use on this
machine. Above it stands what narrows it. Pure functions."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hierchat.language import _, later, plural
from hierchat.runtime.shelf import READABLE, TINY
from hierchat.ui.actions import button
from hierchat.ui.panels.models_view import model
from hierchat.ui.status import waiting

if TYPE_CHECKING:
    from hierchat.runtime.host import HostStatus
    from hierchat.runtime.shelf import ModelRow

_FIXED = later(
    "You can load models that are here. Only the owner downloads, adds and removes them, and not over a public link."
)
_MEASURING = later(
    "Measuring how fast this machine is, as soon as no model is loading and no reply is written. Then a model is "
    "recommended, and each says the speed to expect."
)


def narrowing() -> str:
    """The field that narrows the list, and the ways to what stands below it; its script is models.js."""
    name = _("Filter the list by name, maker or licence")
    return (
        '<div class="hc-add hc-narrowing">'
        f'<input type="search" id="hc-models-words" aria-label="{name}" '
        f'placeholder="{_("Filter by name, maker or licence")}" autocomplete="off" spellcheck="false">'
        f"{button('hc_models_to', _('Search the hub'), text='hc-hub-words', css='hc-bordered')}"
        f"{button('hc_models_to', _('Add a model'), text='hc-model-said', css='hc-bordered')}</div>"
        '<p class="hc-quiet" id="hc-models-shown" role="status"></p>'
    )


def models(
    rows: Sequence[ModelRow],
    best: ModelRow | None,
    host: HostStatus,
    removing: str,
    frees: int,
    may_change: bool,
    *,
    said: tuple[str, str] = ("", ""),
    unmeasured: bool = False,
) -> str:
    """All of it. `removing`: the model about which is asked, `frees` bytes; `said`: a model's name, and HTML that
    answers its last button; `unmeasured`: speeds are being found out."""
    here = [row for row in rows if row.state == "here"]
    others = [row for row in rows if row.state != "here"]
    rest = [row for row in others if _of_no_use(row)]
    # The best one stands before the other ones of which nothing is here.
    fetchable = sorted(
        (row for row in others if not _of_no_use(row)),
        key=lambda row: (row.state == "absent", best is None or row.name != best.name),
    )
    loaded = next((row for row in rows if row.loaded), None)

    def listed(group: Sequence[ModelRow]) -> str:
        entries = (
            model(
                row,
                best,
                host,
                frees if row.name == removing else None,
                may_change,
                said=said[1] if row.name == said[0] else "",
                unmeasured=unmeasured,
            )
            for row in group
        )
        return f'<ul class="hc-models">{"".join(entries)}</ul>' if group else ""

    none = f'<p class="hc-quiet">{_("None yet. Download one below.")}</p>'
    # The forms go, by the style sheet.
    fixed = "" if may_change else f'<p class="hc-quiet hc-models-fixed">{_(_FIXED)}</p>'
    measuring = waiting(_(_MEASURING)) if unmeasured else ""
    drawn = f"{_present(loaded, host, best)}{measuring}{fixed}{_group(_('On this machine'), listed(here) or none)}"
    if others:
        drawn += _group(
            _("To download"), listed(fetchable) + (_folded(len(rest), listed(rest)) if rest else "")
        )
    return drawn


def _of_no_use(row: ModelRow) -> bool:
    """Whether it does not fit or is too slow to read along. What the user began or added stays in sight."""
    if row.state != "absent" or row.own or row.fetch:
        return False
    return row.fit.verdict == "no" or bool(row.speed and row.speed.per_second < READABLE)


def _group(title: str, entries: str) -> str:
    return f'<div class="hc-models-group"><h2>{title}</h2>{entries}</div>'


def _folded(count: int, entries: str) -> str:
    """Opened and closed by models.js, so that it stays so when the list is drawn anew."""
    said = plural(
        "{n} model that does not fit this machine or is too slow here",
        "{n} models that do not fit this machine or are too slow here",
        count,
    )
    return f'<details class="hc-models-group hc-models-rest"><summary>{said}</summary>{entries}</details>'


def _present(loaded: ModelRow | None, host: HostStatus, best: ModelRow | None) -> str:
    if loaded is None:
        said = _("No model is loaded. Load one of those that are on this machine, or download one first.")
        if host.phase not in ("none", "failed"):
            said = _("{name} is being loaded.").format(name=host.name)
        return f'<p class="hc-present">{html.escape(said)}</p>'
    hint = ""
    if best and loaded.parameters and loaded.parameters < min(TINY, best.parameters or 0):
        hint = _(" It is tiny. {name} is recommended for this machine.").format(name=html.escape(best.name))
    return f'<p class="hc-present"><strong>{html.escape(loaded.name)}</strong> {_("is running.")}{hint}</p>'
