"""What the hub tells of its models: those that a search finds, and the files of one. Nothing of them is fetched.

The hub library's own search waits without end where the hub is slow, and asks again by itself where the hub has had
enough; so the same questions are asked here, each once and for a while. What is answered may be anything.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import requests

from hierchat.models.architectures.through_transformers import MADE_FOR_ELSE
from hierchat.models.fetch.hub import TOO_MANY, authorisation, endpoint, offline_mode, read
from hierchat.models.formats.gguf_head import whole_models
from hierchat.models.progress import FetchError, GatedError, MissingError, OfflineError

MOST_FOUND = 20
"""Models that a search lists."""
MOST_WORDS = 200
"""Characters of a search."""
_TOLD = ("author", "config", "downloads", "gated", "gguf", "pipeline_tag", "safetensors", "siblings", "tags")
_MOST_BYTES = 16 << 20
_TIMEOUT, _SECONDS = 15.0, 30.0
"""Until something comes, and until all has come."""
_REPO = re.compile(r"^[\w.-]{1,96}/[\w.-]{1,96}$")
_PLAIN = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2}
_PACKED = {"I64": 8, "I32": 4, "I16": 2}
"""Bytes of a number in safetensors; of any other type, one."""
_CHATS = ("text-generation", "image-text-to-text", "any-to-any", "conversational")
"""What the hub says that models do which answer in words."""
_FOREIGN = "What answers at {endpoint} does not speak as a hub does. Check HF_ENDPOINT."


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository. `size`: bytes, None where that is not told."""

    name: str
    size: int | None = None


@dataclass(frozen=True, slots=True)
class HubModel:
    """A repository. What the hub does not tell is None, or empty."""

    repo: str
    downloads: int | None = None
    licence: str = ""
    parameters: int | None = None
    packed: bool = False
    """Whether some of its safetensors are packed, so that `parameters` counts other things, too."""
    size: int | None = None
    """Bytes of its safetensors."""
    gated: bool = False
    kind: str = ""
    """As its config.json, or its GGUF files, call it."""
    task: str = ""
    """What it is made for, as the hub says."""
    tags: tuple[str, ...] = ()
    files: tuple[HubFile, ...] = ()

    @property
    def gguf(self) -> list[HubFile]:
        """Whole models: of one in several files the first, with the size of all. None is for pictures alone."""
        sizes = {file.name: file.size for file in self.files if file.name.endswith(".gguf")}
        found = []
        for name, parts in whole_models(sizes):
            if "mmproj" not in name.lower():
                known = [size for part in parts if (size := sizes[part]) is not None]
                found.append(HubFile(name, sum(known) if len(known) == len(parts) else None))
        return found

    @property
    def safetensors(self) -> list[HubFile]:
        """Its weights in that form, where they are a model's: empty without a config.json."""
        if not any(file.name == "config.json" for file in self.files):
            return []
        return [file for file in self.files if re.fullmatch(r"[^/]+\.safetensors", file.name)]

    @property
    def not_for_chat(self) -> str:
        """Why it is not to chat with, as a part of a sentence; empty where nothing speaks against it."""
        if reason := MADE_FOR_ELSE.get(self.kind):
            return reason
        if self.task and self.task not in _CHATS:
            return f"it is made for {self.task.replace('-', ' ')}"
        if any(file.name == "adapter_config.json" for file in self.files):
            return "it is an addition to another model"
        if self.files and not self.gguf and not self.safetensors:
            return "it has neither safetensors nor a GGUF file"
        return "its weights are packed for Apple's MLX" if "mlx" in self.tags and not self.gguf else ""


def search(words: str) -> list[HubModel]:
    """Models whose names hold these words, most downloaded first. Raises OfflineError, FetchError, MissingError."""
    if not (words := " ".join(words.split())[:MOST_WORDS]):
        raise MissingError("Type what the model's name holds, such as qwen3 gguf.")
    asked = {"search": words, "sort": "downloads", "limit": MOST_FOUND, "expand": list(_TOLD)}
    told = _ask("/api/models", asked, "the search")
    if not isinstance(told, list):
        raise FetchError(_FOREIGN.format(endpoint=endpoint()))
    found = [model for one in told[:MOST_FOUND] if (model := _model(one))]
    return sorted(found, key=lambda model: -(model.downloads or 0))


def hub_model(repo: str) -> HubModel:
    """One repository, with the sizes of its files. Raises MissingError, GatedError, OfflineError, FetchError."""
    if not _REPO.match(repo):
        raise _missing(repo)
    model = _model(_ask(f"/api/models/{repo}", {"blobs": True}, repo))
    if model is None:
        raise FetchError(_FOREIGN.format(endpoint=endpoint()))
    return model


def _ask(path: str, asked: Mapping[str, Any], about: str) -> Any:
    """What the hub answers. `about`: the repository that is asked for, or "the search"."""
    if offline_mode():
        raise OfflineError("HF_HUB_OFFLINE is set, so nothing is asked of the hub. Unset it to search there.")
    try:
        with requests.get(
            endpoint() + path, asked, headers=authorisation(), timeout=_TIMEOUT, stream=True
        ) as answer:
            _require_answered(answer, about)
            return json.loads(read(answer, _MOST_BYTES, _SECONDS))
    except requests.Timeout as error:
        raise OfflineError(
            f"The hub at {endpoint()} is too slow: it did not answer in time. Try again later."
        ) from error
    except (requests.ConnectionError, requests.exceptions.ChunkedEncodingError) as error:
        raise OfflineError(
            f"The hub cannot be reached at {endpoint()}. Connect to the network and try again."
        ) from error
    except (requests.RequestException, OSError, ValueError, RecursionError) as error:
        raise FetchError(_FOREIGN.format(endpoint=endpoint())) from error


def _require_answered(answer: requests.Response, about: str) -> None:
    code = answer.headers.get("X-Error-Code", "")
    if answer.status_code == TOO_MANY:
        raise OfflineError(
            "The hub has had too many questions from here. Wait some minutes; who has logged in with `hf auth login` "
            "may ask more."
        )
    if code == "GatedRepo":
        raise GatedError(
            f"{about} is gated. Accept its licence at {endpoint()}/{about}, then log in with `hf auth login`."
        )
    if answer.status_code in (401, 403, 404) and "/" in about:
        raise _missing(about)
    if answer.status_code in (401, 403):
        raise FetchError(
            f"The hub refused the search ({answer.status_code}). Log in again with `hf auth login`."
        )
    if not answer.ok:
        raise OfflineError(f"The hub answered {answer.status_code} for {about}. Try again later.")


def _missing(repo: str) -> MissingError:
    return MissingError(
        f"There is no public repository {repo} on the hub. Check its name at {endpoint()}/{repo}; "
        "if it is private, log in with `hf auth login`."
    )


def _model(told: Any) -> HubModel | None:
    """One model as the hub tells it; None for what cannot be one. Whatever stands in its fields, nothing is raised."""
    told = _mapping(told)
    repo = told.get("id") or told.get("modelId")
    if not isinstance(repo, str) or not _REPO.match(repo):
        return None
    tensors, gguf, config = (_mapping(told.get(key)) for key in ("safetensors", "gguf", "config"))
    types = {str(kind): _count(count) or 0 for kind, count in _mapping(tensors.get("parameters")).items()}
    tags = tuple(tag for tag in _listed(told.get("tags")) if isinstance(tag, str))
    files = [_mapping(one) for one in _listed(told.get("siblings"))]
    return HubModel(
        repo,
        _count(told.get("downloads")),
        next((_text(tag.removeprefix("license:")) for tag in tags if tag.startswith("license:")), ""),
        _count(tensors.get("total")) or _count(gguf.get("total")),
        packed=bool(set(types) - set(_PLAIN)),
        size=sum(count * (_PLAIN | _PACKED).get(kind, 1) for kind, count in types.items()) or None,
        gated=bool(told.get("gated")),
        kind=_text(config.get("model_type") or gguf.get("architecture")),
        task=_text(told.get("pipeline_tag")),
        tags=tags,
        files=tuple(
            HubFile(name, _count(file.get("size")))
            for file in files
            if isinstance(name := file.get("rfilename"), str)
        ),
    )


def _mapping(told: Any) -> Mapping[str, Any]:
    return told if isinstance(told, dict) else {}


def _listed(told: Any) -> list[Any]:
    return told if isinstance(told, list) else []


def _text(told: Any) -> str:
    """Without what a terminal would obey."""
    return "".join(filter(str.isprintable, told))[:60] if isinstance(told, str) else ""


def _count(told: Any) -> int | None:
    return told if isinstance(told, int) and not isinstance(told, bool) and 0 <= told < 1 << 60 else None
