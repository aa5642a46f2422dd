"""Takes a fetched model off the disk: what came from elsewhere, and what was made of it here. Files of the user's own
stay, but for those that were dropped on the page."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from hierchat.config import models_dir
from hierchat.models import cache
from hierchat.models.catalogue import Gguf, ModelEntry
from hierchat.models.errors import ModelError
from hierchat.models.fetch.bring import is_fetched, shards_there
from hierchat.models.fetch.convert import blocks_folder, converted_folder
from hierchat.models.fetch.hub import hub_folder, repo_folder
from hierchat.models.fetch.mirror import mirror_file
from hierchat.models.fetch.wheel import wheel_file
from hierchat.models.formats.gguf_shards import shard_names, shards


def removable(entry: ModelEntry, device: str) -> int:
    """The bytes that removing frees. The first time, a GGUF file is read once to know what was made of it."""
    return sum(cache.size_of(path) for path in _paths(entry, device) if not path.is_symlink())


def remove(entry: ModelEntry, device: str) -> None:
    """Raises ModelError where the system does not let it go."""
    try:
        for path in _paths(entry, device):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    except OSError as error:
        raise ModelError(
            f"{entry.name} could not be removed whole ({error.strerror}). Close what uses it and remove it again."
        ) from error


def _paths(entry: ModelEntry, device: str) -> list[Path]:
    """Files and folders, each once: what was made of a file before the file."""
    return list(dict.fromkeys(path for path in _all(entry, device) if path.exists() or path.is_symlink()))


def _all(entry: ModelEntry, device: str) -> Iterator[Path]:
    source = entry.source_on(device)
    if entry.engine:
        return
    if source.wheel:
        yield from _made(source.wheel.sha256)
        yield wheel_file(source.wheel).parent
    elif source.gguf:
        yield from _gguf(entry, source.gguf, device)
    elif is_fetched(entry, device):
        from hierchat.models.fetch.folder import identity_of

        folder = source.folder.path if source.folder else hub_folder(source.hub.repo, source.hub.revision)  # type: ignore[union-attr]
        assert folder
        name = identity_of(folder).replace(":", "-")
        yield from (blocks_folder(f"{name}-{bits}") for bits in (4, 8))
    if source.hub:
        yield repo_folder(source.hub.repo)


def _gguf(entry: ModelEntry, gguf: Gguf, device: str) -> Iterator[Path]:
    if gguf.path:
        files = shards(gguf.path)
        if all(file.is_file() for file in files):
            yield from _made(cache.known_sha256_of(files))
        if gguf.path.resolve().is_relative_to(models_dir().resolve()):
            yield from files
        return
    assert gguf.repo
    assert gguf.file
    if gguf.mirror:
        yield from _made(gguf.mirror.sha256)
        yield mirror_file(gguf.mirror, gguf.file).parent
    # Other files of the repository may be other models.
    links = shards_there(gguf)
    if len(links) == len(shard_names(gguf.file)) and not gguf.mirror:
        yield from _made(cache.known_sha256_of(links))
    for link in links:
        yield link.resolve()
        yield link
    yield from (repo_folder(gguf.repo) / "blobs").glob("*.incomplete")


def _made(digest: str) -> Iterator[Path]:
    yield blocks_folder(digest)
    yield converted_folder(digest)
