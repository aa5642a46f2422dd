"""Add a model that the user names: a hub repository, a file in one, a folder, a GGUF file; edit the user's models.yaml.
A model is checked before it is written, and refused with the reason."""

import json
import math
import os
import re
import textwrap
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from hierchat.config import config_dir, models_dir, shipped
from hierchat.models.architectures import model_config
from hierchat.models.architectures.families import EMBEDDING, HEAD, LAYER_EMBEDDING
from hierchat.models.catalogue import Catalogue, Gguf, ModelEntry, models_of, read_catalogue
from hierchat.models.device_memory import best_device
from hierchat.models.fetch.hub import HubFile, HubModel, fetch_beginning, hub_model
from hierchat.models.formats.gguf_config import gguf_config
from hierchat.models.formats.gguf_head import Head, Tensor, read_head, shards, without_number
from hierchat.models.load.check import by_engine, remote_head, require_runnable_head
from hierchat.models.progress import NONSENSE, BrokenFileError, CatalogueError, MissingError, UnsupportedError
from hierchat.models.runnable import ComputePath, gguf_step, refused, step, unsupported

# What models.yaml shall say of a model, out of its config.json or the head of its GGUF file.

CONTEXT = 8192
"""Maximum context length that an added model gets; the user can raise it in models.yaml."""
_JSON = 16 << 20
"""Maximum size of a configuration on the hub, in bytes."""
_EMBEDDINGS = (EMBEDDING.gguf, HEAD.gguf, LAYER_EMBEDDING.gguf)


@dataclass(frozen=True, slots=True)
class Described:
    """Description of a model to add. `fields`: for models.yaml; `step`: computes it; `weights`: bytes, if known."""

    name: str
    fields: Mapping[str, Any]
    step: ComputePath
    weights: int | None = None

    @property
    def entry(self) -> ModelEntry:
        """Return the model's entry as an empty catalogue would have it."""
        none = Catalogue(models={}, default="")
        return ModelEntry.model_validate({"name": free_name(without_number(self.name), none), **self.fields})


def add_described(described: Described, catalogue: Catalogue) -> str:
    """Write a model into the user's models.yaml and return its name there. Raises CatalogueError."""
    name = free_name(without_number(described.name), catalogue)
    add_model(name, described.fields)
    return name


def of_head(name: str, head: Head) -> Described:
    """Describe a GGUF file by its head. Raises UnsupportedError if it cannot run here, or BrokenFileError."""
    entry = ModelEntry.model_validate({"name": "it", "source": {"gguf": {"path": name}}})
    device = best_device()
    try:
        require_runnable_head(entry.model_copy(update={"name": name}), head, device)
        config = gguf_config(head)
        computed = gguf_step(head, own=by_engine(entry, device, None), device=device)
        whole = head.parameters
        embeddings = _numbers(tensor for tensor in head.tensors if tensor.name in _EMBEDDINGS)
        size = {"parameters": whole, "embeddings": embeddings, "slot": _slot(config), **_active(head)}
        fields = {**_context(config), **({"size": size} if whole else {}), **_kind(config)}
        if isinstance(licence := head.values.get("general.license"), str) and licence:
            fields["licence"] = licence[:60]
    except NONSENSE as error:
        raise BrokenFileError(f"{name} does not say what model it is. Choose another file.") from error
    return Described(name, fields, computed, sum(tensor.size for tensor in head.tensors) or None)


def of_config(name: str, text: str | bytes, parameters: int | None = None) -> Described:
    """Describe safetensors with a config.json of this text, packed to blocks if our own engine can compute it.
    `parameters`: if known. Raises UnsupportedError, BrokenFileError."""
    try:
        config = json.loads(text)
        model_config.require_plausible(config)
        own, through = unsupported(config), refused(config)
        on_cpu = best_device().startswith("cpu")
        computed = step(config, own=on_cpu)
        size = {"size": _size(config, parameters)} if parameters else {}
        fields = {**_context(config), **({"blocks": 8} if not own else {}), **size, **_kind(config)}
    except NONSENSE as error:
        raise BrokenFileError(
            f"The config.json of {name} does not say what model it is. Choose another model."
        ) from error
    if through and (own or not on_cpu):
        kind = config.get("model_type")
        raise UnsupportedError(f"{name} cannot run here. It is a model of the kind {kind}, and {through}.")
    return Described(name, fields, computed)


def _size(config: Mapping[str, Any], parameters: int) -> dict[str, int]:
    text = config.get("text_config") or config
    tied = text.get("tie_word_embeddings", config.get("tie_word_embeddings", False))
    rows = _number(text.get("vocab_size")) * _number(text.get("hidden_size"))
    experts, active = model_config.experts_of(text)
    width = _number(text.get("moe_intermediate_size") or text.get("intermediate_size"))
    layers = _number(text.get("num_hidden_layers"))
    asleep = 3 * _number(text.get("hidden_size")) * width * layers * max(experts - active, 0)
    woken = {"active": parameters - asleep} if active and 0 < asleep < parameters else {}
    embeddings = min(rows if tied else 2 * rows, parameters)
    return {"parameters": parameters, "embeddings": embeddings, "slot": _slot(text), **woken}


def _number(told: Any) -> int:
    return told if isinstance(told, int) and told > 0 else 0


def _numbers(tensors: Iterable[Tensor]) -> int:
    return sum(math.prod(tensor.shape) for tensor in tensors)


def _active(head: Head) -> dict[str, int]:
    """Return the parameters that a token uses, if only some experts are active or layers have inputs of their own."""
    experts, active = (int(head.of_architecture(f"expert_{key}") or 0) for key in ("count", "used_count"))
    several = _numbers(tensor for tensor in head.tensors if "_exps." in tensor.name)
    asleep = several * (experts - active) // experts if 0 < active < experts else 0
    # A token uses one row of the inputs of layers
    looked_up = _numbers(tensor for tensor in head.tensors if tensor.name == LAYER_EMBEDDING.gguf)
    found = {"active": head.parameters - asleep - looked_up, "looked_up": looked_up}
    return {key: number for key, number in found.items() if number} if asleep or looked_up else {}


def _context(config: Mapping[str, Any]) -> dict[str, int]:
    positions = (config.get("text_config") or config).get("max_position_embeddings")
    if isinstance(positions, int) and positions >= 16:
        return {"context_length": min(CONTEXT, positions)}
    return {"context_length": CONTEXT}


def _slot(config: Mapping[str, Any]) -> int:
    with suppress(*NONSENSE):
        return model_config.slot_size(config)
    return 0


def _kind(config: Mapping[str, Any]) -> dict[str, str]:
    return {"kind": str(config["model_type"])} if config.get("model_type") else {}


# Descriptions of models on the hub, from config.json or the head of a GGUF file, before any weights are fetched.
SAFETENSORS = ""
"""Stands for all safetensors in place of a file's name."""
_LIKED = ("q4_k_m", "q4_k_s", "q4_0", "q5_k_m", "q8_0")


def describe(model: HubModel, file: str | None = None) -> Described:
    """Describe the model in one of its files; in the best one, if none is named. Raises a ModelError."""
    file = best(model) if file is None else file
    if file == SAFETENSORS:
        if not model.safetensors:
            said = "has no safetensors beside a config.json. Choose another model."
            raise UnsupportedError(f"{model.repo} {said}")
        config = fetch_beginning(model.repo, "main", "config.json", _JSON)
        told = of_config(model.repo, config, None if model.packed else model.parameters)
        return _on_hub(told, model, model.repo.split("/")[1], {"hub": {"repo": model.repo}})
    if not file.endswith(".gguf") or (model.files and file not in {one.name for one in model.files}):
        raise MissingError(f"{model.repo} has no file {file}. Choose another one.")
    told = of_head(file, remote_head(Gguf(repo=model.repo, file=file)))
    return _on_hub(told, model, Path(file).name, {"gguf": {"repo": model.repo, "file": file}})


def _on_hub(told: Described, model: HubModel, name: str, source: Mapping[str, Any]) -> Described:
    licence = {"licence": model.licence} if model.licence else {}
    return replace(told, name=name, fields={"source": source, **licence, **told.fields})


def best(model: HubModel) -> str:
    """Return the file of a repository to use, or SAFETENSORS. Raises UnsupportedError if it has neither."""
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
    """List files that can be fetched: all safetensors under an empty name, then GGUF files, the smaller first."""
    several = model.safetensors
    sizes = [file.size for file in several if file.size is not None]
    whole = [HubFile(SAFETENSORS, sum(sizes) if len(sizes) == len(several) else None)] if several else []
    return [*whole, *sorted(model.gguf, key=lambda file: (file.size or 0, file.name))]


_REPO = re.compile(
    r"^(?:(?:https?://)?(?:huggingface\.co|hf\.co)/)?(?P<repo>[\w.-]+/[\w.-]+?)/?"
    r"(?:/(?:(?:blob|resolve)/[\w.-]+/)?(?P<file>[^?]+\.gguf))?(?:\?.*)?$",
    re.IGNORECASE,
)


def add(said: str, catalogue: Catalogue) -> tuple[str, bool]:
    """Add the model that `said` names to the user's models.yaml; return name, and whether new. Raises ModelError."""
    said = said.strip().strip("\"'")
    if not said:
        raise MissingError("Type the name of a model on the hub, or the path of a folder or of a GGUF file.")
    if path := _path(said):
        told = _folder(path) if path.is_dir() else _file(path)
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
    """Return the name of the model of a flag; a file or folder is added to models.yaml. Raises ModelError."""
    path = None if said in catalogue.models else _path(said)
    if path is None:
        return said
    return _once(_folder(path) if path.is_dir() else _file(path), catalogue)[0]


def _once(told: Described, catalogue: Catalogue) -> tuple[str, bool]:
    known = catalogue.name_of(told.entry.source)
    return known or add_described(told, catalogue), not known


def _path(said: str) -> Path | None:
    with suppress(OSError, RuntimeError, ValueError):
        dropped, path = models_dir() / said, Path(said).expanduser()
        if "/" not in said and "\\" not in said and dropped.is_file():
            return dropped
        if path.exists():
            return path.absolute()
        if path.is_absolute() or said.startswith(("~", ".")):
            raise MissingError(f"There is no file or folder {said} on this machine. Check the path.")
    return None


def _file(path: Path) -> Described:
    if path.suffix.lower() != ".gguf":
        raise UnsupportedError(f"{path.name} is no GGUF file. Choose a .gguf file, or the folder of a model.")
    head, first = read_head(path), shards(path)[0]
    told = of_head(first.name, head)
    return replace(told, fields={"source": {"gguf": {"path": str(first)}}, **told.fields})


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
    told = of_config(path.name, config)
    return replace(told, fields={"source": {"folder": {"path": str(path)}}, **told.fields})


# The user's own models.yaml
def own_file() -> Path:
    """Return the path of the user's models.yaml; it need not be there."""
    return config_dir() / "models.yaml"


def own_names() -> set[str]:
    """Return the names of models that the user's models.yaml adds. Raises CatalogueError."""
    if not own_file().exists():
        return set()
    return models_of(own_file()).keys() - models_of(shipped("models.yaml")).keys()


def free_name(wanted: str, catalogue: Catalogue) -> str:
    """Return an unused name for a model, made from the name of a file or repository."""
    stem = re.sub(r"[^\w.-]+", "-", re.sub(r"\.gguf$", "", wanted, flags=re.IGNORECASE).lower()).strip("-.")
    base = stem or "model"
    taken = {name.lower() for name in catalogue.models}
    return next(
        name for n in range(1, len(taken) + 2) if (name := f"{base}-{n}" if n > 1 else base) not in taken
    )


def add_model(name: str, fields: Mapping[str, Any]) -> None:
    """Append a model to the user's models.yaml. Raises CatalogueError if the result is wrong or cannot be written."""
    text = own_file().read_text(encoding="utf-8") if own_file().exists() else ""
    models = models_of(own_file()) if text.strip() else {}
    entry = yaml.safe_dump({name: dict(fields)}, sort_keys=False, allow_unicode=True)
    if not models:
        text = re.sub(r"(?m)^models:.*\n?", "", text)
    if text and not text.endswith("\n"):
        text += "\n"
    # As far from the left as other models
    first = models and re.search(rf"(?m)^( *)[\"']?{re.escape(next(iter(models)))}[\"']?\s*:", text)
    _write_own(text + ("" if models else "models:\n") + textwrap.indent(entry, first[1] if first else "  "))


def remove_model(name: str) -> None:
    """Remove a model from the user's models.yaml. Raises CatalogueError if it shares a line with others, or the file
    cannot be written."""
    text = own_file().read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    document: Any = yaml.compose(text)
    top, models = next((key, value) for key, value in document.value if key.value == "models")
    begins = {key.value: key.start_mark.line for key, _ in models.value}
    begin = begins[name]
    if len(set(begins.values())) < len(begins) or begin == top.start_mark.line:
        raise CatalogueError(
            f"{own_file()}:{begin + 1}: {name} stands on one line with others. Remove it there by hand."
        )
    end = min((line for line in begins.values() if line > begin), default=len(lines))
    while end > begin + 1 and lines[end - 1].lstrip().startswith("#"):
        end -= 1  # a comment belongs to the entry that follows it
    del lines[begin:end]
    if len(begins) == 1:
        del lines[top.start_mark.line]
    _write_own("".join(lines))


def _write_own(text: str) -> None:
    file = own_file()
    part = file.with_suffix(".part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8")
        read_catalogue([shipped("models.yaml"), part])
        os.replace(part, file)
    except OSError as error:
        raise CatalogueError(f"{file} cannot be written ({error.strerror}). Make it writable.") from error
    except CatalogueError as error:
        raise CatalogueError(
            f"{file} was left as it is. {str(error).replace(str(part), file.name)}"
        ) from error
    finally:
        part.unlink(missing_ok=True)
