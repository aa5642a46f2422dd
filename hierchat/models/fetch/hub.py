"""Models and datasets out of hub repositories, into hierchat's own cache.

What is there whole is used without asking the network, so a branch name such as `main` stays at the commit
that was fetched first. huggingface_hub resumes interrupted files; their SHA-256 is checked here.
"""

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import requests

from hierchat.config import cache_dir
from hierchat.models import cache
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

RepoKind = Literal["model", "dataset"]
FOLDER_FILES = ("*.safetensors", "*.json", "*.jinja", "tokenizer*", "*.model", "merges.txt", "vocab.txt")
OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_PIECE = 1 << 16
_TRUE = ("1", "ON", "YES", "TRUE")
TOO_MANY = 429
"""The status of an answer to somebody who asks too often."""
_PASSED_OVER: dict[RepoKind, tuple[str, ...]] = {
    "model": ("*/*",),  # e.g. meta-llama's original/, onnx/: the same weights again in other forms
    "dataset": (),
}


def hub_folder(
    repo: str, revision: str, patterns: Sequence[str] = FOLDER_FILES, kind: RepoKind = "model"
) -> Path | None:
    """The repository's files in the cache, or None where some are missing. Never asks the network."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        found = snapshot_download(
            repo,
            repo_type=kind,
            revision=revision,
            cache_dir=_hub_cache(),
            local_files_only=True,
            allow_patterns=list(patterns),
            ignore_patterns=_passed_over(patterns, kind),
        )
    except LocalEntryNotFoundError:
        return None
    # The library cannot tell a partial folder whose list of files is lost; what is asked for must be there.
    return Path(found) if _holds(Path(found), patterns) else None


def fetch_hub(
    repo: str, revision: str, report: Report, patterns: Sequence[str] = FOLDER_FILES, kind: RepoKind = "model"
) -> Path:
    """The folder with the repository's files, downloaded where they are missing.

    Raises GatedError, MissingError, OfflineError, DiskFullError, or BrokenFileError when a file came wrong
    twice.
    """
    if found := hub_folder(repo, revision, patterns, kind):
        return found
    _require_hub(repo)
    lock = _hub_cache() / repo.replace("/", "--")
    with cache.locked(lock, report, "downloading"), _hub_errors(repo, revision, kind):
        folder, altered = _download(repo, revision, report, patterns, kind)
        if altered:
            folder, altered = _download(repo, revision, report, patterns, kind)
        if altered:
            raise BrokenFileError(f"{altered[0]} of {repo} came altered twice. Try again later.")
    if not _holds(folder, patterns):
        lacking = [name for name in patterns if not (folder / name).is_file()]
        raise MissingError(f"{repo} at {revision} has none of {', '.join(lacking)}.")
    return folder


def _download(
    repo: str, revision: str, report: Report, patterns: Sequence[str], kind: RepoKind
) -> tuple[Path, list[str]]:
    """The folder after one download, and the names of files that came altered (removed again)."""
    from huggingface_hub import snapshot_download

    download: Callable[..., Any] = partial(
        snapshot_download,
        repo,
        repo_type=kind,
        revision=revision,
        cache_dir=_hub_cache(),
        endpoint=endpoint(),
        allow_patterns=list(patterns),
        ignore_patterns=_passed_over(patterns, kind),
    )
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
    return folder, altered


def repo_folder(repo: str) -> Path:
    """Where a model's repository lies in the cache, or will lie."""
    return _hub_cache() / f"models--{repo.replace('/', '--')}"


def hub_size(repo: str) -> int:
    """Bytes of a repository on disk, also of files that are half there."""
    return cache.size_of(repo_folder(repo) / "blobs")


def half_file_size(repo: str) -> int:
    """Bytes of a repository's files that are half there."""
    return sum(file.stat().st_size for file in (repo_folder(repo) / "blobs").glob("*.incomplete"))


def list_files(repo: str) -> list[str]:
    """The names of a model repository's files, as the hub tells them. Raises MissingError, GatedError, OfflineError."""
    from huggingface_hub import HfApi

    _require_hub(repo)
    with _hub_errors(repo, "main", "model"):
        return HfApi(endpoint=endpoint()).list_repo_files(repo)


def fetch_beginning(repo: str, revision: str, file: str, size: int) -> bytes:
    """The first `size` bytes of a file. Raises MissingError, GatedError, OfflineError."""
    from huggingface_hub import hf_hub_url

    if offline_mode():
        raise _offline(repo)
    url = hf_hub_url(repo, file, revision=revision, endpoint=endpoint())
    headers = {"Range": f"bytes=0-{size - 1}", **authorisation()}
    try:
        with requests.get(url, headers=headers, timeout=15, stream=True) as answer:
            if answer.status_code in (401, 403):
                raise GatedError(
                    f"{repo} is gated or private. Accept its licence at {endpoint()}/{repo}, then log in with "
                    "`hf auth login`."
                )
            if answer.status_code >= 500 or answer.status_code == TOO_MANY:
                raise OfflineError(f"The hub answered {answer.status_code} for {repo}. Try again later.")
            if not answer.ok:
                raise MissingError(f"{repo} has no file {file} at {revision}. Check the name.")
            return read(answer, size)
    except (requests.RequestException, OSError) as error:
        raise _offline(repo) from error


def read(answer: requests.Response, most: int, seconds: float | None = None) -> bytes:
    """What a hub answers, at most so many bytes of it. Raises RequestException where it breaks off, or takes longer."""
    began, data = time.monotonic(), bytearray()
    for piece in answer.iter_content(_PIECE):
        data += piece
        if len(data) >= most:
            break
        if seconds and time.monotonic() - began > seconds:
            raise requests.Timeout
    return bytes(data[:most])


def endpoint() -> str:
    """Where the hub is. Read now: the library read it when it was imported."""
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def authorisation() -> dict[str, str]:
    """The header of who has logged in to the hub; empty where nobody has."""
    from huggingface_hub import get_token

    return {"Authorization": f"Bearer {token}"} if (token := get_token()) else {}


def offline_mode() -> bool:
    """Whether the hub's own settings say that nothing may be asked of it."""
    return any(os.environ.get(name, "").upper() in _TRUE for name in OFFLINE)


def _hub_cache() -> Path:
    return cache_dir() / "hub"


def _holds(folder: Path, patterns: Sequence[str]) -> bool:
    """Whether all files that are named are there, or any that a pattern means."""
    if not any("*" in pattern for pattern in patterns):
        return all((folder / name).is_file() for name in patterns)
    return any(file.is_file() for pattern in patterns for file in folder.rglob(pattern))


def _passed_over(patterns: Sequence[str], kind: RepoKind) -> list[str]:
    return [] if any("/" in pattern for pattern in patterns) else list(_PASSED_OVER[kind])


def _is_altered(file: Path) -> bool:
    """Whether a large file is not what the hub says: the folder links to it under its SHA-256 as name."""
    name = file.resolve().name
    return bool(re.fullmatch("[0-9a-f]{64}", name)) and cache.sha256(file) != name


def _require_hub(repo: str) -> None:
    """Raises OfflineError at once, where the hub library would try for half a minute first."""
    if offline_mode():
        raise _offline(repo)
    try:
        requests.head(endpoint(), timeout=15)
    except requests.RequestException as error:
        raise _offline(repo) from error


def _offline(repo: str) -> OfflineError:
    if offline_mode():
        return OfflineError(
            f"HF_HUB_OFFLINE is set, so nothing is asked of the hub, and {repo} cannot be fetched. Unset it to fetch."
        )
    return OfflineError(
        f"The hub cannot be reached, so {repo} cannot be fetched. Connect to the network and try again; "
        "what has come already is kept."
    )


@contextmanager
def _hub_errors(repo: str, revision: str, kind: RepoKind) -> Iterator[None]:
    """The hub library's errors as ours, each saying what to do."""
    from httpx2 import HTTPError
    from huggingface_hub import errors

    try:
        with cache.disk_errors():
            yield
    except (HTTPError, OSError, errors.HFValidationError) as error:
        # A dry run hides why it failed in its cause.
        raise _said(
            error.__cause__ if isinstance(error, errors.DryRunError) else error, repo, revision, kind
        ) from error


def _said(error: BaseException | None, repo: str, revision: str, kind: RepoKind) -> Exception:
    from httpx2 import HTTPError
    from huggingface_hub import errors

    what, place = ("dataset", "datasets/") if kind == "dataset" else ("repository", "")
    page = f"{endpoint()}/{place}{repo}"
    if isinstance(error, errors.GatedRepoError):
        return GatedError(f"{repo} is gated. Accept its licence at {page}, then log in with `hf auth login`.")
    if isinstance(error, errors.RevisionNotFoundError):
        return MissingError(f"{repo} has no revision {revision!r}. See {page}/commits/main.")
    if isinstance(error, (errors.RepositoryNotFoundError, errors.HFValidationError)):
        return MissingError(
            f"There is no public {what} {repo} on the hub. Check its name at {page}; "
            "if it is private, log in with `hf auth login`."
        )
    if isinstance(error, errors.HfHubHTTPError):
        status = error.response.status_code
        kind_of = OfflineError if status >= 500 else FetchError
        return kind_of(f"The hub answered {status} for {repo}. Try again later.")
    if isinstance(error, (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled, HTTPError)):
        return _offline(repo)
    return FetchError(f"{repo} could not be fetched whole: {error} Try again: it resumes.")
