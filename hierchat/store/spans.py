"""Runs of a reply's tokens that came from one source, and from one place of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from hierchat.store.records import Origin, SourceSpan

_ORIGIN = [field.name for field in fields(Origin)]
SPANS = f"SELECT start, length, source, {', '.join(_ORIGIN)} FROM spans"
"""Rows for `span_of`."""


def span_of(row: dict[str, Any]) -> SourceSpan:
    """A row of `SPANS`."""
    origin = Origin(**{name: row[name] for name in _ORIGIN})
    return SourceSpan(row["start"], row["length"], row["source"], origin)


def joined(
    held: Sequence[SourceSpan], start: int, sources: Sequence[str], origins: Sequence[Origin]
) -> list[SourceSpan]:
    """The spans of tokens that begin at `start`, behind those that are held; the last of these may go on."""
    spans = list(held)
    for number, (source, origin) in enumerate(zip(sources, origins, strict=True), start):
        last = spans[-1] if spans else None
        if last and last.source == source and origin.goes_on(last.origin, last.length):
            chance = _mean(last.origin.chance, last.length, origin.chance)
            spans[-1] = replace(last, length=last.length + 1, origin=replace(last.origin, chance=chance))
        else:
            spans.append(SourceSpan(number, 1, source, origin))
    return spans


def _mean(mean: float | None, count: int, value: float | None) -> float | None:
    """The mean of `count` chances and one more; None where one of them is not known."""
    if mean is None or value is None:
        return None
    return mean + (value - mean) / (count + 1)
