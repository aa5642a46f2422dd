"""Files of chats, as they are given: JSON, zips that hold JSON, folders of both."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from hierchat.transfer.errors import TransferError

_READABLE = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED = 1


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

    @contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        """Raises TransferError where it cannot be read, from inside the block too."""
        try:
            if self.member is None:
                with self.path.open("rb") as stream:
                    yield stream
            else:
                with zipfile.ZipFile(self.path) as packed, packed.open(self.member) as stream:
                    yield cast(BinaryIO, stream)
        except OSError as error:
            raise unreadable(self.path, error.strerror or error) from error
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise unreadable(self.path, f"no whole zip: {error}") from error


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
    if any(packed.getinfo(one.member or "").flag_bits & _ENCRYPTED for one in found):
        raise TransferError(f"{path} needs a password. Unpack it, and import what is in it.")
    return found
