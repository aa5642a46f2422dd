"""The file of a draft model that knows only some of its target's tokens: which, in the order of its own numbers.

Its own vocabulary is these and one number more, which stands for every other token.
"""

from __future__ import annotations

import tokenize
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from hierchat.models.progress import BrokenFileError

FILE = "known_tokens.npy"


def read_known(folder: Path) -> NDArray[np.int64] | None:
    """None where the model knows all tokens. Raises BrokenFileError."""
    file = folder / FILE
    if not file.exists():
        return None
    try:
        known = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError, SyntaxError, tokenize.TokenError, BadZipFile) as error:
        raise BrokenFileError(f"{file} cannot be read: {error}. Distil the draft again.") from error
    if (
        not isinstance(known, np.ndarray)
        or known.dtype != np.int64
        or known.ndim != 1
        or not len(known)
        or (np.diff(known) <= 0).any()
        or known[0] < 0
    ):
        raise BrokenFileError(f"{file} is no list of tokens. Distil the draft again.")
    return known


def write_known(folder: Path, known: NDArray[np.int64]) -> None:
    """`known` rises."""
    np.save(folder / FILE, known)
