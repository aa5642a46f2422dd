"""Search the memory of this process and its children for texts, by another process that gets them disguised."""

import gc
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from types import FrameType
from typing import Any

import numpy as np
import psutil

from hierchat.config import process_environment

FILES = "maps", "mem", "pagemap"
"""Files of a process below /proc by which its memory is read."""
_PIECE = 1 << 14
"""Pages that are read at a time."""
_WRITTEN = re.compile(rb"[\x40-\xff]+")
"""Pages in memory or swap, by the highest byte of each in `pagemap`."""
_MASK = bytes(range(255, -1, -1))


def disguised(text: bytes) -> bytes:
    """Return a text with all bits turned; twice, the text itself."""
    return text.translate(_MASK)


def copies(sought: Iterable[bytes]) -> Counter[str]:
    """Count the places of these disguised texts by process: "here", or a child's name. Raises OSError."""
    with ExitStack() as stack:
        opened = [stack.enter_context(open(f"/proc/self/{name}", "rb", 0)).fileno() for name in FILES]
        done = subprocess.run(
            [sys.executable, "-m", __name__, *map(str, opened)],
            input=json.dumps([one.hex() for one in sought]),
            stdout=subprocess.PIPE,
            pass_fds=opened,
            text=True,
            check=True,
            env=process_environment(),
        )
    return Counter(json.loads(done.stdout))


def held(sought: Iterable[bytes]) -> list[str]:
    """Return the kinds of objects in use that hold one of these disguised texts; freed memory is not searched."""
    texts = [disguised(one) for one in sought]
    shortest = min(map(len, texts))
    own = {id(texts), *map(id, texts)}
    gc.collect()
    frames = [frame for first in sys._current_frames().values() for frame in _stack(first)]
    todo: list[Any] = [*gc.get_objects(), *frames]
    seen, found = {*own, id(own), id(todo), id(frames)}, list[str]()
    while todo:
        one = todo.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if any(text in data for data in _bytes_of(one, shortest) for text in texts):
            found.append(type(one).__name__)
        todo += [each for each in gc.get_referents(one) if not gc.is_tracked(each)]
    return found


def _stack(frame: FrameType | None) -> Iterator[Any]:
    while frame is not None:
        yield list(frame.f_locals.values())
        frame = frame.f_back


def _bytes_of(one: Any, shortest: int) -> Iterator[bytes]:
    kind = type(one)
    if issubclass(kind, str) and 4 * len(one) >= shortest:
        yield one.encode("utf-8", "surrogatepass")
    elif issubclass(kind, (bytes, bytearray)) and len(one) >= shortest:
        yield bytes(one)
    elif (
        issubclass(kind, (list, tuple))
        and 8 * len(one) >= shortest
        and all(type(each) is int for each in one)
    ):
        with suppress(OverflowError):
            yield b"".join(each.to_bytes(8, "little", signed=True) for each in one)
    elif issubclass(kind, np.ndarray) and one.dtype.kind in "iu" and one.nbytes >= shortest:
        yield one.tobytes()


# Another process's memory
def pieces(maps: Iterable[bytes], memory: int, there: int) -> Iterator[bytes]:
    """Yield the memory that a process has written; a text that two pieces share is in both. Arguments: its FILES."""
    page = os.sysconf("SC_PAGE_SIZE")
    for line in maps:
        edges, rights, *_ = line.split()
        if not rights.startswith(b"rw"):
            continue
        begin, end = (int(edge, 16) // page for edge in edges.split(b"-"))
        for first in range(begin, end, _PIECE):
            flags = os.pread(there, 8 * min(_PIECE + 1, end - first), 8 * first)[7::8]
            for run in _WRITTEN.finditer(flags):
                with suppress(OSError):  # given back meanwhile
                    yield os.pread(memory, len(run[0]) * page, (first + run.start()) * page)


def pieces_of(pid: int) -> Iterator[bytes]:
    """Yield the memory of a process by its number."""
    with ExitStack() as stack:
        maps, *others = (stack.enter_context(open(f"/proc/{pid}/{name}", "rb", 0)) for name in FILES)
        yield from pieces(maps.read().splitlines(), *(file.fileno() for file in others))


def _count(memory: Iterable[bytes], texts: Iterable[bytes]) -> int:
    return sum(piece.count(text) for piece in memory for text in texts)


def _search(maps: int, memory: int, there: int) -> Mapping[str, int]:
    texts = [disguised(bytes.fromhex(one)) for one in json.load(sys.stdin)]
    with open(maps, "rb", closefd=False) as lines:
        found = {"here": _count(pieces(lines.read().splitlines(), memory, there), texts)}
    for child in psutil.Process(os.getppid()).children(recursive=True):
        with suppress(psutil.Error, OSError):  # it ended meanwhile
            if child.pid != os.getpid():
                found[child.cmdline()[-1]] = _count(pieces_of(child.pid), texts)
    return found


if __name__ == "__main__":
    print(json.dumps(_search(*map(int, sys.argv[1:]))))
