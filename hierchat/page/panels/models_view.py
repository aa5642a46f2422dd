"""Draw the table of models, and the search of the hub, as HTML. Pure functions."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from hierchat.chat.wording import number
from hierchat.language import _, later
from hierchat.language import number as written
from hierchat.models.cache import count, gigabytes
from hierchat.models.fetch.hub import HubFile
from hierchat.models.formats.gguf_head import without_number
from hierchat.models.runnable import STEPS
from hierchat.page.templates import Macros
from hierchat.runtime.model_manager import READABLE, TINY, ModelRow
from hierchat.runtime.model_slot import CANCELLABLE, SlotStatus

_FITS = {
    "yes": later("Fits"),
    "tight": later("Tight fit"),
    "full": later("Too little free memory"),
    "no": later("Does not run here"),
    "unknown": later("Memory not known yet"),
}
_KIND = re.compile(r"[-_.]((?:UD-)?(?:I?Q\d|TQ\d|BF16|F16|F32|MXFP4)[\w]*)\.gguf$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Present:
    """State that the list of models is drawn from beside its rows."""

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
        """Return whether this model is being loaded."""
        return self.slot.name == row.name and self.slot.phase not in ("none", "failed", "ready")

    def waits(self, row: ModelRow) -> bool:
        """Return whether this model waits for a reply to end before it is loaded."""
        return self.slot.name == row.name and self.slot.phase in CANCELLABLE


COLUMNS: dict[str, tuple[str, Callable[[ModelRow], Any]]] = {
    "name": (later("Name"), lambda row: row.name.casefold()),
    "size": (later("Size"), lambda row: row.size or 0),
    "speed": (later("Speed"), lambda row: row.speed.per_second if row.speed else 0.0),
    "fit": (later("Fits"), lambda row: list(_FITS).index(row.fit.verdict)),
}
"""The heads of the table, and what rows are sorted by."""


def models(rows: Sequence[ModelRow], now: Present, by: str = "") -> Markup:
    """Draw the table of models. `by`: the column to sort by, with a minus in reverse; empty: most useful first."""
    loaded, best = next((row for row in rows if row.loaded), None), now.best
    if column := COLUMNS.get(by.removeprefix("-")):
        rows = sorted(rows, key=column[1], reverse=by.startswith("-"))
    else:
        rows = sorted(rows, key=lambda row: _usefulness(row, best))
    tiny = bool(best and loaded and loaded.parameters and loaded.parameters < min(TINY, best.parameters or 0))
    heads = [(name, said) for name, (said, _key) in COLUMNS.items()]
    return MODELS.table(rows, now, by, heads, loaded, tiny)


def _usefulness(row: ModelRow, best: ModelRow | None) -> tuple[bool, bool, bool]:
    """Return the sort key of a model: those on disk first, then those begun and the best one; last the useless ones."""
    untouched = row.state == "absent" and not row.own and not row.download
    slow = bool(row.speed and row.speed.per_second < READABLE)
    of_no_use = untouched and (row.fit.verdict == "no" or slow)
    return row.state != "here", of_no_use, row.state == "absent" and (best is None or row.name != best.name)


def _shortened(files: Sequence[HubFile]) -> list[tuple[str, HubFile]]:
    """Return each file with a short name that tells it from the others of its repository."""
    found = [_KIND.search(without_number(file.name)) for file in files]
    names = [kind[1] if kind else file.name for kind, file in zip(found, files, strict=True)]
    return [
        (name if names.count(name) == 1 else file.name, file) for name, file in zip(names, files, strict=True)
    ]


MODELS = Macros(
    "models.html", FITS=_FITS, STEPS=STEPS, count=count, gigabytes=gigabytes, number=number,
    size=lambda size: gigabytes(size) if size else _("size unknown"),
    written=written,
)  # fmt: skip
tiny_line = MODELS.tiny_line
HUB = Macros(
    "hub.html", alone=lambda look: [one.name for one in look.choices] == [look.file], shortened=_shortened
)
