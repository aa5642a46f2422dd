"""Find a text in the memory of a process and of its children, in every form in which a program may hold it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress

import psutil

PAGE = os.sysconf("SC_PAGE_SIZE")
PIECE = 1 << 14
"""Pages that are read at a time."""


def forms(text: str) -> dict[str, bytes]:
    """A text as UTF-8, as Python holds it (UCS-2 and UCS-4 are UTF-16 and UTF-32), and as JSON escapes it."""
    found = {name: text.encode(name) for name in ("utf-8", "utf-16-le", "utf-32-le")}
    return found | {"json": json.dumps(text)[1:-1].encode()}


def in_memory(pid: int, texts: list[str]) -> dict[str, list[bytes]]:
    """Process and form -> each place that holds one of the texts, with what is around it."""
    patterns = {name: form for text in texts for name, form in _named(text).items()}
    found: dict[str, list[bytes]] = {}

    def look(name: str, one: int) -> None:
        for data in _pieces(one):
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


def _pieces(pid: int) -> Iterator[bytes]:
    """The memory that the process has written, as far as it is there; a text that two pieces share is in both."""
    with (
        open(f"/proc/{pid}/maps") as maps,
        open(f"/proc/{pid}/mem", "rb", 0) as memory,
        open(f"/proc/{pid}/pagemap", "rb", 0) as there,
    ):
        for line in maps:
            edges, rights, *_ = line.split()
            if not rights.startswith("rw"):
                continue
            begin, end = (int(edge, 16) // PAGE for edge in edges.split("-"))
            for first in range(begin, end, PIECE):
                entries = os.pread(there.fileno(), 8 * min(PIECE + 1, end - first), 8 * first)
                yield from _read(memory.fileno(), first, entries[7::8])


def _read(memory: int, first: int, flags: bytes) -> Iterator[bytes]:
    """Runs of pages that are there, each as one piece. `flags`: of each page, whether it is in memory or in swap."""
    begin = None
    for at in range(len(flags) + 1):
        present = at < len(flags) and flags[at] & 0xC0
        if present and begin is None:
            begin = at
        elif not present and begin is not None:
            with suppress(OSError):  # given back meanwhile
                yield os.pread(memory, (at - begin) * PAGE, (first + begin) * PAGE)
            begin = None
