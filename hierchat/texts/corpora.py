"""Store the user's own corpora: a folder for each name, in it one for each tokenizer that it was built for."""

import hashlib
import logging
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache as once
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from hierchat.config import cache_dir, data_dir, shipped
from hierchat.language import later
from hierchat.models.cache import known_sha256, locked
from hierchat.models.catalogue import ModelEntry, nearest
from hierchat.models.load.tokenizer_files import note_tokens, tokens_sha256
from hierchat.models.progress import Report, silent
from hierchat.texts.build import FORM, Damaged, Meta, Recipe, Statistics, build, read, read_meta
from hierchat.texts.text_files import CorpusError, TextReader, find

log = logging.getLogger(__name__)

SEED_NAME = "seed"
"""What the texts that ship are called among the corpora."""
SUFFIX = ".jsonl.xz"


def seeds_dir() -> Path:
    """Return the folder of the shipped texts, replies of small models: MODEL.jsonl.xz."""
    return shipped("assets") / "seeds"


def seed_files(entry: ModelEntry) -> list[Path]:
    """Return the shipped files that draft for a model, its own last; its own alone if that has the most."""
    files = sorted(seeds_dir().glob(f"*{SUFFIX}"))
    own = [file for file in files if writer(file) == entry.name]
    others = [file for file in files if file not in own]
    return own if _size(own) > _size(others) else [*others, *own]


def writer(file: Path) -> str:
    """Return the name of the model that wrote a shipped file."""
    return file.name.removesuffix(SUFFIX)


def kept_seed(files: Sequence[Path], tokenizer: Any) -> Statistics | None:
    """Return the database of shipped texts if they were tokenised earlier, else None."""
    with suppress(Damaged, OSError):
        return read(_target(files, tokenizer)) if files else None
    return None


def seed(
    files: Sequence[Path], tokenizer: Any, model: str = "", report: Report = silent
) -> Statistics | None:
    """Return the database of shipped texts, tokenised now if needed; None, and a line in the log, without any."""
    if not files:
        return None
    try:
        target = _target(files, tokenizer)
        with locked(target, report, "reading"):
            if found := kept_seed(files, tokenizer):
                return found
            reader = TextReader(files)
            names = [file.name for file in files]
            made = build(target, Recipe(SEED_NAME, reader, tokenizer, model, names), report)
        for trouble in reader.passed_over:
            log.warning("Texts that ship are not used: %s", trouble)
        return made
    except (OSError, CorpusError) as error:
        log.warning("The texts that ship are not used: %s", error)
        return None


def _size(files: Sequence[Path]) -> int:
    return sum(file.stat().st_size for file in files)


def _target(files: Sequence[Path], tokenizer: Any) -> Path:
    digest = hashlib.sha256(f"{FORM} {tokens_sha256(tokenizer)}".encode())
    for file in files:
        digest.update(known_sha256(file).encode())
    return cache_dir() / "seeds" / digest.hexdigest()


_LONGEST = 80
_NAME = re.compile(r"[\w-][\w.-]{0,79}")
_DIGITS = 16
"""Of a tokenizer's hash in the name of a folder."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Corpus built for one tokenizer. `trouble`: why it cannot be used; `meta` is None if it cannot be read."""

    name: str
    folder: Path
    meta: Meta | None
    trouble: str | None


def corpora_dir() -> Path:
    """Return the folder of the user's corpora, which is not created here."""
    return data_dir() / "corpora"


def add(recipe: Recipe, report: Report = silent, replace: bool = False) -> Statistics:
    """Build a corpus and store it. Raises CorpusError; then, and when it is interrupted, nothing was changed."""
    tokens = tokens_sha256(recipe.tokenizer)
    target = _folder(recipe.name, tokens)
    require_free_name(recipe.name, tokens, replace)
    # Of processes that were killed; the lock of a living one is held
    for part in corpora_dir().glob("*/*.part"):
        with suppress(Timeout, OSError), FileLock(part.with_suffix(".lock"), timeout=0):
            shutil.rmtree(part)
            if not _builds(part.parent):
                shutil.rmtree(part.parent)
    try:
        with locked(target, report, "reading"):
            return build(target, recipe, report)
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


def require_free_name(name: str, tokenizer: str, replace: bool) -> None:
    """Raise CorpusError if a corpus cannot have this name: it is invalid, or taken."""
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
    """Delete a corpus, for all tokenizers, and return the bytes that it took. Raises CorpusError."""
    names = sorted({corpus.name for corpus in listed()} | {files.parent.name for files in unfinished()})
    if name not in names:
        hint = nearest(name, names) if names else later("There are none yet.")
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
    """Return all stored corpora by name, each checked."""
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
    """Return folders of dropped files without a corpus: the program ended while it was built."""
    found = sorted(corpora_dir().glob("*/files")) if corpora_dir().is_dir() else []
    return [files for files in found if not _builds(files.parent)]


def stored_for(tokenizer: str) -> tuple[list[Statistics], list[str]]:
    """Return the corpora of a tokenizer (its tokens_sha256), and sentences about those that cannot be used."""
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
    """Derive a corpus's name from that of its first source: 'replies' for replies.jsonl.gz."""
    return re.sub(r"[^\w-]+", "-", said.split(".")[0]).strip("-")[:_LONGEST] or "corpus"


def free_name(wanted: str) -> str:
    """Return a name that no corpus has: `wanted`, with a number if it is taken."""
    taken = {folder.name for folder in corpora_dir().glob("*")} | {SEED_NAME}
    names = (wanted, *(f"{wanted[: _LONGEST - 4]}-{number}" for number in range(2, len(taken) + 2)))
    return next(name for name in names if name not in taken)


def files_of(name: str) -> Path:
    """Return the folder of a corpus's files dropped on the page, which are deleted with it. Not created here."""
    return corpora_dir() / name / "files"


def _folder(name: str, tokenizer: str) -> Path:
    return corpora_dir() / name / tokenizer[:_DIGITS]


def _builds(folder: Path) -> list[Path]:
    return [inner for inner in folder.glob("*") if _is_build(inner)]


def _is_build(folder: Path) -> bool:
    return folder.is_dir() and re.fullmatch(f"[0-9a-f]{{{_DIGITS}}}", folder.name) is not None


# What of lowest temporal locality may draft for a model: texts that ship, the user's corpora, one more.

EXTRA_NAME = "extra"
"""Of the texts that one run has beside the others."""


def statistics(
    entry: ModelEntry,
    tokenizer: Any,
    corpus: Path | None = None,
    stored: bool = True,
    report: Report = silent,
    waits: bool = True,
) -> list[Statistics]:
    """Return the databases of shipped texts, of the user's corpora if `stored`, and of `corpus`. Unless `waits`,
    untokenised shipped texts are left out. Damaged ones are logged. Raises CorpusError about `corpus`."""
    tokens = tokens_sha256(tokenizer)
    note_tokens(entry, tokens)
    files = seed_files(entry)
    shipped = seed(files, tokenizer, entry.name, report) if waits else kept_seed(files, tokenizer)
    found = [shipped] if shipped else []
    if stored:
        usable, wrong = stored_for(tokens)
        found += usable
        for trouble in wrong:
            warn_once(trouble)
    if corpus:
        found.append(_extra(corpus, tokenizer, entry.name, report))
    return found


def require_readable(corpus: Path) -> None:
    """Raise CorpusError if a path has no files of text."""
    passed_over: list[str] = []
    if not find([corpus], passed_over):
        raise CorpusError(f"{corpus} has no files of text. {'; '.join(passed_over)}".rstrip())


def _extra(corpus: Path, tokenizer: Any, model: str, report: Report) -> Statistics:
    passed_over: list[str] = []
    files = find([corpus], passed_over)
    digest = hashlib.sha256(f"{FORM} {tokens_sha256(tokenizer)}".encode())
    try:
        for file in files:
            digest.update(f"{file.suffixes} {known_sha256(file)}".encode())
        target = cache_dir() / "corpora" / digest.hexdigest()
        with locked(target, report, "reading"):
            try:
                return read(target)
            except Damaged:
                reader = TextReader(files, passed_over)
                return build(target, Recipe(EXTRA_NAME, reader, tokenizer, model, [str(corpus)]), report)
    except OSError as error:
        raise CorpusError(f"{error.filename or corpus}: {error.strerror}. Check its permissions.") from error


warn_once = once(log.warning)
