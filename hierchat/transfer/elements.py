"""The objects of a JSON file, one by one: those of its array, or those that stand behind each other.

Whole objects are cut out by their brackets and parsed alone. So what is wrong inside one (half a surrogate pair, NaN, a
missing comma) costs that one, and no more than one is in memory.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from hierchat.transfer.errors import BadChat

PIECE = 1 << 18
"""Bytes that are read at once."""
LARGEST = 1 << 28
"""Bytes of one object at most. Open WebUI keeps images in its chats."""
MOST_COMMAS = 1 << 22
"""In one object, texts included: an array of a hundred million numbers would take gigabytes of memory."""
DEEPEST, MANY = 1 << 20, 1 << 16
"""Brackets that are open at once, behind which a file is given up, and those after which somebody may look up."""
_INSIDE_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_TO_BRACKET = re.compile(rb'(?:[^"{}\[\]]++|"(?:[^"\\]++|\\.)*+")*+', re.DOTALL)
"""Past whole strings too; to the quote of one that has no end yet."""


def elements(stream: BinaryIO) -> Iterator[Any]:
    """Each object or array as Python values; in place of one that is broken, a BadChat that says why. None where there
    is no more than a further piece of one."""
    for raw in _cut(stream):
        yield _parsed(raw) if isinstance(raw, bytes) else raw


def _parsed(raw: bytes) -> Any:
    if raw.count(b",") > MOST_COMMAS:
        return BadChat(f"it has more than {MOST_COMMAS:,} parts")
    try:
        return json.loads(raw.decode("utf-8", "replace"))
    except RecursionError:
        return BadChat("it is nested too deep")
    except ValueError as error:  # not only JSONDecodeError: a number may have too many digits
        return BadChat(f"it is no JSON ({error})")


def _cut(stream: BinaryIO) -> Iterator[bytes | BadChat | None]:
    """The bytes of each object; None after each piece of the file, and after many brackets."""
    data = stream.read(PIECE).removeprefix(codecs.BOM_UTF8)
    outside = 1 if data.lstrip()[:1] == b"[" else 0
    depth = at = start = seen = 0
    large = in_string = False
    while True:
        while at < len(data):
            if in_string:
                at = _INSIDE_STRING.match(data, at).end()  # type: ignore[union-attr]  # matches everywhere
                if data[at : at + 1] != b'"':
                    break  # the rest of it, and maybe of an escape, comes with the next piece
                at += 1
                in_string = False
                continue
            at = _TO_BRACKET.match(data, at).end()  # type: ignore[union-attr]  # matches everywhere
            if at == len(data):
                break
            sign = data[at : at + 1]
            at += 1
            seen += 1
            if seen % MANY == 0:
                yield None
            if sign == b'"':
                in_string = True
            elif sign in b"{[":
                if depth == outside:
                    start = at - 1
                depth += 1
                if depth > DEEPEST:
                    yield BadChat("it is nested too deep, and what stands behind it was not read")
                    return
            elif depth > outside:
                depth -= 1
                if depth == outside:
                    yield _too_large() if large else data[start:at]
                    large = False
            else:
                depth = outside = 0  # the end of the array
        inside = depth > outside
        if inside and at - start > LARGEST:
            large = True
        keep = at if large or not inside else start
        more = stream.read(PIECE if len(data) - keep < PIECE else len(data) - keep)
        if not more:
            break
        data, at, start = data[keep:] + more, at - keep, start - keep
        yield None
    if depth:
        yield BadChat("the file ends here, in the middle")


def _too_large() -> BadChat:
    return BadChat(f"it has more than {LARGEST >> 20} MB")
