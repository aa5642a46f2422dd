"""Corpora as the program stores them (corpus/format.py, which cannot be imported here), as databases of the drafter."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hierchat.drafting.growing.layout import CORPUS, SEED
from hierchat.drafting.source import Source
from hierchat.drafting.suffix_index import SuffixIndex
from hierchat.integrations.vllm.settings import PREFIX, SettingsError

FORM = 1
"""Of corpus/format.py."""
SEED_NAME = "seed"
"""What the texts that ship are called there."""


def read_corpus(folder: Path, vocabulary: int) -> Source:
    """A corpus, memory-mapped. `vocabulary`: how many tokens the model has. Raises SettingsError.

    Its files are hashed: a position out of range would be read from anywhere."""
    try:
        meta = json.loads((folder / "meta.json").read_bytes())
        if meta["form"] != FORM:
            raise _unusable(folder, "another version of hierchat wrote it")
        tokens, order = (_mapped(folder, name, meta["files"]) for name in ("tokens.npy", "order.npy"))
    except OSError as error:
        raise _unusable(folder, error.strerror or str(error)) from error
    except (ValueError, TypeError, KeyError) as error:
        raise _unusable(folder, "it is no corpus, or is damaged") from error
    if tokens.size and int(tokens.max()) >= vocabulary:
        raise _unusable(folder, "it was made for another model's tokens")
    slot = SEED if meta.get("name") == SEED_NAME else CORPUS
    return Source(slot, SuffixIndex.from_sorted(tokens, order))


def _mapped(folder: Path, name: str, files: Mapping[str, Mapping[str, Any]]) -> np.ndarray:
    with (folder / name).open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != files[name]["sha256"]:
            raise _unusable(folder, f"{name} is altered")
    return np.load(folder / name, mmap_mode="r")


def _unusable(folder: Path, reason: str) -> SettingsError:
    return SettingsError(
        f"The corpus {folder} cannot be used: {reason}. Make it anew, or leave it out of {PREFIX}STATISTICS."
    )
