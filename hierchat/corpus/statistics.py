"""What of lowest temporal locality may draft for a model: texts that ship, the user's corpora, one more."""

from __future__ import annotations

import hashlib
import logging
from functools import cache as once
from pathlib import Path
from typing import Any

from hierchat.config import cache_dir
from hierchat.corpus.build import build
from hierchat.corpus.errors import CorpusError
from hierchat.corpus.files import find
from hierchat.corpus.format import FORM, Damaged, Statistics, read
from hierchat.corpus.reading import Reader
from hierchat.corpus.seed import kept_seed, seed, seed_files
from hierchat.corpus.stored import stored_for
from hierchat.models.cache import known_sha256, locked
from hierchat.models.catalogue import ModelEntry
from hierchat.models.load.load_tokenizer import note_tokens
from hierchat.models.load.token_map import tokens_sha256
from hierchat.models.progress import Report, silent

log = logging.getLogger(__name__)

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
    """The texts that ship, the user's corpora unless not `stored`, and the texts in `corpus`.

    Where not `waits`, the texts that ship are left out if they are not tokenised yet. What is damaged only leaves a
    line in the log. Raises CorpusError about `corpus` alone.
    """
    tokens = tokens_sha256(tokenizer)
    note_tokens(entry, tokens)
    files = seed_files(entry)
    shipped = seed(files, tokenizer, entry.name, report) if waits else kept_seed(files, tokenizer)
    found = [shipped] if shipped else []
    if stored:
        usable, wrong = stored_for(tokens)
        found += usable
        for trouble in wrong:
            _warn(trouble)
    if corpus:
        found.append(_extra(corpus, tokenizer, entry.name, report))
    return found


def require_readable(corpus: Path) -> None:
    """Raises CorpusError where there is nothing to read."""
    passed_over: list[str] = []
    if not find([corpus], passed_over):
        raise CorpusError(f"{corpus} has no files of text. {'; '.join(passed_over)}".rstrip())


def _extra(corpus: Path, tokenizer: Any, model: str, report: Report) -> Statistics:
    """Built once for its content, and kept in the cache."""
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
                reader = Reader(files, passed_over)
                return build(target, EXTRA_NAME, reader, tokenizer, model, [str(corpus)], report)
    except OSError as error:
        raise CorpusError(f"{error.filename or corpus}: {error.strerror}. Check its permissions.") from error


@once
def _warn(trouble: str) -> None:
    log.warning(trouble)
