"""Remove deleted texts from the memory of this process: slots, draft indexes, caches, and memory that was freed."""

import ctypes
import gc
import platform
import threading
from collections.abc import Callable, Collection
from functools import cache
from typing import Any

import psutil

from hierchat.runtime import template
from hierchat.runtime.history_index import Histories
from hierchat.runtime.model_slot import ModelSlot
from hierchat.runtime.served_model import Learned

OVERWRITE_SECONDS = 1.0
"""Seconds after a deletion when freed memory is overwritten: what drew the deleted text has ended by then."""
_THREADS = 4
"""Threads that overwrite one after the other: glibc gives each new thread one of its pools of memory, in turn."""
_MOST_BYTES = 1 << 28
"""Limit of the memory that is taken at once to overwrite what was freed."""
_PYTHON_SIZES = range(48, 513, 16)
"""Block sizes of Python's own allocator that can hold a text, in bytes."""
_LIBRARY_SIZES = (4096, 1024, 512, 256, 128, 64, 24)
"""Block sizes in which freed memory of the C library is taken."""
_SMALL_SIZES, _KEPT = range(24, 1033, 16), 7
"""Sizes of freed pieces that each thread keeps for itself (glibc's tcache), in bytes, and how many of each."""
_PIECE = 1 << 18
"""Bytes that are taken between two looks whether the process has grown."""


class DeletedTexts:
    """Clears what this process still holds of texts that were deleted from the store."""

    def __init__(self, slot: ModelSlot, histories: Histories, learned: Learned) -> None:
        self._slot, self._histories, self._learned = slot, histories, learned
        self.caches: list[Callable[[], object]] = [template.end_process]
        """Functions that empty caches which may hold any text; the page adds its own."""
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None

    def clear(self, user_id: int, chats: Collection[int] | None = None) -> None:
        """Clear the texts of these chats of a user, or of all; replies in progress keep theirs. Memory that was freed
        is overwritten a moment later."""
        if served := self._slot.model:
            served.wipe(user_id, chats)
        self._learned.forget(user_id)
        if chats is None:
            self._histories.forget(user_id)
        else:
            self._histories.follow(user_id)
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = threading.Timer(OVERWRITE_SECONDS, self._overwrite)
            self._timer.daemon = True
            self._timer.start()

    def close(self) -> None:
        """Stop the timer. The end of the process gives all memory back."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()

    def _overwrite(self) -> None:
        for empty in self.caches:
            empty()
        overwrite_freed_memory()


def overwrite_freed_memory() -> None:
    """Overwrite freed memory of Python and, on Linux, of the C library. What other threads keep for their next small
    allocations stays: only `overwrite_small_pieces` in such a thread reaches that."""
    gc.collect()
    held, left = list[list[bytes]](), _MOST_BYTES
    for size in _PYTHON_SIZES:
        held.append(_filled(size, left))
        left -= size * len(held[-1])
    del held
    if library := _library():
        for _ in range(_THREADS):
            thread = threading.Thread(target=_overwrite_library, args=[library])
            thread.start()
            thread.join()


def _filled(size: int, most: int) -> list[bytes]:
    """Take zeroed blocks of one size from Python's allocator until it has to ask the system for more memory, or has
    given `most` bytes."""
    content, before, taken = size - b"".__sizeof__(), _virtual_bytes(), list[bytes]()
    while len(taken) * size < most and _virtual_bytes() <= before:
        taken += [bytes(content) for _ in range(_PIECE // size)]
    return taken


def _virtual_bytes() -> int:
    return int(psutil.Process().memory_info().vms)


class _MallocInfo(ctypes.Structure):
    _fields_ = [(f"field_{number}", ctypes.c_size_t) for number in range(10)]


@cache
def _library() -> Any:
    """Return the C library; None if it is not glibc."""
    library: Any = ctypes.PyDLL(None) if platform.system() == "Linux" else None
    if not hasattr(library, "mallinfo2"):
        return None
    # PyDLL keeps the interpreter's lock: to let it go costs more than these calls.
    library.mallinfo2.restype = _MallocInfo
    library.malloc.restype = library.calloc.restype = ctypes.c_void_p
    library.malloc.argtypes, library.calloc.argtypes = [ctypes.c_size_t], [ctypes.c_size_t] * 2
    library.free.argtypes = [ctypes.c_void_p]
    return library


def overwrite_small_pieces() -> None:
    """Overwrite what glibc keeps for the next small allocations of this thread."""
    if library := _library():
        taken = [(library.malloc(size), size) for size in _SMALL_SIZES for _ in range(_KEPT)]
        for block, size in taken:
            if block:
                ctypes.memset(block, 0, size)
        for block, _ in taken:
            library.free(block)


def _overwrite_library(library: Any) -> None:
    """Give free pages back to the system, and overwrite the free pieces between memory in use."""
    library.malloc_trim(0)
    taken, left = list[int](), _MOST_BYTES
    for size in _LIBRARY_SIZES:
        before = library.mallinfo2().field_0  # bytes taken from the system
        while left > 0 and library.mallinfo2().field_0 <= before:
            taken += [block for _ in range(_PIECE // size) if (block := library.calloc(1, size))]
            left -= _PIECE
    for block in taken:
        library.free(block)
    library.malloc_trim(0)
