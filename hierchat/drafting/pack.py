"""A seed pack: texts that a model wrote, as token ids in one compressed file.

An xz file holds a line of JSON (Header), then the ids, little-endian, with a BREAK behind each text. xz keeps a
checksum, so that damage is noticed.
"""

from __future__ import annotations

import lzma
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from hierchat.drafting.suffix_index import BREAK

FORM: Literal[1] = 1
"""Version of the format."""
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 2, "lp": 1, "pb": 1}]
_LARGEST_SMALL = 0xFFFE
"""Ids up to here take two bytes; BREAK is the largest number of its width."""


class PackError(Exception):
    """A seed pack cannot be read; the text says why."""


class Header(BaseModel, frozen=True, extra="forbid"):
    """What a pack holds."""

    form: Literal[1] = FORM
    model: str
    """The model's name in the catalogue."""
    model_key: str
    """LoadedModel.model_key: names tokens and weights."""
    tokenizer: str
    """models.load.token_map.tokens_sha256."""
    texts: int
    tokens: int
    """Without the breaks."""
    dtype: Literal["<u2", "<i4"]


@dataclass(frozen=True, slots=True)
class Pack:
    """`tokens` int32: all texts in a row, a BREAK behind each."""

    header: Header
    tokens: NDArray[np.int32]

    def texts(self) -> Iterator[NDArray[np.int32]]:
        """The texts one by one, without breaks."""
        begin = 0
        for end in np.flatnonzero(self.tokens == BREAK).tolist():
            yield self.tokens[begin:end]
            begin = end + 1


def read_pack(path: Path) -> Pack:
    """Raises PackError where the file is missing, damaged or of another version."""
    try:
        raw = lzma.decompress(path.read_bytes(), format=lzma.FORMAT_XZ)
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise PackError(f"The seed pack {path} cannot be read: {error}") from error
    line, _, body = raw.partition(b"\n")
    try:
        header = Header.model_validate_json(line)
    except ValidationError as error:
        raise PackError(f"{path} is no seed pack of this version of hierchat.") from error
    if len(body) != (header.tokens + header.texts) * np.dtype(header.dtype).itemsize:
        raise PackError(f"The seed pack {path} is damaged: its length is not what its header says.")
    numbers = np.frombuffer(body, header.dtype)
    tokens = numbers.astype(np.int32)
    tokens[numbers == np.array(BREAK).astype(header.dtype)] = BREAK
    if np.count_nonzero(tokens == BREAK) != header.texts or tokens[-1:].tolist() not in ([], [BREAK]):
        raise PackError(f"The seed pack {path} is damaged: it does not hold the texts that its header says.")
    return Pack(header, tokens)


def write_pack(
    path: Path, texts: Iterable[Sequence[int]], *, model: str, model_key: str, tokenizer: str
) -> Header:
    """Writes a pack in place of what is there; empty texts are left out."""
    numbers: list[int] = []
    count = 0
    for text in texts:
        if not len(text):
            continue
        if min(text) < 0:
            raise ValueError("A token id is negative.")
        numbers.extend(text)
        numbers.append(BREAK)
        count += 1
    header = Header(
        model=model,
        model_key=model_key,
        tokenizer=tokenizer,
        texts=count,
        tokens=len(numbers) - count,
        dtype="<u2" if max(numbers, default=0) <= _LARGEST_SMALL else "<i4",
    )
    body = np.array(numbers, np.int64).astype(header.dtype).tobytes()
    packed = lzma.compress(
        header.model_dump_json().encode() + b"\n" + body, check=lzma.CHECK_CRC64, filters=_FILTERS
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.write_bytes(packed)
    os.replace(part, path)
    return header
