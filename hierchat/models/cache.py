"""Write files in the cache whole or not at all: writers work on a `.part` beside the target, under a lock."""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from hierchat.config import cache_dir
from hierchat.language import number
from hierchat.models.progress import BrokenFileError, LoadPhase, ModelError, Progress, Report


@contextmanager
def locked(target: Path, report: Report, phase: LoadPhase) -> Iterator[None]:
    """Lock `target` against other processes; the lock of a killed process frees itself."""
    target.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(f"{target}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        report(Progress(phase, 0, None, f"waiting for another hierchat that is {phase} the same"))
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def disk_errors() -> Iterator[None]:
    """Turn the system's 'no space left on device' into a ModelError."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ModelError(
                f"The disk that holds {cache_dir()} is full. Free some space, or move the cache by HIERCHAT_CACHE."
            ) from error
        raise


def require_space(needed: int) -> None:
    """Raise ModelError if the disk of the cache has not `needed` bytes free, and a reserve."""
    cache_dir().mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(cache_dir()).free
    if needed + 64 * 2**20 > free:
        raise ModelError(
            f"{gigabytes(needed)} are needed in {cache_dir()} and {gigabytes(free)} are free. "
            "Free some space, or move the cache by HIERCHAT_CACHE."
        )


def publish(part: Path, target: Path) -> None:
    """Move a finished file or folder to its place, so that a crash leaves either nothing or all of it."""
    files = [p for p in part.rglob("*") if p.is_file()] if part.is_dir() else [part]
    for file in files:
        _sync(file)
    if target.is_dir():
        shutil.rmtree(target)
    os.replace(part, target)
    _sync(target.parent)


def _sync(path: Path) -> None:
    if path.is_dir() and os.name == "nt":
        return  # Windows opens no folders
    descriptor = os.open(path, os.O_RDONLY if os.name != "nt" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file. Raises BrokenFileError if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise BrokenFileError(
            f"{path.name} cannot be read ({error.strerror}). Choose another file."
        ) from error


def known_sha256(path: Path) -> str:
    """Return the SHA-256 of a file that stays, remembered for as long as its size and time of change stay the same."""
    stat = path.stat()
    known = cache_dir() / "hashes" / f"{hashlib.sha256(str(path.resolve()).encode()).hexdigest()}.json"
    stamp = [stat.st_size, stat.st_mtime_ns]
    with suppress(OSError, ValueError, KeyError, TypeError):
        remembered = json.loads(known.read_text())
        if remembered["stamp"] == stamp:
            return str(remembered["sha256"])
    digest = sha256(path)
    with suppress(OSError):  # the cache cannot be written: it is hashed again
        write_whole(known, json.dumps({"stamp": stamp, "sha256": digest}).encode())
    return digest


def known_sha256_of(files: Sequence[Path]) -> str:
    """Return one SHA-256 for several files that belong together; for one, its own."""
    digests = [known_sha256(file) for file in files]
    return digests[0] if len(files) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()


def write_whole(path: Path, data: bytes) -> None:
    """Write a small file: another process sees what it held before, or all of it. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.part")
    part.write_bytes(data)
    os.replace(part, path)


def size_of(path: Path) -> int:
    """Count the bytes on disk of a file or folder, 0 where there is none; of a linked file, what it links to."""
    if not path.is_dir():
        return path.stat().st_size if path.exists() else 0
    sizes: dict[tuple[int, int], int] = {}
    for folder, _folders, names in os.walk(path):  # in a third of the time of Path.rglob
        for name in names:
            with suppress(OSError):  # removed meanwhile
                file = os.stat(os.path.join(folder, name))
                sizes[file.st_dev, file.st_ino] = file.st_size
    return sum(sizes.values())


def gigabytes(size: float) -> str:
    """Format `size` bytes for people: '98 MB', '1.3 GB', '12 KB' (10**6, 10**9, 10**3)."""
    if size >= 999.5e6:  # else rounded up to '1000 MB'
        return f"{number(size / 1e9, '.1f')} GB"
    return f"{size / 1e6:.0f} MB" if size >= 999.5e3 else f"{size / 1e3:.0f} KB"


def count(parameters: int) -> str:
    """Format a number of parameters as names of models do: '135M', '1B', '1.7B'."""
    if parameters >= 999.5e6:
        return f"{parameters / 1e9:.1f}".removesuffix(".0") + "B"
    return f"{parameters / 1e6:.0f}M" if parameters >= 999.5e3 else f"{parameters / 1e3:.0f}K"
