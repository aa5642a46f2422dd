"""What keeps a model from running, asked of the hub before its weights are fetched: config.json, or the head of a GGUF
file."""

from __future__ import annotations

from contextlib import suppress

from hierchat.models.catalogue import Backend, Gguf, ModelEntry
from hierchat.models.errors import BrokenFileError, FetchError
from hierchat.models.fetch.bring import is_fetched
from hierchat.models.fetch.hub import fetch_beginning
from hierchat.models.formats.gguf_head import Head, head_in, joined
from hierchat.models.formats.gguf_shards import shard_names
from hierchat.models.load.check import require_memory, require_runnable, require_runnable_head
from hierchat.models.progress import Report, silent

_BEGINNINGS = (4_000_000, 16_000_000, 64_000_000)
"""Bytes that are asked for in turn: of a large vocabulary, the head takes some ten million."""


def require_worth_fetching(
    entry: ModelEntry,
    device: str,
    backend: Backend | None = None,
    progress: Report = silent,
    held: int = 0,
) -> None:
    """Raises a ModelError where the model cannot run here. What the hub does not answer is found out later.
    `held`: bytes that will be free when it is loaded."""
    require_memory(entry, device, held)
    source = entry.source_on(device)
    if source.hub or is_fetched(entry, device):
        require_runnable(entry, device, backend, progress, held)
    elif source.gguf and source.gguf.repo:
        with suppress(FetchError):  # fetching says it, or knows another way
            require_runnable_head(entry, remote_head(source.gguf), device, backend)


def remote_head(gguf: Gguf) -> Head:
    """The head of a GGUF file on the hub, or of all that are one model. Raises BrokenFileError, MissingError,
    GatedError, OfflineError."""
    assert gguf.file
    return joined([_head_of(gguf, name) for name in shard_names(gguf.file)], gguf.file)


def _head_of(gguf: Gguf, name: str) -> Head:
    assert gguf.repo
    for size in _BEGINNINGS:
        data = fetch_beginning(gguf.repo, gguf.revision, name, size)
        if head := head_in(data):
            return head
        if len(data) < size:
            break
    raise BrokenFileError(f"{name} of {gguf.repo} is no GGUF file that can be read here.")
