"""The texts that ship, as a database of the model that is loaded: tokenised once for its tokenizer, into the cache.

They are replies of small models to prompts that were written for this project, one file for each model that wrote:
assets/seeds/MODEL.jsonl.xz.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hierchat.config import cache_dir, shipped
from hierchat.corpus.build import build
from hierchat.corpus.errors import CorpusError
from hierchat.corpus.format import FORM, Damaged, Statistics, read
from hierchat.corpus.reading import Reader
from hierchat.models.cache import known_sha256, locked
from hierchat.models.catalogue import ModelEntry
from hierchat.models.load.token_map import tokens_sha256
from hierchat.models.progress import Report, silent

log = logging.getLogger(__name__)

SEED_NAME = "seed"
"""What the texts that ship are called among the corpora."""
SUFFIX = ".jsonl.xz"


def seeds_dir() -> Path:
    """Where the texts lie, each file called after the model that wrote it: MODEL.jsonl.xz."""
    return shipped("assets") / "seeds"


def seed_files(entry: ModelEntry) -> list[Path]:
    """Those that draft for a model: all, what it wrote itself last, since of equal matches the last one is the newest.
    Where it wrote more than all others together, theirs would only dilute it: its own alone."""
    files = sorted(seeds_dir().glob(f"*{SUFFIX}"))
    own = [file for file in files if writer(file) == entry.name]
    others = [file for file in files if file not in own]
    return own if _size(own) > _size(others) else [*others, *own]


def writer(file: Path) -> str:
    """The model that wrote a file."""
    return file.name.removesuffix(SUFFIX)


def kept_seed(files: Sequence[Path], tokenizer: Any) -> Statistics | None:
    """These texts, if they were tokenised earlier."""
    try:
        return read(_target(files, tokenizer)) if files else None
    except (Damaged, OSError):
        return None


def seed(
    files: Sequence[Path], tokenizer: Any, model: str = "", report: Report = silent
) -> Statistics | None:
    """These texts, tokenised now if they are not yet; None where there are none. What cannot be used only leaves a line
    in the log."""
    if not files:
        return None
    try:
        target = _target(files, tokenizer)
        with locked(target, report, "reading"):
            if found := kept_seed(files, tokenizer):
                return found
            reader = Reader(files)
            made = build(target, SEED_NAME, reader, tokenizer, model, [file.name for file in files], report)
        for trouble in reader.passed_over:
            log.warning("Texts that ship are not used: %s", trouble)
        return made
    except (OSError, CorpusError) as error:
        log.warning("The texts that ship are not used: %s", error)
        return None


def _size(files: Sequence[Path]) -> int:
    return sum(file.stat().st_size for file in files)


def _target(files: Sequence[Path], tokenizer: Any) -> Path:
    """Where they lie in the cache. Raises OSError."""
    digest = hashlib.sha256(f"{FORM} {tokens_sha256(tokenizer)}".encode())
    for file in files:
        digest.update(known_sha256(file).encode())
    return cache_dir() / "seeds" / digest.hexdigest()
