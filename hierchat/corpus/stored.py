"""The user's own corpora: a folder for each name, in it one for each tokenizer that it was built for."""

from __future__ import annotations

import difflib
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from hierchat.config import data_dir
from hierchat.corpus.build import build
from hierchat.corpus.errors import CorpusError
from hierchat.corpus.format import Damaged, Meta, Statistics, read, read_meta
from hierchat.corpus.reading import Reader
from hierchat.corpus.seed import SEED_NAME
from hierchat.models.cache import locked
from hierchat.models.load.token_map import tokens_sha256
from hierchat.models.progress import Report, silent

_LONGEST = 80
_NAME = re.compile(r"[\w-][\w.-]{0,79}")
_DIGITS = 16
"""Of a tokenizer's hash in the name of a folder."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A corpus built for one tokenizer. `trouble`: why it cannot be used; `meta` is None where it cannot be read."""

    name: str
    folder: Path
    meta: Meta | None
    trouble: str | None


def corpora_dir() -> Path:
    """Where the user's corpora lie. Not created here."""
    return data_dir() / "corpora"


def add(
    name: str,
    reader: Reader,
    tokenizer: Any,
    model: str,
    sources: Sequence[str],
    report: Report = silent,
    replace: bool = False,
) -> Statistics:
    """Build a corpus and store it. Raises CorpusError; then, and when it is interrupted, nothing was changed."""
    target = _folder(name, tokens_sha256(tokenizer))
    require_free_name(name, tokens_sha256(tokenizer), replace)
    _sweep()
    try:
        with locked(target, report, "reading"):
            return build(target, name, reader, tokenizer, model, sources, report)
    except OSError as error:
        raise CorpusError(
            f"{error.filename or target} cannot be written: {error.strerror}. Make {corpora_dir()} writable, "
            "or move it by HIERCHAT_DATA."
        ) from error
    finally:
        if not _builds(target.parent):
            shutil.rmtree(target.parent, ignore_errors=True)
            with suppress(OSError):
                corpora_dir().rmdir()


def _sweep() -> None:
    """Deletes what processes that were killed left half; the lock of a living one is held."""
    for part in corpora_dir().glob("*/*.part"):
        with suppress(Timeout, OSError), FileLock(part.with_suffix(".lock"), timeout=0):
            shutil.rmtree(part)
            if not _builds(part.parent):
                shutil.rmtree(part.parent)


def require_free_name(name: str, tokenizer: str, replace: bool) -> None:
    """Raises CorpusError where the name is no name, or taken."""
    if not _NAME.fullmatch(name):
        raise CorpusError(
            f"{name!r} is no name: use letters, digits, '-', '_' and '.', such as --name my-notes."
        )
    if name == SEED_NAME:
        raise CorpusError(
            f"{name!r} is what the texts are called that ship with hierchat. Give another --name."
        )
    if _folder(name, tokenizer).exists() and not replace:
        raise CorpusError(
            f"There is a corpus {name} for this tokenizer. Give another --name, or --replace to build it anew."
        )


def remove(name: str) -> int:
    """Delete a corpus, for all tokenizers; returns the bytes that it took. Raises CorpusError."""
    names = sorted({corpus.name for corpus in listed()} | {files.parent.name for files in unfinished()})
    if name not in names:
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
        hint = f"There are {', '.join(names)}." if names else "There are none yet."
        if near:
            hint = f"Did you mean {' or '.join(near)}?"
        raise CorpusError(f"No corpus is called {name!r}. {hint}")
    folder = corpora_dir() / name
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise CorpusError(
            f"{error.filename or folder} cannot be deleted: {error.strerror}. Stop hierchat, and make it writable."
        ) from error
    return size


def listed() -> list[Stored]:
    """All that is stored, by name, each looked into."""
    found = []
    for folder in sorted(corpora_dir().glob("*/*")) if corpora_dir().is_dir() else ():
        if not _is_build(folder):
            continue
        meta, trouble = None, None
        try:
            meta = read_meta(folder)
            read(folder)
        except Damaged as error:
            trouble = str(error)
        found.append(Stored(folder.parent.name, folder, meta, trouble))
    return found


def unfinished() -> list[Path]:
    """Files that were dropped and of which no corpus came: the program ended in the middle."""
    found = sorted(corpora_dir().glob("*/files")) if corpora_dir().is_dir() else []
    return [files for files in found if not _builds(files.parent)]


def stored_for(tokenizer: str) -> tuple[list[Statistics], list[str]]:
    """The corpora of a tokenizer (its tokens_sha256), and what is wrong with those that cannot be used."""
    usable, wrong = [], []
    for folder in sorted(corpora_dir().glob(f"*/{tokenizer[:_DIGITS]}")):
        try:
            usable.append(read(folder))
        except Damaged as error:
            wrong.append(
                f"The corpus {folder.parent.name} is not used: {error}. Add it again with --replace, or remove it."
            )
    return usable, wrong


def name_of(said: str) -> str:
    """A corpus's name after the first thing in it: 'replies' for replies.jsonl.gz, 'owner-name' for a dataset."""
    stem = said if "/" in said else said.split(".")[0]
    return re.sub(r"[^\w-]+", "-", stem).strip("-")[:_LONGEST] or "corpus"


def free_name(wanted: str) -> str:
    """This name, or the same with a number where there is a corpus of that name for any tokenizer."""
    taken = {folder.name for folder in corpora_dir().glob("*")} | {SEED_NAME}
    names = (wanted, *(f"{wanted[: _LONGEST - 4]}-{number}" for number in range(2, len(taken) + 2)))
    return next(name for name in names if name not in taken)


def files_of(name: str) -> Path:
    """Where files lie that were dropped on the page, and go with their corpus. Not created here."""
    return corpora_dir() / name / "files"


def _folder(name: str, tokenizer: str) -> Path:
    return corpora_dir() / name / tokenizer[:_DIGITS]


def _builds(folder: Path) -> list[Path]:
    return [inner for inner in folder.glob("*") if _is_build(inner)]


def _is_build(folder: Path) -> bool:
    return folder.is_dir() and re.fullmatch(f"[0-9a-f]{{{_DIGITS}}}", folder.name) is not None
