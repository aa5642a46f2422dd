"""A model on the hub, described before its weights are fetched: from config.json, or the head of a GGUF file, alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hierchat.models.catalogue import Gguf
from hierchat.models.errors import MissingError, UnsupportedError
from hierchat.models.fetch.hub import fetch_beginning
from hierchat.models.fetch.hub_search import HubFile, HubModel
from hierchat.models.formats.gguf_shards import without_number
from hierchat.models.load.before_fetch import remote_head
from hierchat.models.load.described import Described, of_config, of_head

SAFETENSORS = ""
"""In place of a file's name: all of them."""
_MOST_CONFIG = 16 << 20
_LIKED = ("q4_k_m", "q4_k_s", "q4_0", "q5_k_m", "q8_0")


def describe(model: HubModel, file: str | None = None) -> Described:
    """The model in one of its files; in the best one, if none is named. Raises a ModelError."""
    file = best(model) if file is None else file
    if file == SAFETENSORS:
        return _of_safetensors(model)
    if not file.endswith(".gguf") or (model.files and file not in {one.name for one in model.files}):
        raise MissingError(f"{model.repo} has no file {file}. Choose another one.")
    told = of_head(file, remote_head(Gguf(repo=model.repo, file=file)))
    told = told.at(gguf={"repo": model.repo, "file": file})
    return replace(_licensed(told, model), name=Path(file).name)


def _of_safetensors(model: HubModel) -> Described:
    if not model.safetensors:
        raise UnsupportedError(f"{model.repo} has no safetensors beside a config.json. Choose another model.")
    config = fetch_beginning(model.repo, "main", "config.json", _MOST_CONFIG)
    told = of_config(model.repo, config, None if model.packed else model.parameters)
    return replace(_licensed(told.at(hub={"repo": model.repo}), model), name=model.repo.split("/")[1])


def _licensed(told: Described, model: HubModel) -> Described:
    """The file's own word counts before the hub's."""
    told_by_hub = {"licence": model.licence} if model.licence and "licence" not in told.fields else {}
    return replace(told, fields={**told.fields, **told_by_hub})


def best(model: HubModel) -> str:
    """The file to take where several are offered. Raises UnsupportedError where none can be."""
    if model.safetensors:
        return SAFETENSORS
    names = sorted((file.name for file in model.gguf), key=lambda name: without_number(name) != name)
    if not names:
        raise UnsupportedError(f"{model.repo} has neither safetensors nor a GGUF file. Choose another model.")
    for kind in _LIKED:
        if found := [name for name in names if kind in name.lower().replace("-", "_")]:
            return found[0]
    return names[0]


def choices(model: HubModel) -> list[HubFile]:
    """What can be fetched of it: all safetensors under an empty name, then GGUF files, the smaller first."""
    several = model.safetensors
    sizes = [file.size for file in several if file.size is not None]
    whole = [HubFile(SAFETENSORS, sum(sizes) if len(sizes) == len(several) else None)] if several else []
    return [*whole, *sorted(model.gguf, key=lambda file: (file.size or 0, file.name))]
