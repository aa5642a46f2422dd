"""The table of models as HTML, and the form that adds one. Pure functions."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hierchat.chat.wording import number
from hierchat.language import _, error_words, later, plural
from hierchat.language import number as written
from hierchat.models.cache import count, gigabytes
from hierchat.models.runnable import STEPS
from hierchat.page.buttons import button
from hierchat.page.status import confirmation, progress_bar, waiting
from hierchat.runtime.model_manager import READABLE, TINY
from hierchat.runtime.model_slot import CANCELLABLE

if TYPE_CHECKING:
    from hierchat.models.load.check import Fit
    from hierchat.runtime.costs import Speed
    from hierchat.runtime.downloads import Download
    from hierchat.runtime.model_manager import Draft, ModelRow
    from hierchat.runtime.model_slot import SlotStatus


_FITS = {
    "yes": later("Fits"),
    "tight": later("Tight fit"),
    "full": later("Too little free memory"),
    "no": later("Does not run here"),
    "unknown": later("Memory not known yet"),
}

_STAGES = {
    "waiting": later("Waits for the download before it."),
    "checking": later("Checking whether it runs here…"),
    "stopping": later("Stopping…"),
}
HOW = later(
    "A name on the hub, the path of a folder with safetensors, or of a GGUF file. A GGUF file can be dropped here, "
    "too: it is copied into the models' folder. Nothing is downloaded yet."
)


def tiny_line(better: tuple[str, ModelRow] | None, download: Download | None = None) -> str:
    """Say that the model is tiny, and offer a better one with its speed here; empty where it is not. `download`: of the
    better one."""
    if better is None:
        return ""
    name, best = better
    offer = button("hc_model_take", _advice(best), text=best.name, css="hc-link")
    if best.speed:
        offer += f" ({speed_line(best.speed)})"
    tiny = _("{name} is tiny: it shows how this works, and knows little.").format(name=name)
    close = button("hc_close", _("Close"), text="tiny", css="hc-icon hc-close", title=_("Close"))
    return (
        f'<div class="hc-quiet hc-tiny" data-notice="tiny"><p>{html.escape(tiny)} '
        f"{offer}</p>{download_line(download)}{close}</div>"
    )


def adding() -> str:
    """The form; its script is models.js."""
    return (
        f'<h2 id="hc-models-adding">{_("Add a model")}</h2>'
        '<div class="hc-add" role="group" aria-labelledby="hc-models-adding">'
        f'<input type="text" id="hc-model-said" dir="ltr" aria-label="{_("Name on the hub, folder or GGUF file")}" '
        'placeholder="Qwen/Qwen3-0.6B-GGUF, /path/to/model.gguf, /path/to/folder" autocomplete="off" '
        'spellcheck="false">'
        f"{button('hc_model_add', _('Add'), css='hc-strong')}"
        f"{button('hc_model_file', _('Choose a file…'), css='hc-bordered')}"
        '<input type="file" id="hc-model-file" accept=".gguf" hidden></div>'
        '<div id="hc-model-copying" role="status"></div>'
    )


def added(name: str, new: bool) -> str:
    """Draw what stands below the form once it has led to a model of the list, and the way to that."""
    said = _("{name} is in the list now.") if new else _("{name} is in the list already.")
    label = _("Show {name}").format(name=name)
    show = button("hc_models_show", _("Show"), text=name, css="hc-bordered", aria_label=label)
    return f'<div class="hc-notice hc-added" role="status">{html.escape(said.format(name=name))} {show}</div>'


def _advice(best: ModelRow) -> str:
    rest = _("suits this machine: download it, {size}").format(size=_size(best.size))
    return f"{best.name} {_('is here: load it') if best.state == 'here' else rest}"


@dataclass(frozen=True, slots=True)
class Present:
    """What the list is drawn from beside its rows."""

    best: ModelRow | None
    slot: SlotStatus
    may_change: bool
    unmeasured: bool = False
    """Whether speeds are being found out."""
    said: tuple[str, str] = ("", "")
    """A model's name, and HTML that answers its last button."""
    removing: str = ""
    """The model about which is asked,"""
    frees: int = 0
    """and the bytes that removing it frees."""

    def coming(self, row: ModelRow) -> bool:
        """Return whether this model is on its way."""
        return self.slot.name == row.name and self.slot.phase not in ("none", "failed", "ready")

    def waits(self, row: ModelRow) -> bool:
        """Return whether it waits for a reply to end."""
        return self.slot.name == row.name and self.slot.phase in CANCELLABLE


COLUMNS: dict[str, tuple[str, Callable[[ModelRow], Any]]] = {
    "name": (later("Name"), lambda row: row.name.casefold()),
    "size": (later("Size"), lambda row: row.size or 0),
    "speed": (later("Speed"), lambda row: row.speed.per_second if row.speed else 0.0),
    "fit": (later("Fits"), lambda row: list(_FITS).index(row.fit.verdict)),
}
"""The heads of the table, and what rows are sorted by."""


def _model(row: ModelRow, now: Present) -> str:
    """Draw a model: its line, and what else there is to say below it."""
    marks = [
        _("Running") if row.loaded else _("Waiting") if now.waits(row) else _("Loading") if now.coming(row) else "",
        _("Recommended") if now.best and now.best.name == row.name else "",
        _("Default") if row.default else "",
        _("Added by you") if row.own else "",
        _("Draft model only") if row.draft_only else "",
    ]  # fmt: skip
    badges = "".join(f'<span class="hc-badge">{mark}</span>' for mark in marks if mark)
    said = now.said[1] if row.name == now.said[0] else ""
    asked = _asked(row, now.frees) if row.name == now.removing else ""
    name, fits = html.escape(row.name), _(_FITS[row.fit.verdict])
    size, speed = _present_size(row), _pace(row.speed, now.unmeasured)
    short = " · ".join(one for one in (size, speed, fits) if len(one) > 1)
    return (
        f'<tbody class="hc-model" data-model="{name}" data-words="{html.escape(_words(row))}">'
        f'<tr><th scope="row"><span dir="auto">{name}</span> {badges}'
        f'<small aria-hidden="true">{short}</small></th>'
        f"<td>{size}</td><td>{speed}</td>"
        f'<td class="hc-fit" data-fit="{row.fit.verdict}"><strong>{fits}</strong></td>'
        f'<td class="hc-model-acts">{"" if asked else _buttons(row, now)}</td></tr>'
        f'<tr class="hc-model-more"><td colspan="5">{_details(row, now)}{download_line(row.download)}'
        f"{said}{asked}</td></tr></tbody>"
    )


def _details(row: ModelRow, now: Present) -> str:
    """Draw what one asks for of a model, folded: who made it, why it fits, how it runs, what drafts for it."""
    facts = [
        count_line(row.parameters),
        row.licence if row.licence != "unknown" else _("licence unknown"),
        _("by {author}").format(author=row.maker) if row.maker else "",
    ]
    drawn = facts_line(facts) + (f" · {speed_line(row.speed)}" if row.speed else "")
    label = html.escape(_("Details of {name}").format(name=row.name))
    return (
        f'<details><summary aria-label="{label}" title="{_("Details")}"></summary>'
        f'<p class="hc-model-facts">{drawn}</p>{fit_line(row.fit, _computed(row))}'
        f"{_drafts(row, now.may_change)}</details>"
    )


def _present_size(row: ModelRow) -> str:
    """Say how large a model's files are, and how much of them is here."""
    if row.state == "partly" and row.size:
        return _("{have} of {size} here").format(have=_size(row.have), size=_size(row.size))
    size = f"<bdi>{_size(row.size)}</bdi>"  # a number and its unit stand in their order in Arabic, too
    return size + (_(" to download") if row.state == "absent" and row.size else "")


def _pace(speed: Speed | None, unmeasured: bool) -> str:
    """Say how fast a model writes; what is only expected has a mark."""
    if speed is None:
        return "…" if unmeasured else ""
    shown = _("{speed} tok/s").format(speed=number(speed.per_second))
    return shown if speed.replies else f"\N{ALMOST EQUAL TO}\N{NO-BREAK SPACE}{shown}"


def _computed(row: ModelRow) -> str:
    """What computes a model, and how finely."""
    step = _(STEPS[row.step]) if row.step else ""
    precision = ""
    if row.activations == "int8":
        precision = _("Activations are rounded to 8 bits: fast, and no coarser than llama.cpp.")
    elif row.activations:
        precision = _("Activations are rounded to 16 bits: slower, and all but exact.")
    return f"{step} {precision}".strip()


def _words(row: ModelRow) -> str:
    """Return the words by which the list is narrowed."""
    return f"{row.name} {row.maker} {row.licence}".lower()


def fit_line(fit: Fit, step: str) -> str:
    """Say whether a model fits this machine, and what will compute it."""
    how = html.escape(step) if fit.verdict != "no" else ""
    return (
        f'<p class="hc-fit" data-fit="{fit.verdict}"><strong>{_(_FITS[fit.verdict])}.</strong> '
        f"{html.escape(error_words(fit.why))} {how}</p>"
    )


def facts_line(facts: Iterable[str]) -> str:
    """Join facts that are not empty, each in one piece where there is room: no line ends within "Apache-2.0"."""
    return " · ".join(f'<span class="hc-fact">{html.escape(fact)}</span>' for fact in facts if fact)


def speed_line(speed: Speed) -> str:
    """Say how fast a model writes."""
    rate = written(speed.per_second, ",.0f" if speed.per_second >= 10 else ".1f")
    if speed.replies:
        said = plural(
            "{rate} tokens a second in its last reply",
            "{rate} tokens a second in its last {n} replies",
            speed.replies,
            rate=rate,
        )
        return f"<span>{said}</span>"
    why = _(
        "Estimated: each token reads all weights once, and how fast this machine reads was measured. "
        "Drafts can make it faster."
    )
    said = _("about {rate} tokens a second expected").format(rate=rate)
    return f'<span title="{why}">{said}</span>'


def _drafts(row: ModelRow, may_change: bool) -> str:
    if not row.drafts:
        return ""
    entries = "".join(f"<li>{_draft(row.name, draft, may_change)}</li>" for draft in row.drafts)
    chosen = sum(draft.chosen is not False and draft.fits for draft in row.drafts)
    name = _("Draft models: {n} chosen").format(n=chosen or _("none"))
    return f'<div class="hc-draft-models">{name}<ul>{entries}</ul></div>'


def _draft(name: str, draft: Draft, may_change: bool) -> str:
    """A model that could draft for that of the name, and whether it shall."""
    why = html.escape(error_words(draft.why))
    said = f"{html.escape(draft.name)}: {'' if draft.fits else _('cannot draft, ')}{why}"
    if draft.chosen is None or not may_change:
        return said
    act, label = "hc_model_draft", _("Use for drafts")
    if draft.chosen:
        act, label = "hc_model_undraft", _("Do not use")
    about = _("{label}: {draft} for {name}").format(label=label, draft=draft.name, name=name)
    return f"{said} {button(act, label, text=f'{name}|{draft.name}', css='hc-bordered', aria_label=about)}"


def download_line(download: Download | None) -> str:
    """Draw how far a fetch is; empty where none goes on, or failed."""
    if download is None or download.phase == "done":
        return ""
    if download.phase == "failed":
        return f'<div class="hc-error" role="alert">{html.escape(error_words(download.message))}</div>'
    counts = download.phase == "downloading"
    role = "" if counts else ' role="status"'  # a counter would be read out at every step
    bar = progress_bar(download.done, download.total) if counts or download.phase == "converting" else ""
    return f'<div class="hc-wait"{role}>{html.escape(_stage(download))}{bar}</div>'


def _stage(download: Download) -> str:
    if download.phase == "downloading":
        if not download.total:
            return _("Connecting…")
        speed = _(" · {speed:.1f} MB a second").format(speed=download.speed / 1e6) if download.speed else ""
        return _("Downloading: {done} of {total}{speed}").format(
            done=gigabytes(download.done), total=gigabytes(download.total), speed=speed
        )
    if download.phase == "converting":
        return _("Preparing it for this machine, once…")
    return _(_STAGES.get(download.phase, later("Stopped. What was downloaded is kept.")))


def _asked(row: ModelRow, frees: int) -> str:
    ask = html.escape(_("Remove {name}?").format(name=row.name))
    what = _("Its files stay: they are your own.")
    if frees:
        what = _("This frees {frees}.").format(frees=gigabytes(frees))
    listed = _(" It leaves the list, too.") if row.own else _(" It can be downloaded again.")
    remove = button("hc_model_removed", _("Remove"), text=row.name, css="hc-danger")
    keep = button("hc_model_keep", _("Keep"), text=row.name, css="hc-bordered")
    return confirmation(ask, f"{ask} {what}{listed}", remove + keep)


def _buttons(row: ModelRow, now: Present) -> str:
    found, coming, may_change = [], now.coming(row), now.may_change

    def add(act: str, label: str, css: str = "hc-bordered") -> None:
        found.append(button(act, label, text=row.name, css=css, aria_label=f"{label} {row.name}"))

    if now.waits(row):
        add("hc_model_cancel", _("Cancel"))
    elif may_change and row.download and row.download.under_way:
        if row.download.phase != "stopping":
            add("hc_model_stop", _("Stop"))
    elif row.state == "here":
        if row.loaded and may_change:
            add("hc_model_eject", _("Eject"))
        elif not (row.loaded or coming or row.draft_only or row.fit.verdict == "no"):
            add("hc_model_load", _("Load"), "hc-strong")
    elif may_change and row.fit.verdict != "no":
        add("hc_model_fetch", _("Resume") if row.state == "partly" else _("Download"), "hc-strong")
    if (
        may_change
        and not (row.loaded or coming or (row.download and row.download.under_way))
        and (row.have or row.own)
    ):
        add("hc_model_remove", _("Remove"))
    return "".join(found)


def _size(size: int | None) -> str:
    return gigabytes(size) if size else _("size unknown")


def count_line(parameters: int | None) -> str:
    """Say how large a model is; empty where that is not known."""
    return _("{count} parameters").format(count=count(parameters)) if parameters else ""


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
        f'<input type="search" id="hc-models-words" dir="auto" aria-label="{name}" '
        f'placeholder="{_("Filter by name, maker or licence")}" autocomplete="off" spellcheck="false">'
        f"{button('hc_models_to', _('Search the hub'), text='hc-hub-words', css='hc-bordered')}"
        f"{button('hc_models_to', _('Add a model'), text='hc-model-said', css='hc-bordered')}</div>"
        '<p class="hc-quiet" id="hc-models-shown" role="status"></p>'
    )


def models(rows: Sequence[ModelRow], now: Present, by: str = "") -> str:
    """Draw the whole table. `by`: the column that it is sorted by, behind a minus from the end; empty: as it helps."""
    loaded = next((row for row in rows if row.loaded), None)
    if column := COLUMNS.get(by.removeprefix("-")):
        rows = sorted(rows, key=column[1], reverse=by.startswith("-"))
    else:
        rows = sorted(rows, key=lambda row: _usefulness(row, now.best))
    heads = "".join(_head(name, said, by) for name, (said, _key) in COLUMNS.items())
    drawn = "".join(_model(row, now) for row in rows)
    # The forms go, by the style sheet.
    fixed = "" if now.may_change else f'<p class="hc-quiet hc-models-fixed">{_(_FIXED)}</p>'
    measuring = waiting(_(_MEASURING)) if now.unmeasured else ""
    return (
        f'{_present(loaded, now)}{measuring}{fixed}<table class="hc-models" aria-label="{_("Models")}">'
        f"<thead><tr>{heads}<td></td></tr></thead>{drawn}</table>"
    )


def _usefulness(row: ModelRow, best: ModelRow | None) -> tuple[bool, bool, bool]:
    """Order models: what is here, what the user began, the best one; last what does not fit or is too slow here."""
    untouched = row.state == "absent" and not row.own and not row.download
    slow = bool(row.speed and row.speed.per_second < READABLE)
    of_no_use = untouched and (row.fit.verdict == "no" or slow)
    return row.state != "here", of_no_use, row.state == "absent" and (best is None or row.name != best.name)


def _head(name: str, said: str, by: str) -> str:
    """Draw a head of the table: pressed, rows are sorted by its column, pressed again from its end."""
    sorted_by = {name: ' aria-sort="ascending"', f"-{name}": ' aria-sort="descending"'}.get(by, "")
    return f'<th scope="col"{sorted_by}>{button("hc_models_sort", _(said), text=name, css="hc-sort")}</th>'


def _present(loaded: ModelRow | None, now: Present) -> str:
    slot, best = now.slot, now.best
    if loaded is None:
        said = _("No model is loaded. Load one of those that are on this machine, or download one first.")
        if slot.phase not in ("none", "failed"):
            said = _("{name} is being loaded.").format(name=slot.name)
        return f'<p class="hc-present">{html.escape(said)}</p>'
    hint = ""
    if best and loaded.parameters and loaded.parameters < min(TINY, best.parameters or 0):
        hint = _(" It is tiny. {name} is recommended for this machine.").format(name=html.escape(best.name))
    return f'<p class="hc-present"><strong>{html.escape(loaded.name)}</strong> {_("is running.")}{hint}</p>'
