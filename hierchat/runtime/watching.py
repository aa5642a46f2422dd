"""Which texts of one's own are watched, and how their files were when they were read: watched.json beside a corpus."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

from hierchat.corpus.files import find
from hierchat.corpus.stored import corpora_dir

EVERY = 30.0
"""Seconds from one look to the next."""


def is_watched(name: str) -> bool:
    """Whether the user asked for it."""
    return _file(name).is_file()


def any_watched() -> bool:
    """Whether there is anything to look at."""
    return any(corpora_dir().glob("*/watched.json"))


def watch(name: str) -> None:
    """From now on. What changed since the texts were read is seen at the first look."""
    _write(name, {})


def unwatch(name: str) -> None:
    """The texts stay as they are."""
    _file(name).unlink(missing_ok=True)


def stamp(sources: Sequence[str]) -> str:
    """Names the present state of these files and folders: other where a file came, went or changed. Raises CorpusError
    where one is gone."""
    digest = hashlib.sha256()
    for file in sorted(find([Path(source) for source in sources], [])):
        try:
            state = file.stat()
        except OSError:  # gone since
            continue
        digest.update(f"{file}\0{state.st_size}\0{state.st_mtime_ns}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def was_read(name: str, model: str, state: str) -> None:
    """The texts were read for this model when their files were in this state."""
    if is_watched(name):
        _write(name, _stamps(name) | {model: state})


def has_changed(name: str, model: str, state: str) -> bool:
    """Whether that is not the state in which the files were last read for the model."""
    return _stamps(name).get(model) != state


def _file(name: str) -> Path:
    return corpora_dir() / name / "watched.json"


def _stamps(name: str) -> dict[str, str]:
    try:
        found = json.loads(_file(name).read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(name: str, stamps: dict[str, str]) -> None:
    part = _file(name).with_suffix(".part")
    part.write_text(json.dumps(stamps), encoding="utf-8")
    os.replace(part, _file(name))
