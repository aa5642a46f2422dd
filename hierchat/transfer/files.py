"""Files of chats, as they are given: JSON, zips that hold JSON, folders of both."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self, cast

from hierchat.transfer.errors import TransferError

_READABLE = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED = 1
MOST_FILES, MOST_UNPACKED = 100_000, 1 << 35
"""In a zip, and bytes of all that is read of it. An export of ten years has a hundredth of that."""
_MOST_DIRECTORY = 1 << 24
"""Bytes of a zip's list of files, looked at before it is read."""


@dataclass(frozen=True, slots=True)
class Source:
    """One JSON file, which may lie in a zip."""

    path: Path
    member: str | None
    size: int
    """Bytes, unpacked."""

    @property
    def name(self) -> str:
        return self.path.name if self.member is None else f"{self.path.name}, {self.member}"


class Place:
    """A file that sources lie in. A zip is opened once for all that is read of it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._packed: zipfile.ZipFile | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._packed:
            self._packed.close()

    @contextmanager
    def opened(self, source: Source) -> Iterator[BinaryIO]:
        """Raises TransferError where it cannot be read, from inside the block too."""
        try:
            if source.member is None:
                with self._path.open("rb") as stream:
                    yield stream
            else:
                self._packed = self._packed or zipfile.ZipFile(self._path)
                with self._packed.open(source.member) as stream:
                    yield cast(BinaryIO, stream)
        except OSError as error:
            raise unreadable(self._path, error.strerror or error) from error
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise unreadable(self._path, f"no whole zip: {error}") from error


def sources(paths: Iterable[Path]) -> list[Source]:
    """What there is to read in files and folders. Raises TransferError."""
    return [source for path in paths for file in _files(path) for source in _of(file)]


def unreadable(path: Path, what: object) -> TransferError:
    return TransferError(f"{path} cannot be read ({what}). Get it again, or name another file.")


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise TransferError(f"There is no {path}. Name the file or folder that you were given.")
    if not path.is_dir():
        return [path]
    found = sorted(file for kind in ("*.json", "*.zip") for file in path.rglob(kind) if file.is_file())
    if not found:
        raise TransferError(f"There is no JSON file and no zip in {path}.")
    return found


def _of(path: Path) -> list[Source]:
    try:
        if not zipfile.is_zipfile(path):
            return [Source(path, None, path.stat().st_size)]
        _require_few(path)
        with zipfile.ZipFile(path) as packed:
            found = [
                Source(path, one.filename, one.file_size)
                for one in packed.infolist()
                if one.filename.endswith(".json") and one.compress_type in _READABLE
            ]
    except OSError as error:
        raise unreadable(path, error.strerror or error) from error
    except (zipfile.BadZipFile, NotImplementedError) as error:
        raise unreadable(path, f"no whole zip: {error}") from error
    if not found:
        raise TransferError(f"There is no JSON file in {path}.")
    if len(found) > MOST_FILES:
        raise _too_many(path)
    if (unpacked := sum(source.size for source in found)) > MOST_UNPACKED:
        raise TransferError(
            f"{path} holds {unpacked >> 30:,} GB of JSON, and {MOST_UNPACKED >> 30} GB are read at most. Unpack it, "
            "and import the files that hold chats."
        )
    if any(packed.getinfo(one.member or "").flag_bits & _ENCRYPTED for one in found):
        raise TransferError(f"{path} needs a password. Unpack it, and import what is in it.")
    return found


def _require_few(path: Path) -> None:
    """Raises TransferError where a zip has too many files, before the list of them is read, which takes memory."""
    with path.open("rb") as stream:
        end = zipfile._EndRecData(stream)  # type: ignore[attr-defined]
    if end and end[zipfile._ECD_SIZE] > _MOST_DIRECTORY:  # type: ignore[attr-defined]
        raise _too_many(path)


def _too_many(path: Path) -> TransferError:
    return TransferError(
        f"{path} holds more than {MOST_FILES:,} files. Unpack it, and import the files that hold chats."
    )
