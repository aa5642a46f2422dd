"""Find in the arguments of a tool's call why its user has to be asked again: addresses, and text of the chat."""

import re
from base64 import urlsafe_b64decode
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import unquote_plus

from hierchat.texts.text_files import KNOWN

_PIECE, _MOST_PIECES = 20, 6
"""Characters of a piece, and pieces of the chat that a call may hold; a run of 200 characters usually holds more."""
_AUTHORITY = re.compile(r"[/\\]{2}([^\s/\\?#\"'<>]+)")
_MAIL = re.compile(r"[\w.+-]+@([\w.-]+)")
_BARE = re.compile(
    r"(?<![\w./\\@:-])((?:[\w-]+\.)+(?:[^\W\d_]{2,63}|xn--[\w-]+)|\d{1,3}(?:\.\d{1,3}){3}|localhost|\[[\da-f:.]{2,}\])"
    r"(:\d+)?(?=([/?#])|[^\w(]|$)",
    re.IGNORECASE,
)
_ENCODED = re.compile(r"[A-Za-z\d+/_-]{80,}")


def hosts(arguments: Any) -> set[str]:
    """Return the hosts, with their ports, that arguments may name: in addresses, mail addresses and by themselves."""
    found: set[str] = set()
    for text in _readings(arguments):
        found.update(_AUTHORITY.findall(text))
        found.update(_MAIL.findall(text))
        for name, port, path in _BARE.findall(text):
            if path or port or f".{name.rpartition('.')[2]}".lower() not in KNOWN:  # else it names a file
                found.add(name + port)
    return {host.lower().rstrip(".,;:!)") for host in found}


def holds_text(arguments: Any, chat: Iterable[str]) -> bool:
    """Return whether arguments hold 200 characters or more of a chat's texts, plain or encoded (URL, base64, hex)."""
    pieces = {
        plain[at : at + _PIECE]
        for text in _readings(arguments)
        for plain in [_plain(text)]
        for at in range(0, len(plain) - _PIECE + 1, _PIECE)
    }
    if len(pieces) <= _MOST_PIECES:
        return False
    texts = [_plain(text) for text in chat]
    return sum(any(piece in text for text in texts) for piece in pieces) > _MOST_PIECES


def _plain(text: str) -> str:
    return "".join(text.split()).casefold()


def _readings(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        value = [part for pair in value.items() for part in pair]
    if isinstance(value, list):
        for part in value:
            yield from _readings(part)
        return
    text = str(value)
    yield text
    read = unquote_plus(text)
    if read != text:
        yield from _readings(read)
    for code in _ENCODED.findall(text):
        with suppress(ValueError):
            yield bytes.fromhex(code).decode(errors="replace")
        code = code.translate({ord("+"): "-", ord("/"): "_"})
        for begin in range(4):  # a part of the address may stand before it
            yield urlsafe_b64decode(code[begin : begin + (len(code) - begin) // 4 * 4]).decode(
                errors="replace"
            )
