"""The list of models as HTML. Pure functions."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from hierchat.models.cache import gigabytes
from hierchat.models.runnable import STEPS
from hierchat.runtime.shelf import TINY
from hierchat.ui.actions import button
from hierchat.ui.status import progress_bar

if TYPE_CHECKING:
    from hierchat.runtime.fetches import Fetch
    from hierchat.runtime.host import HostStatus
    from hierchat.runtime.shelf import Draft, ModelRow, Speed

_FITS = {"yes": "Fits", "tight": "Tight fit", "no": "Does not run here", "unknown": "Fit not known yet"}

_FIXED = "You can load models that are here. Only the owner fetches, adds and removes them, and not over a public link."


def models(
    rows: Sequence[ModelRow],
    best: ModelRow | None,
    host: HostStatus,
    removing: str,
    frees: int,
    may_change: bool,
) -> str:
    """All of it. `removing`: the model about which is asked, `frees` bytes."""
    here = [row for row in rows if row.state == "here"]
    others = [row for row in rows if row.state != "here"]
    loaded = next((row for row in rows if row.loaded), None)

    def entries(group: Iterable[ModelRow]) -> str:
        return "".join(
            _entry(row, best, host, frees if row.name == removing else None, may_change) for row in group
        )

    none = '<p class="hc-quiet">None yet. Fetch one below.</p>'
    # The form below goes, by the style sheet.
    fixed = "" if may_change else f'<p class="hc-quiet hc-models-fixed">{_FIXED}</p>'
    return (
        f"{_present(loaded, host, best)}{fixed}"
        f"<h2>On this machine</h2>{_list(entries(here)) if here else none}"
        f"<h2>To fetch</h2>{_list(entries(others))}"
    )


def tiny_line(better: tuple[str, ModelRow] | None) -> str:
    """That the model is tiny, and what to use instead; empty where it is not."""
    if better is None:
        return ""
    name, best = better
    return (
        f'<p class="hc-quiet hc-tiny">{html.escape(name)} is tiny: it shows how this works, and knows little. '
        f"{button('hc_panel', _advice(best), text='models', css='hc-link')}</p>"
    )


def adding() -> str:
    """The form; its script is models.js."""
    return (
        '<h2 id="hc-models-adding">Add a model</h2>'
        '<div class="hc-add" role="group" aria-labelledby="hc-models-adding">'
        '<input type="text" id="hc-model-said" aria-label="Name on the hub, folder or GGUF file" '
        'placeholder="Qwen/Qwen3-0.6B-GGUF, /path/to/model.gguf, /path/to/folder" autocomplete="off" '
        'spellcheck="false">'
        f"{button('hc_model_add', 'Add', css='hc-strong')}"
        f"{button('hc_model_file', 'Choose a file…', css='hc-bordered')}"
        '<input type="file" id="hc-model-file" accept=".gguf" hidden></div>'
        '<p class="hc-quiet">A name on the hub, the path of a folder with safetensors, or of a GGUF file. A GGUF file '
        "can be dropped here, too: it is copied into the models' folder. Nothing is fetched yet.</p>"
        '<div id="hc-model-copying" role="status"></div>'
    )


def _list(entries: str) -> str:
    return f'<ul class="hc-models">{entries}</ul>'


def _advice(best: ModelRow) -> str:
    rest = "is here: load it" if best.state == "here" else f"fits this machine, {_size(best.size)} to fetch"
    return f"{best.name} {rest}"


def _present(loaded: ModelRow | None, host: HostStatus, best: ModelRow | None) -> str:
    if loaded is None:
        said = "No model is loaded. Load one of those that are on this machine, or fetch one first."
        if host.phase not in ("none", "failed"):
            said = f"{host.name} is on its way."
        return f'<p class="hc-present">{html.escape(said)}</p>'
    hint = ""
    if best and loaded.parameters and loaded.parameters < min(TINY, best.parameters or 0):
        hint = f" It is tiny. {html.escape(best.name)} is the best one for this machine."
    return f'<p class="hc-present"><strong>{html.escape(loaded.name)}</strong> answers.{hint}</p>'


def _entry(
    row: ModelRow, best: ModelRow | None, host: HostStatus, frees: int | None, may_change: bool
) -> str:
    marks = []
    if row.loaded:
        marks.append("answers now")
    elif host.name == row.name and host.phase not in ("none", "failed", "ready"):
        marks.append("is being loaded")
    if best and best.name == row.name:
        marks.append("best for this machine")
    if row.default:
        marks.append("default")
    if row.own:
        marks.append("yours")
    if row.draft_only:
        marks.append("only drafts")
    badges = "".join(f'<span class="hc-badge">{mark}</span>' for mark in marks)
    asked = _asked(row, frees) if frees is not None else ""
    return (
        f'<li class="hc-model" data-model="{html.escape(row.name)}"><h3>{html.escape(row.name)}</h3>{badges}'
        f'<p class="hc-model-facts">{_facts(row)}</p>'
        f'<p class="hc-fit" data-fit="{row.fit.verdict}"><strong>{_FITS[row.fit.verdict]}.</strong> '
        f"{html.escape(row.fit.why)}{_step(row)}</p>{_drafts(row, may_change)}{_fetch(row.fetch)}"
        f"{asked or _buttons(row, host, may_change)}</li>"
    )


def _step(row: ModelRow) -> str:
    return f" {html.escape(STEPS[row.step])}" if row.step and row.fit.verdict != "no" else ""


def _facts(row: ModelRow) -> str:
    size = _size(row.size)
    if row.state == "partly" and row.size:
        size = f"{_size(row.have)} of {size} here"
    elif row.state == "absent" and row.size:
        size += " to fetch"
    facts = [_count(row.parameters), size, row.licence if row.licence != "unknown" else "licence unknown"]
    return " · ".join(html.escape(fact) for fact in facts if fact) + (_speed(row.speed) if row.speed else "")


def _speed(speed: Speed) -> str:
    rate = f"{speed.per_second:,.0f}" if speed.per_second >= 10 else f"{speed.per_second:.1f}"
    if speed.replies:
        last = "its last reply" if speed.replies == 1 else f"its last {speed.replies} replies"
        return f" · <span>{rate} tokens a second, measured over {last}</span>"
    why = "A token without drafts reads all weights once; memory was measured. Drafts can make it faster."
    return f' · <span title="{why}">about {rate} tokens a second at most without drafts (expected)</span>'


def _drafts(row: ModelRow, may_change: bool) -> str:
    if not row.drafts:
        return ""
    entries = "".join(f"<li>{_draft(row.name, draft, may_change)}</li>" for draft in row.drafts)
    chosen = sum(draft.chosen is not False and draft.fits for draft in row.drafts)
    name = f"Draft models: {chosen or 'none'} chosen"
    return f'<details class="hc-draft-models"><summary>{name}</summary><ul>{entries}</ul></details>'


def _draft(name: str, draft: Draft, may_change: bool) -> str:
    """A model that could draft for that of the name, and whether it shall."""
    said = f"{html.escape(draft.name)}: {'' if draft.fits else 'cannot draft, '}{html.escape(draft.why)}"
    if draft.chosen is None or not may_change:
        return said
    act, label = ("hc_model_undraft", "No longer") if draft.chosen else ("hc_model_draft", "Let it draft")
    about = f"{label}: {draft.name} for {name}"
    return f"{said} {button(act, label, text=f'{name}|{draft.name}', css='hc-bordered', aria_label=about)}"


def _fetch(fetch: Fetch | None) -> str:
    if fetch is None or fetch.phase == "done":
        return ""
    if fetch.phase == "failed":
        return f'<div class="hc-error" role="alert">{html.escape(fetch.message)}</div>'
    role = (
        "" if fetch.phase == "downloading" else ' role="status"'
    )  # a counter would be read out at every step
    bar = progress_bar(fetch.done, fetch.total) if fetch.phase in ("downloading", "converting") else ""
    return f'<div class="hc-wait"{role}>{html.escape(_stage(fetch))}{bar}</div>'


def _stage(fetch: Fetch) -> str:
    if fetch.phase == "downloading":
        if not fetch.total:
            return "Asking where it lies…"
        speed = f" · {fetch.speed / 1e6:.1f} MB a second" if fetch.speed else ""
        return f"Fetching: {gigabytes(fetch.done)} of {gigabytes(fetch.total)}{speed}"
    if fetch.phase == "converting":
        return "Making it ready for this machine, once…"
    return {
        "waiting": "Waits for the model that is being fetched.",
        "checking": "Looking whether it can run here…",
        "stopping": "Stopping…",
    }.get(fetch.phase, "Stopped. What has come is kept.")


def _asked(row: ModelRow, frees: int) -> str:
    what = f"This frees {gigabytes(frees)}." if frees else "Its files stay: they are your own."
    listed = " It leaves the list, too." if row.own else " It can be fetched again."
    return (
        f'<div class="hc-ask-remove" role="group" aria-label="Remove {html.escape(row.name)}?">'
        f"<p>Remove {html.escape(row.name)}? {what}{listed}</p>"
        f"{button('hc_model_removed', 'Remove', text=row.name, css='hc-danger')}"
        f"{button('hc_model_keep', 'Keep', text=row.name, css='hc-bordered')}</div>"
    )


def _buttons(row: ModelRow, host: HostStatus, may_change: bool) -> str:
    found = []
    coming = host.name == row.name and host.phase not in ("none", "failed", "ready")

    def add(act: str, label: str, css: str = "hc-bordered") -> None:
        found.append(button(act, label, text=row.name, css=css, aria_label=f"{label} {row.name}"))

    if may_change and row.fetch and row.fetch.under_way:
        if row.fetch.phase != "stopping":
            add("hc_model_stop", "Stop")
    elif row.state == "here":
        if row.loaded and may_change:
            add("hc_model_eject", "Eject")
        elif not (row.loaded or coming or row.draft_only or row.fit.verdict == "no"):
            add("hc_model_load", "Load", "hc-strong")
    elif may_change and row.fit.verdict != "no":
        add("hc_model_fetch", "Go on" if row.state == "partly" else "Fetch", "hc-strong")
    if (
        may_change
        and not (row.loaded or coming or (row.fetch and row.fetch.under_way))
        and (row.have or row.own)
    ):
        add("hc_model_remove", "Remove")
    return f'<div class="hc-model-acts">{"".join(found)}</div>' if found else ""


def _size(size: int | None) -> str:
    return gigabytes(size) if size else "size unknown"


def _count(parameters: int | None) -> str:
    if not parameters:
        return ""
    billions = parameters >= 1e9
    return (
        f"{parameters / 1e9:.1f} billion parameters"
        if billions
        else f"{parameters / 1e6:.0f} million parameters"
    )
