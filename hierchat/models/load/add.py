"""A model out of what the user names: a repository of the hub, a file in one, a folder, a GGUF file. It is looked at
before it is written into the user's models.yaml, and refused with the reason where it cannot run."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from hierchat.config import models_dir
from hierchat.models.catalogue import Catalogue
from hierchat.models.errors import BrokenFileError, MissingError, UnsupportedError
from hierchat.models.fetch.hub_search import HubModel, hub_model
from hierchat.models.formats.gguf_head import read_head
from hierchat.models.formats.gguf_shards import shards
from hierchat.models.load.described import Described, add_described, of_config, of_head
from hierchat.models.load.on_hub import describe

_REPO = re.compile(
    r"^(?:(?:https?://)?(?:huggingface\.co|hf\.co)/)?(?P<repo>[\w.-]+/[\w.-]+?)/?"
    r"(?:/(?:(?:blob|resolve)/[\w.-]+/)?(?P<file>[^?]+\.gguf))?(?:\?.*)?$",
    re.IGNORECASE,
)


def add(said: str, catalogue: Catalogue) -> tuple[str, bool]:
    """Add the model that `said` names to the user's models.yaml. Its name there, and whether it is new: what is in the
    catalogue already stays one model. Raises a ModelError."""
    said = said.strip().strip("\"'")
    if not said:
        raise MissingError("Type the name of a model on the hub, or the path of a folder or of a GGUF file.")
    path = _path(said)
    if path is not None:
        told = _local(path)
    elif found := _REPO.match(said):
        repo, file = found["repo"], found["file"]
        told = describe(HubModel(repo) if file else hub_model(repo), file)
    else:
        raise MissingError(
            f"{said} is neither a file or folder of this machine nor a model's name on the hub, such as "
            "Qwen/Qwen3-0.6B-GGUF. Check how it is spelled."
        )
    return _once(told, catalogue)


def chosen(said: str, catalogue: Catalogue) -> str:
    """The name of the model that a flag says. A file or folder joins the user's models.yaml if it is not there; what is
    neither that nor in the catalogue stays as it is. Raises a ModelError."""
    path = None if said in catalogue.models else _path(said)
    if path is None:
        return said
    return _once(_local(path), catalogue)[0]


def _once(told: Described, catalogue: Catalogue) -> tuple[str, bool]:
    known = catalogue.name_of(told.entry.source)
    return known or add_described(told, catalogue), not known


def _path(said: str) -> Path | None:
    """The file or folder that is meant; None for a name on the hub."""
    with suppress(OSError, RuntimeError, ValueError):
        dropped, path = models_dir() / said, Path(said).expanduser()
        if "/" not in said and "\\" not in said and dropped.is_file():
            return dropped
        if path.exists():
            return path.absolute()
        if path.is_absolute() or said.startswith(("~", ".")):
            raise MissingError(f"There is no file or folder {said} on this machine. Check the path.")
    return None


def _local(path: Path) -> Described:
    return _folder(path) if path.is_dir() else _file(path)


def _file(path: Path) -> Described:
    if path.suffix.lower() != ".gguf":
        raise UnsupportedError(f"{path.name} is no GGUF file. Choose a .gguf file, or the folder of a model.")
    head, first = read_head(path), shards(path)[0]
    return of_head(first.name, head).at(gguf={"path": str(first)})


def _folder(path: Path) -> Described:
    if not (path / "config.json").is_file():
        files = {shards(file)[0] for file in path.glob("*.gguf")}
        if len(files) == 1:
            return replace(_file(files.pop()), name=path.name)
        raise MissingError(
            f"{path} is no model's folder: it has no config.json. Give one with safetensors, or a GGUF file."
        )
    if not any(path.glob("*.safetensors")):
        raise MissingError(f"{path} has no safetensors. Only weights in that form, or GGUF files, are read.")
    try:
        config = (path / "config.json").read_bytes()
    except OSError as error:
        raise BrokenFileError(f"{path / 'config.json'} cannot be read ({error.strerror}).") from error
    return of_config(path.name, config).at(folder={"path": str(path)})
