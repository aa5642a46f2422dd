"""Values out of files that anybody may have written: of the expected type, or a default."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from typing import Any

from hierchat.store.text import storable

_LATEST = 4e9
"""Seconds: the year 2096. A time above is in milliseconds."""
_LONGEST_NAME = 200


def text(value: Any) -> str:
    """A string that can be stored; no string is an empty one."""
    return storable(value).replace("\0", "") if isinstance(value, str) else ""


def label(value: Any) -> str:
    """A name to be shown: one line."""
    return " ".join(text(value)[:_LONGEST_NAME].split())


def labels(value: Any) -> list[str]:
    """Names to be shown, those that are any."""
    return list(filter(None, map(label, array(value))))


def record(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def array(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def name(value: Any) -> str:
    """An id: short, and the same for the same value; empty where there is none."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = f"{value:x}"  # hexadecimal has no limit of digits
    found = text(value)
    return found if len(found) <= _LONGEST_NAME else digest([found])


def seconds(value: Any) -> float | None:
    """Unix time out of seconds or milliseconds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < _LATEST * 1e3:
        return None
    return float(value) if value < _LATEST else value / 1e3


def digest(parts: Iterable[str]) -> str:
    """A name for what was said."""
    found = hashlib.sha256()
    for part in parts:
        raw = part.encode("utf-8", "replace")
        found.update(len(raw).to_bytes(8, "little") + raw)
    return found.hexdigest()


def plain(value: Any, depth: int = 3) -> bool:
    """Whether it can be written as JSON again, for any reader: numbers are finite, and nesting is shallow."""
    if isinstance(value, dict | list):
        inside = value.values() if isinstance(value, dict) else value
        return depth > 0 and all(plain(one, depth - 1) for one in inside)
    return not isinstance(value, float) or math.isfinite(value)
