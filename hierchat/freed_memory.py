"""Overwrite freed memory: Python, numpy and glibc keep it for later, with the texts that stood in it."""

import ctypes
import gc
import platform
from functools import cache
from typing import Any

_MOST_BYTES = 1 << 29
"""Limit of the memory that is taken at once to overwrite what was freed."""
_PYTHON_SIZES = range(48, 513, 16)
"""Block sizes of Python's own allocator that can hold a text, in bytes."""
_LIBRARY_SIZES = (4096, 1024, 512, 256, 128, 64, 24)
"""Block sizes in which freed memory of the C library is taken."""
_SMALL_SIZES, _KEPT = range(24, 1033, 16), 7
"""Sizes of freed pieces that each thread keeps for itself (glibc's tcache), in bytes, and how many of each."""
_NUMPY_SIZES = 1024
"""Bytes from which on numpy keeps no freed array for itself."""
_PIECE = 1 << 20
"""Bytes that are taken between two looks whether the process has grown."""
_MARGIN = 1 << 22
"""Bytes by which the process has to grow: less may be due to another thread."""
_ARENA_MAX = -8
"""M_ARENA_MAX of glibc's mallopt."""


def give_back_freed_memory() -> None:
    """Give freed memory of the C library back to the system, on Linux."""
    if library := _library():
        library.malloc_trim(0)


def use_one_pool() -> None:
    """Have all threads take memory from one pool of glibc, so that one can overwrite it, before threads start."""
    if library := _library():
        library.mallopt(_ARENA_MAX, 1)


def overwrite_freed_memory() -> None:
    """Overwrite freed memory of Python and, on Linux, of the C library, but not other threads' small blocks."""
    import numpy as np  # here: a program takes one pool before numpy starts threads
    import psutil  # here, too: most commands need neither

    process = psutil.Process()
    gc.collect()
    for size in range(1, _NUMPY_SIZES):  # numpy keeps freed arrays of each of these sizes, for all threads
        kept = [np.empty(size, np.uint8) for _ in range(_KEPT)]
        for array in kept:
            array.fill(0)
    for size in _PYTHON_SIZES:
        _fill(size, process)
    if library := _library():
        overwrite_small_pieces()
        _overwrite_library(library)


def _fill(size: int, process: Any) -> None:
    """Take zeroed blocks of one size from Python's allocator until it has asked the system for more memory."""
    most, taken = process.memory_info().vms + _MARGIN, list[bytes]()
    content = size - b"".__sizeof__()
    while len(taken) * size < _MOST_BYTES and process.memory_info().vms <= most:
        taken += [bytes(content) for _ in range(_PIECE // size)]


class _MallocInfo(ctypes.Structure):
    _fields_ = [(f"field_{number}", ctypes.c_size_t) for number in range(10)]


@cache
def _library() -> Any:
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
    library.malloc_trim(0)
    taken, left = list[int](), _MOST_BYTES
    for size in _LIBRARY_SIZES:
        most = library.mallinfo2().field_0 + _MARGIN  # field_0: bytes taken from the system
        while left > 0 and library.mallinfo2().field_0 <= most:
            taken += [block for _ in range(_PIECE // size) if (block := library.calloc(1, size))]
            left -= _PIECE
    for block in taken:
        library.free(block)
    library.malloc_trim(0)
