"""Fetch models out of hub repositories into our own cache, and find them there.
Complete files are used without the network, so a branch stays at the commit that was fetched first."""

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import requests

from hierchat.config import cache_dir
from hierchat.language import later
from hierchat.models import cache
from hierchat.models.formats.gguf_head import whole_models
from hierchat.models.progress import (
    BrokenFileError,
    FetchError,
    GatedError,
    MissingError,
    OfflineError,
    Progress,
    Report,
    bar_class,
    silent,
)
from hierchat.models.runnable import MADE_FOR_ELSE

FOLDER_FILES = ("*.safetensors", "*.json", "*.jinja", "tokenizer*", "*.model", "merges.txt", "vocab.txt")
OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


def hub_folder(repo: str, revision: str, patterns: Sequence[str] = FOLDER_FILES) -> Path | None:
    """Return the folder of the repository's files in the cache; None if some are missing. Never uses the network."""
    from huggingface_hub.errors import LocalEntryNotFoundError

    if not repo_folder(repo).is_dir():
        return None  # at once: the library takes a millisecond to say so, and there are dozens of models
    try:
        found = _snapshot(repo, revision, patterns)(local_files_only=True)
    except LocalEntryNotFoundError:
        return None
    # The library does not notice a partial folder whose list of files is lost, so look for the files themselves.
    return Path(found) if _holds(Path(found), patterns) else None


def fetch_hub(repo: str, revision: str, report: Report, patterns: Sequence[str] = FOLDER_FILES) -> Path:
    """Return the folder with the repository's files. Download missing ones, and check the SHA-256 of large ones.
    Raises GatedError, MissingError, OfflineError, BrokenFileError, or ModelError where the disk is full."""
    if found := hub_folder(repo, revision, patterns):
        return found
    if offline_mode():
        raise _offline(repo)
    try:
        requests.head(endpoint(), timeout=_TIMEOUT)  # the hub library would try for half a minute first
    except requests.RequestException as error:
        raise _offline(repo) from error
    lock = _hub_cache() / repo.replace("/", "--")
    with cache.locked(lock, report, "downloading"), _hub_errors(repo, revision):
        folder = _download(repo, revision, report, patterns)
    if not _holds(folder, patterns):
        lacking = [name for name in patterns if not (folder / name).is_file()]
        raise MissingError(f"{repo} at {revision} has none of {', '.join(lacking)}.")
    return folder


def _download(repo: str, revision: str, report: Report, patterns: Sequence[str]) -> Path:
    download = partial(_snapshot(repo, revision, patterns), endpoint=endpoint())
    mute = bar_class(silent, "downloading", repo)
    report(Progress("downloading", 0, None, f"{repo} from the hub"))
    planned = [file for file in download(dry_run=True, tqdm_class=mute) if file.will_download]
    total = sum(file.file_size or 0 for file in planned)
    cache.require_space(total)
    folder = Path(download(tqdm_class=bar_class(report, "downloading", repo, unit="B", total=total)))
    altered = [file.filename for file in planned if _is_altered(folder / file.filename)]
    for name in altered:
        (folder / name).resolve().unlink()
        (folder / name).unlink(missing_ok=True)
    if altered:
        raise BrokenFileError(f"{altered[0]} of {repo} came altered. Try again.")
    return folder


def _snapshot(repo: str, revision: str, patterns: Sequence[str]) -> Callable[..., Any]:
    from huggingface_hub import snapshot_download

    # Subfolders of a model contain its weights in other forms, such as onnx/ and meta-llama's original/
    whole = any("/" in pattern for pattern in patterns)
    return partial(
        snapshot_download,
        repo,
        revision=revision,
        cache_dir=_hub_cache(),
        allow_patterns=list(patterns),
        ignore_patterns=[] if whole else ["*/*"],
    )


def repo_folder(repo: str) -> Path:
    """Return the cache folder of a model's repository; it may be missing."""
    return _hub_cache() / f"models--{repo.replace('/', '--')}"


def endpoint() -> str:
    """Return the address of the hub from the environment of now; the library reads it once, when it is imported."""
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def offline_mode() -> bool:
    """Return whether an environment variable of the hub library forbids to use the hub."""
    return any(os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE") for name in OFFLINE)


def _hub_cache() -> Path:
    return cache_dir() / "hub"


def _holds(folder: Path, patterns: Sequence[str]) -> bool:
    if not any("*" in pattern for pattern in patterns):
        return all((folder / name).is_file() for name in patterns)
    return any(file.is_file() for pattern in patterns for file in folder.rglob(pattern))


def _is_altered(file: Path) -> bool:
    """Return whether a large file has another SHA-256 than the hub says, which is the name of the file linked to."""
    name = file.resolve().name
    return bool(re.fullmatch("[0-9a-f]{64}", name)) and cache.sha256(file) != name


def _offline(repo: str) -> OfflineError:
    if offline_mode():
        return OfflineError(
            "HF_HUB_OFFLINE is set, so nothing is asked of the hub. Unset it to search or fetch there."
        )
    return OfflineError(
        f"The hub cannot be reached, so {repo} cannot be fetched. Connect to the network and try again; "
        "what has come already is kept."
    )


def _gated(repo: str, how: str = "gated") -> GatedError:
    return GatedError(
        f"{repo} is {how}. Accept its licence at {endpoint()}/{repo}, then log in with `hf auth login`."
    )


def _missing(repo: str) -> MissingError:
    return MissingError(
        f"There is no public repository {repo} on the hub. Check its name at {endpoint()}/{repo}; "
        "if it is private, log in with `hf auth login`."
    )


@contextmanager
def _hub_errors(repo: str, revision: str) -> Iterator[None]:
    """Turn errors of the hub library into ours, whose texts say what to do."""
    from httpx2 import HTTPError
    from huggingface_hub import errors

    try:
        with cache.disk_errors():
            yield
    except (HTTPError, OSError, errors.HFValidationError) as raised:
        # A dry run hides why it failed in its cause.
        error = raised.__cause__ if isinstance(raised, errors.DryRunError) else raised
        if isinstance(error, errors.GatedRepoError):
            said: FetchError = _gated(repo)
        elif isinstance(error, errors.RevisionNotFoundError):
            page = f"{endpoint()}/{repo}/commits/main"
            said = MissingError(f"{repo} has no revision {revision!r}. See {page}.")
        elif isinstance(error, (errors.RepositoryNotFoundError, errors.HFValidationError)):
            said = _missing(repo)
        elif isinstance(error, errors.HfHubHTTPError):
            status = error.response.status_code
            kind_of = OfflineError if status >= 500 else FetchError
            said = kind_of(f"The hub answered {status} for {repo}. Try again later.")
        elif isinstance(error, (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled, HTTPError)):
            said = _offline(repo)
        else:
            said = FetchError(f"{repo} could not be fetched whole: {error} Try again: it resumes.")
        raise said from raised


# Models as the hub describes them. The hub library's own search waits without limit for a slow hub, and repeats
# requests that the hub refused as too many. So the same requests are sent here, once each and with a time limit. An
# answer may contain anything.

MOST_FOUND = 20
"""Maximum number of models that a search lists."""
MOST_WORDS = 200
"""Maximum length of a search, in characters."""
_TOLD = ("author", "config", "downloads", "gated", "gguf", "pipeline_tag", "safetensors", "siblings", "tags")
_MOST_BYTES, _PIECE = 16 << 20, 1 << 16
_TIMEOUT, _SECONDS = 15.0, 30.0
"""Seconds without any data, and until the end of an answer."""
_REPO = re.compile(r"^[\w.-]{1,96}/[\w.-]{1,96}$")
_PLAIN = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2}
_PACKED = {"I64": 8, "I32": 4, "I16": 2}
"""Bytes of a number in safetensors, by type; other types have one byte."""
_CHATS = ("text-generation", "image-text-to-text", "any-to-any", "conversational")
"""Tasks on the hub of models that answer in words."""


@dataclass(frozen=True, slots=True)
class HubFile:
    """File of a repository. `size`: bytes, None if unknown."""

    name: str
    size: int | None = None


@dataclass(frozen=True, slots=True)
class HubModel:
    """Model repository; unknown fields are None or empty. `packed`: some of its safetensors hold packed weights, so
    `parameters` is wrong; `size`: bytes of its safetensors; `kind`: model_type; `task`: as the hub says."""

    repo: str
    downloads: int | None = None
    licence: str = ""
    parameters: int | None = None
    packed: bool = False
    size: int | None = None
    gated: bool = False
    kind: str = ""
    task: str = ""
    tags: tuple[str, ...] = ()
    files: tuple[HubFile, ...] = ()

    @property
    def gguf(self) -> list[HubFile]:
        """Return the GGUF models without parts for pictures; of one in several files its first, with their size."""
        sizes = {file.name: file.size for file in self.files if file.name.endswith(".gguf")}
        found = []
        for name, parts in whole_models(sizes):
            if "mmproj" not in name.lower():
                known = [size for part in parts if (size := sizes[part]) is not None]
                found.append(HubFile(name, sum(known) if len(known) == len(parts) else None))
        return found

    @property
    def safetensors(self) -> list[HubFile]:
        """Return its safetensors; an empty list without a config.json."""
        if not any(file.name == "config.json" for file in self.files):
            return []
        return [file for file in self.files if re.fullmatch(r"[^/]+\.safetensors", file.name)]

    @property
    def not_for_chat(self) -> str:
        """Return why it cannot chat, as part of a sentence; empty if it can as far as the hub says."""
        if reason := MADE_FOR_ELSE.get(self.kind):
            return reason
        if self.task and self.task not in _CHATS:
            return later(f"it is made for {self.task.replace('-', ' ')}")
        if any(file.name == "adapter_config.json" for file in self.files):
            return later("it is an addition to another model")
        if self.files and not self.gguf and not self.safetensors:
            return later("it has neither safetensors nor a GGUF file")
        return later("its weights are packed for Apple's MLX") if "mlx" in self.tags and not self.gguf else ""


def search(words: str) -> list[HubModel]:
    """Find models by words in their names, most downloaded first. Raises OfflineError, FetchError, MissingError."""
    if not (words := " ".join(words.split())[:MOST_WORDS]):
        raise MissingError("Type what the model's name holds, such as qwen3 gguf.")
    asked = {"search": words, "sort": "downloads", "limit": MOST_FOUND, "expand": list(_TOLD)}
    told = _json("/api/models", asked, "the search")
    if not isinstance(told, list):
        raise _foreign()
    found = [model for one in told[:MOST_FOUND] if (model := _model(one))]
    return sorted(found, key=lambda model: -(model.downloads or 0))


def hub_model(repo: str) -> HubModel:
    """Describe a repository, with the sizes of its files. Raises MissingError, GatedError, OfflineError, FetchError."""
    if not _REPO.match(repo):
        raise _missing(repo)
    model = _model(_json(f"/api/models/{repo}", {"blobs": True}, repo))
    if model is None:
        raise _foreign()
    return model


def fetch_beginning(repo: str, revision: str, file: str, size: int) -> bytes:
    """Fetch the first `size` bytes of a file. Raises MissingError, GatedError, OfflineError, FetchError."""
    from huggingface_hub import hf_hub_url

    url = hf_hub_url(repo, file, revision=revision, endpoint=endpoint())
    with _asked(url, repo, first=size, file=f"{file} at {revision}") as answer:
        return _read(answer, size)


def _json(path: str, asked: Mapping[str, Any], about: str) -> Any:
    with _asked(endpoint() + path, about, asked=asked) as answer:
        return json.loads(_read(answer, _MOST_BYTES, _SECONDS))


@contextmanager
def _asked(
    url: str, about: str, *, asked: Mapping[str, Any] | None = None, first: int = 0, file: str = ""
) -> Iterator[requests.Response]:
    """Send a request and yield the hub's answer. `about`: repository, or "the search"; `first`: number of bytes of
    `file` to get."""
    from huggingface_hub import get_token

    if offline_mode():
        raise _offline(about)
    token = get_token()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    if first:
        headers["Range"] = f"bytes=0-{first - 1}"
    try:
        with requests.get(url, asked, headers=headers, timeout=_TIMEOUT, stream=True) as answer:
            _require_answered(answer, about, file)
            yield answer
    except (requests.Timeout, requests.ConnectionError, requests.exceptions.ChunkedEncodingError) as error:
        raise OfflineError(
            f"The hub cannot be reached at {endpoint()}. Connect to the network and try again."
        ) from error
    except (requests.RequestException, OSError, ValueError, RecursionError) as error:
        raise _foreign() from error


def _read(answer: requests.Response, most: int, seconds: float | None = None) -> bytes:
    """Read at most `most` bytes of an answer. Raises RequestException if it breaks off or takes more than `seconds`."""
    began, data = time.monotonic(), bytearray()
    for piece in answer.iter_content(_PIECE):
        data += piece
        if len(data) >= most:
            break
        if seconds and time.monotonic() - began > seconds:
            raise requests.Timeout
    return bytes(data[:most])


def _require_answered(answer: requests.Response, about: str, file: str) -> None:
    status = answer.status_code
    if status == 429:
        raise OfflineError(
            "The hub has had too many questions from here. Wait some minutes; who has logged in with `hf auth login` "
            "may ask more."
        )
    if file and status in (401, 403):
        raise _gated(about, how="gated or private")
    if answer.headers.get("X-Error-Code") == "GatedRepo":
        raise _gated(about)
    if file and 400 <= status < 500:
        raise MissingError(f"{about} has no file {file}. Check the name.")
    if status in (401, 403, 404) and "/" in about:
        raise _missing(about)
    if not answer.ok:
        raise OfflineError(f"The hub answered {status} for {about}. Try again later.")


def _foreign() -> FetchError:
    return FetchError(f"What answers at {endpoint()} does not speak as a hub does. Check HF_ENDPOINT.")


def _model(told: Any) -> HubModel | None:
    """Read the hub's description of a model; None if it is none. Raises nothing, whatever its fields contain."""
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
    """Return a text without control characters, cut to 60 characters."""
    return "".join(filter(str.isprintable, told))[:60] if isinstance(told, str) else ""


def _count(told: Any) -> int | None:
    return told if isinstance(told, int) and not isinstance(told, bool) and 0 <= told < 1 << 60 else None
