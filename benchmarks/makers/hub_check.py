"""Compare the catalogue with the hub: `python -m benchmarks.makers.hub_check [NAME ...]`.

Reads heads of files and config.json, and no weights. The exit code is 1 if anything differs.
"""

from __future__ import annotations

import json
import math
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hierchat.models.architectures import model_config
from hierchat.models.architectures.families import HEAD
from hierchat.models.catalogue import Hub, ModelEntry, read_catalogue
from hierchat.models.fetch.hub import fetch_beginning, hub_model
from hierchat.models.formats.gguf_config import gguf_config
from hierchat.models.load.check import remote_head
from hierchat.models.progress import NONSENSE, BrokenFileError, GatedError, MissingError

_JSON = 16 << 20
"""Maximum size of a configuration, or of the head of safetensors, in bytes."""
_FLOATS = ("BF16", "F16", "F32")
_INDEX, _WEIGHTS = "model.safetensors.index.json", "model.safetensors"


def on_hub(entry: ModelEntry) -> bool:
    """Tell whether any of a model comes from the hub."""
    return any(source.hub or (source.gguf and source.gguf.repo) for source in _sources(entry))


def differences(entry: ModelEntry) -> Iterator[str]:
    """Yield how a model's files differ from those on the hub, as sentences. Raises OfflineError, GatedError."""
    for source in _sources(entry):
        try:
            if source.hub:
                yield from _of_repository(entry, source.hub)
            elif source.gguf and source.gguf.repo:
                gguf, head = source.gguf, remote_head(source.gguf)
                yield from _of_config(entry, str(gguf.file), gguf_config(head))
                if entry.size and not entry.source.hub and head.parameters != entry.size.parameters:
                    yield _counted(str(gguf.file), head.parameters, entry.size.parameters)
        except (MissingError, BrokenFileError) as error:
            yield str(error)


def _sources(entry: ModelEntry) -> list[Any]:
    return [source for source in (entry.source, entry.cpu) if source]


def _of_repository(entry: ModelEntry, hub: Hub) -> Iterator[str]:
    files = [file.name for file in hub_model(hub.repo).files]
    if not any(name.endswith(".safetensors") for name in files):
        yield f"{hub.repo} has no safetensors."
        return
    config = _json(hub, "config.json")
    yield from _of_config(entry, hub.repo, config)
    texts = model_config.PREFIX if config.get("text_config") else ""
    if entry.size and (parameters := _parameters(hub, files, texts)) not in (None, entry.size.parameters):
        yield _counted(hub.repo, parameters, entry.size.parameters)


def _counted(name: str, there: int | None, said: int) -> str:
    return f"{name} has {there:,} parameters; the catalogue says {said:,}."


def _of_config(entry: ModelEntry, name: str, config: Mapping[str, Any]) -> Iterator[str]:
    kind = config.get("model_type")
    if entry.kind and kind != entry.kind:
        yield f"{name} is of the kind {kind}; the catalogue says {entry.kind}."
    try:
        slot = model_config.slot_size(model_config.of_text(config))
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
                if key.startswith((texts, HEAD.transformers)) and key != "__metadata__"
            ]
            if any(tensor["dtype"] not in _FLOATS for tensor in tensors):
                return None
            counted += sum(math.prod(tensor["shape"]) for tensor in tensors)
        except NONSENSE as error:
            raise BrokenFileError(f"{name} of {hub.repo} has no head of safetensors.") from error
    return counted


def main(names: Sequence[str]) -> int:
    """Print how each model differs, by default of the whole catalogue, and return the exit code."""
    found = 0
    catalogue = read_catalogue()
    entries = [catalogue.entry(name) for name in names] or list(catalogue.models.values())
    for entry in filter(on_hub, entries):
        try:
            differing = list(differences(entry))
        except GatedError as error:  # no fault of the catalogue
            print(f"{entry.name}: {error}")
            continue
        found += len(differing)
        for sentence in differing or ["as on the hub"]:
            print(f"{entry.name}: {sentence}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
