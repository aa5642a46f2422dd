"""What the catalogue says of a model, compared with what lies on the hub: `hierchat models check`.

Heads of files and config.json are read, and no weights.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping
from typing import Any

from hierchat.models.architectures.architecture import HEAD
from hierchat.models.architectures.model_config import PREFIX, of_text, slot_size
from hierchat.models.catalogue import Gguf, Hub, ModelEntry
from hierchat.models.fetch.hub import fetch_beginning, list_files
from hierchat.models.formats.gguf_config import gguf_config
from hierchat.models.load.check import remote_head
from hierchat.models.progress import NONSENSE, BrokenFileError, MissingError

_JSON = 16 << 20
"""Bytes of a configuration, or of the head of safetensors, at most."""
_FLOATS = ("BF16", "F16", "F32")
_HEAD = HEAD.transformers
_INDEX, _WEIGHTS = "model.safetensors.index.json", "model.safetensors"


def on_hub(entry: ModelEntry) -> bool:
    """Tell whether any of a model comes from the hub."""
    return any(source.hub or (source.gguf and source.gguf.repo) for source in _sources(entry))


def differences(entry: ModelEntry) -> Iterator[str]:
    """Yield what is otherwise on the hub, as sentences. Raises OfflineError, GatedError."""
    for source in _sources(entry):
        try:
            if source.hub:
                yield from _of_repository(entry, source.hub)
            elif source.gguf and source.gguf.repo:
                yield from _of_file(entry, source.gguf)
        except (MissingError, BrokenFileError) as error:
            yield str(error)


def _sources(entry: ModelEntry) -> list[Any]:
    return [source for source in (entry.source, entry.cpu) if source]


def _of_repository(entry: ModelEntry, hub: Hub) -> Iterator[str]:
    files = list_files(hub.repo)
    if not any(name.endswith(".safetensors") for name in files):
        yield f"{hub.repo} has no safetensors."
        return
    config = _json(hub, "config.json")
    yield from _of_config(entry, hub.repo, config)
    texts = PREFIX if config.get("text_config") else ""
    if entry.size and (parameters := _parameters(hub, files, texts)) not in (None, entry.size.parameters):
        yield f"{hub.repo} has {parameters:,} parameters; the catalogue says {entry.size.parameters:,}."


def _of_file(entry: ModelEntry, gguf: Gguf) -> Iterator[str]:
    head = remote_head(gguf)
    yield from _of_config(entry, str(gguf.file), gguf_config(head))
    if entry.size and not entry.source.hub and head.parameters != entry.size.parameters:
        yield f"{gguf.file} has {head.parameters:,} parameters; the catalogue says {entry.size.parameters:,}."


def _of_config(entry: ModelEntry, name: str, config: Mapping[str, Any]) -> Iterator[str]:
    kind = config.get("model_type")
    if entry.kind and kind != entry.kind:
        yield f"{name} is of the kind {kind}; the catalogue says {entry.kind}."
    try:
        slot = slot_size(of_text(config))
    except NONSENSE:
        return
    types = config.get("layer_types") or ()
    if entry.size and slot != entry.size.slot and not any("attention" not in one for one in types):
        yield f"{name} keeps {slot:,} numbers a position; the catalogue says {entry.size.slot:,}."


def _json(hub: Hub, file: str) -> dict[str, Any]:
    try:
        return dict(json.loads(fetch_beginning(hub.repo, hub.revision, file, _JSON)))
    except NONSENSE as error:
        raise BrokenFileError(f"{file} of {hub.repo} is no JSON.") from error


def _parameters(hub: Hub, files: list[str], texts: str) -> int | None:
    """Count the numbers in all tensors; None where some are packed. `texts`: how the names of those begin that texts
    need beside the head, where others are for pictures or sounds."""
    names = [_WEIGHTS]
    if _INDEX in files:
        names = sorted(set(_json(hub, _INDEX).get("weight_map", {}).values()))
    counted = 0
    for name in names:
        data = fetch_beginning(hub.repo, hub.revision, name, 8)
        size = struct.unpack("<Q", data)[0] if len(data) == 8 else 0
        try:
            head = json.loads(fetch_beginning(hub.repo, hub.revision, name, 8 + min(size, _JSON))[8:])
            tensors = [
                tensor
                for key, tensor in head.items()
                if key.startswith((texts, _HEAD)) and key != "__metadata__"
            ]
            if any(tensor["dtype"] not in _FLOATS for tensor in tensors):
                return None
            counted += sum(math.prod(tensor["shape"]) for tensor in tensors)
        except NONSENSE as error:
            raise BrokenFileError(f"{name} of {hub.repo} has no head of safetensors.") from error
    return counted
