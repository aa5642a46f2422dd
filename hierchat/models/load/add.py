"""A model out of what the user names: a repository of the hub, a file in one, a folder, a GGUF file. It is looked at
before it is written into the user's models.yaml, and refused with the reason where it cannot run."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hierchat.config import models_dir
from hierchat.models.architectures.sizes import experts_of, slot_size
from hierchat.models.catalogue import Catalogue, Gguf, ModelEntry
from hierchat.models.errors import BrokenFileError, MissingError, UnsupportedError
from hierchat.models.fetch.hub import fetch_hub, list_files
from hierchat.models.formats.gguf_config import gguf_config
from hierchat.models.formats.gguf_head import Head, read_head
from hierchat.models.load.before_fetch import remote_head
from hierchat.models.load.check import require_runnable_head
from hierchat.models.memory import best_device
from hierchat.models.own import add_model, free_name
from hierchat.models.runnable import refused, unsupported

CONTEXT = 8192
"""Positions that an added model gets at most; models.yaml may say more."""
_REPO = re.compile(
    r"^(?:(?:https?://)?(?:huggingface\.co|hf\.co)/)?(?P<repo>[\w.-]+/[\w.-]+?)/?"
    r"(?:/(?:(?:blob|resolve)/[\w.-]+/)?(?P<file>[^?]+\.gguf))?(?:\?.*)?$",
    re.IGNORECASE,
)
_LIKED = ("q4_k_m", "q4_k_s", "q4_0", "q5_k_m", "q8_0")
_PART = re.compile(r"-\d{5}-of-\d{5}\.gguf$", re.IGNORECASE)


def add(said: str, catalogue: Catalogue) -> str:
    """Add the model that `said` names to the user's models.yaml; its name there. Raises a ModelError."""
    said = said.strip().strip("\"'")
    if not said:
        raise MissingError("Type the name of a model on the hub, or the path of a folder or of a GGUF file.")
    path = _path(said)
    if path is not None and path.is_dir():
        wanted, fields = path.name, _folder(path)
    elif path is not None:
        wanted, fields = path.name, _file(path)
    elif found := _REPO.match(said):
        wanted, fields = _hub(found["repo"], found["file"])
    else:
        raise MissingError(
            f"{said} is neither a file or folder of this machine nor a model's name on the hub, such as "
            "Qwen/Qwen3-0.6B-GGUF. Check how it is spelled."
        )
    name = free_name(wanted, catalogue)
    add_model(name, fields)
    return name


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


def _file(path: Path) -> dict[str, Any]:
    if path.suffix.lower() != ".gguf":
        raise UnsupportedError(f"{path.name} is no GGUF file. Choose a .gguf file, or the folder of a model.")
    return {"source": {"gguf": {"path": str(path)}}, **_of_head(path.name, read_head(path))}


def _folder(path: Path) -> dict[str, Any]:
    if not (path / "config.json").is_file():
        files = sorted(path.glob("*.gguf"))
        if len(files) == 1:
            return _file(files[0])
        raise MissingError(
            f"{path} is no model's folder: it has no config.json. Give one with safetensors, or a GGUF file."
        )
    if not any(path.glob("*.safetensors")):
        raise MissingError(f"{path} has no safetensors. Only weights in that form, or GGUF files, are read.")
    return {"source": {"folder": {"path": str(path)}}, **_of_config(path.name, path / "config.json")}


def _hub(repo: str, file: str | None) -> tuple[str, dict[str, Any]]:
    if not file:
        files = list_files(repo)
        if "config.json" in files and any(name.endswith(".safetensors") for name in files):
            folder = fetch_hub(repo, "main", lambda progress: None, ["config.json"])
            fields = {"source": {"hub": {"repo": repo}}, **_of_config(repo, folder / "config.json")}
            return repo.split("/")[1], fields
        file = _best(files, repo)
    head = remote_head(Gguf(repo=repo, file=file))
    fields = {"source": {"gguf": {"repo": repo, "file": file}}, **_of_head(file, head)}
    return Path(file).name, fields


def _best(files: list[str], repo: str) -> str:
    """The file to take where several are offered."""
    whole = [name for name in files if name.lower().endswith(".gguf") and not _PART.search(name)]
    whole = [name for name in whole if "mmproj" not in name.lower()]
    if not whole:
        raise UnsupportedError(
            f"{repo} has neither safetensors nor a GGUF file in one piece. Choose another model."
        )
    for kind in _LIKED:
        if found := [name for name in whole if kind in name.lower().replace("-", "_")]:
            return found[0]
    return whole[0]


def _of_head(name: str, head: Head) -> dict[str, Any]:
    """What models.yaml shall say of a GGUF file. Raises UnsupportedError."""
    entry = ModelEntry.model_validate({"name": "it", "source": {"gguf": {"path": name}}})
    try:
        require_runnable_head(entry.model_copy(update={"name": name}), head, best_device())
    except (KeyError, TypeError, ZeroDivisionError) as error:
        raise BrokenFileError(f"{name} does not say what model it is. Choose another file.") from error
    config = gguf_config(head)
    embeddings = [tensor for tensor in head.tensors if tensor.name in ("token_embd.weight", "output.weight")]
    inner = [tensor for tensor in head.tensors if tensor not in embeddings]
    whole = head.parameters
    rest = Head({}, tuple(inner)).parameters
    counted = {"parameters": whole, "embeddings": whole - rest, "slot": _slot(config)}
    size = {"size": counted | _active(head, config)} if whole else {}
    kind = {"kind": str(config["model_type"])} if config.get("model_type") else {}
    return {**_context(config), **size, **_licence(head.values), **kind}


def _active(head: Head, config: Mapping[str, Any]) -> dict[str, int]:
    """How many parameters a token uses, where only some of several experts are woken."""
    experts, active = experts_of(config)
    several = [tensor for tensor in head.tensors if "_exps." in tensor.name]
    if not several or not 0 < active < experts:
        return {}
    asleep = Head({}, tuple(several)).parameters * (experts - active) // experts
    return {"active": head.parameters - asleep}


def _of_config(name: str, file: Path) -> dict[str, Any]:
    """The same of a folder of safetensors: packed to blocks where our own engine can compute it."""
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
        own = unsupported(config)
        through = refused(config)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise BrokenFileError(f"The config.json of {name} does not say what model it is.") from error
    on_cpu = best_device().startswith("cpu")
    if through and (own or not on_cpu):
        kind = config.get("model_type")
        raise UnsupportedError(f"{name} cannot run here. It is a model of the kind {kind}, and {through}.")
    kind = {"kind": str(config["model_type"])} if config.get("model_type") else {}
    return {**_context(config), **({"blocks": 8} if not own else {}), **kind}


def _context(config: Mapping[str, Any]) -> dict[str, int]:
    positions = (config.get("text_config") or config).get("max_position_embeddings")
    return {
        "context_length": min(CONTEXT, positions)
        if isinstance(positions, int) and positions >= 16
        else CONTEXT
    }


def _slot(config: Mapping[str, Any]) -> int:
    try:
        return slot_size(config)
    except (KeyError, TypeError, ZeroDivisionError):
        return 0


def _licence(values: Mapping[str, Any]) -> dict[str, str]:
    licence = values.get("general.license")
    return {"licence": licence[:60]} if isinstance(licence, str) and licence else {}
