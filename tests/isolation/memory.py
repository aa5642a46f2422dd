"""Find a text in the memory of a process and of its children, in every form in which a program may hold it."""

import json
from collections.abc import Mapping
from contextlib import suppress

import psutil

from hierchat.checks.memory import pieces_of


def forms(text: str) -> dict[str, bytes]:
    """A text as UTF-8, as Python holds it (UCS-2 and UCS-4 are UTF-16 and UTF-32), and as JSON escapes it."""
    found = {name: text.encode(name) for name in ("utf-8", "utf-16-le", "utf-32-le")}
    return found | {"json": json.dumps(text)[1:-1].encode()}


def in_memory(pid: int, texts: list[str]) -> dict[str, list[bytes]]:
    """Process and form -> each place that holds one of the texts, with what is around it."""
    patterns = {name: form for text in texts for name, form in _named(text).items()}
    found: dict[str, list[bytes]] = {}

    def look(name: str, one: int) -> None:
        for data in pieces_of(one):
            for form, places in _found(data, patterns).items():
                found.setdefault(f"{name}: {form}", []).extend(places)

    children = psutil.Process(pid).children(recursive=True)
    look("server", pid)
    for child in children:
        with suppress(psutil.NoSuchProcess, ProcessLookupError, FileNotFoundError):  # it ended meanwhile
            look(" ".join(child.cmdline()[-2:]), child.pid)
    return found


def _named(text: str) -> dict[str, bytes]:
    named: dict[bytes, str] = {}
    for name, form in forms(text).items():
        named.setdefault(form, f"{text} as {name}")
    return {name: form for form, name in named.items()}


def _found(data: bytes, patterns: Mapping[str, bytes]) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = {}
    for name, pattern in patterns.items():
        at = data.find(pattern)
        while at >= 0:
            found.setdefault(name, []).append(data[max(at - 100, 0) : at + len(pattern) + 100])
            at = data.find(pattern, at + 1)
    return found
