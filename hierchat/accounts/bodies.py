"""Bodies of requests: JSON is looked at before it is parsed, for a few bytes of it can cost much."""

from __future__ import annotations

import json
import math
import re
from typing import Any

DEEPEST = 100
"""Levels of arrays and objects within each other. Parsers, templates and grammars recurse over them."""
MOST_VALUES = 500_000
"""How many there may be in one body. Each takes some 60 bytes of memory, however short it is written."""

_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_BRACKET = re.compile(r"[\[\]{}]")
_ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)


class Unsound(ValueError):
    """A body that nobody works with. The message is a sentence for whoever sent it."""


def parsed(body: bytes) -> Any:
    """Parse JSON whose texts can be stored, whose numbers are finite, and which is not too deep. Raises Unsound."""
    try:
        text = body.decode("utf-8-sig")
        _require_bounded(text)
        if any(escape[1] for escape in _ESCAPE.finditer(text)):
            raise Unsound("The text holds half a character (a lone surrogate), which UTF-8 cannot hold.")
        return json.loads(text, parse_constant=_finite, parse_float=_finite)
    except Unsound:
        raise
    except (ValueError, RecursionError) as error:
        raise Unsound("The body is no JSON.") from error


def mended(body: bytes) -> bytes:
    """`body` with "?" in place of what UTF-8 cannot hold: a browser sends half a character where a text was cut."""
    text = body.decode("utf-8", "replace")
    return _ESCAPE.sub(lambda escape: "?" if escape[1] else escape[0], text).encode()


def _require_bounded(text: str) -> None:
    """Raises Unsound. What is in strings counts for nothing, but looking for strings takes time."""
    opened = text.count("[") + text.count("{")
    if opened <= DEEPEST and opened + text.count(",") <= MOST_VALUES:
        return
    outside = _STRING.sub("", text)
    if outside.count("[") + outside.count("{") + outside.count(",") > MOST_VALUES:
        raise Unsound(f"The body holds more than {MOST_VALUES:,} values.")
    depth = 0
    for bracket in _BRACKET.finditer(outside):
        depth += 1 if bracket[0] in "[{" else -1
        if depth > DEEPEST:
            raise Unsound(f"The body is nested more than {DEEPEST} levels deep.")


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise Unsound(f"{number[:20]} is no number that JSON has.")
    return value
