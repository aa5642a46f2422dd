"""How a corpus lies on disk: tokens.npy, order.npy, meta.json and begins.json, which tells where its files begin; in a
folder of its own, whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError

from hierchat.corpus.errors import CorpusError
from hierchat.models import cache

FORM = 1
"""A new number makes what older versions stored unreadable: raise it when the order of suffixes changes."""
_META, _TOKENS, _ORDER, _BEGINS = "meta.json", "tokens.npy", "order.npy", "begins.json"

Tokens = NDArray[np.int32]


@dataclass(frozen=True)
class Statistics:
    """Texts that draft: token ids with a BREAK after each text, and where each but a BREAK stands, in the order of
    their suffixes."""

    name: str
    tokens: Tokens
    order: Tokens
    folder: Path | None = None
    """Where it lies."""

    def title_at(self, position: int) -> str:
        """What holds a position of the tokens, for a reader: the file, where it is known, and the corpus."""
        starts, files = self._begins
        at = bisect_right(starts, position) - 1
        return f"{files[at]} (corpus {self.name})" if at >= 0 else f"corpus {self.name}"

    @cached_property
    def _begins(self) -> tuple[list[int], list[str]]:
        """Where each file begins; nothing where an earlier version wrote the corpus."""
        try:
            begins = json.loads((self.folder / _BEGINS).read_bytes()) if self.folder else []
            return [int(start) for start, _ in begins], [str(file) for _, file in begins]
        except (OSError, ValueError, TypeError):
            return [], []


class File(BaseModel, frozen=True):
    """A file as it was written."""

    size: int
    sha256: str


class Meta(BaseModel, frozen=True):
    """What a stored corpus is."""

    form: int
    name: str
    tokenizer: str = Field(description="tokens.tokens_sha256")
    model: str = Field(description="the model that it was added for")
    texts: int
    tokens: int
    sources: tuple[str, ...]
    made: datetime
    files: dict[str, File]


class Damaged(Exception):
    """A stored corpus cannot be used, for the reason that the text gives."""


def write(
    target: Path,
    name: str,
    tokens: Tokens,
    texts: int,
    tokenizer: str,
    model: str,
    sources: Sequence[str],
    begins: Sequence[tuple[int, str]] = (),
) -> Statistics:
    """Sorts the tokens and writes all of it to `target`, in place of what is there. `begins`: at which token which
    file begins. Raises CorpusError."""
    from hierchat.drafting.index.sort import suffix_order  # brings the compiler with it

    part = part_of(target)
    try:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        order = suffix_order(tokens)
        np.save(part / _TOKENS, tokens)
        np.save(part / _ORDER, order)
        files = {
            file: File(size=(part / file).stat().st_size, sha256=cache.sha256(part / file))
            for file in (_TOKENS, _ORDER)
        }
        meta = Meta(
            form=FORM,
            name=name,
            tokenizer=tokenizer,
            model=model,
            texts=texts,
            tokens=order.size,
            sources=tuple(sources),
            made=datetime.now().astimezone(),
            files=files,
        )
        (part / _BEGINS).write_text(json.dumps(begins), encoding="utf-8")
        (part / _META).write_text(meta.model_dump_json(indent=1), encoding="utf-8")
        cache.publish(part, target)
        return read(target)
    except Damaged as error:
        raise CorpusError(f"{target} came out damaged: {error}. Check the disk.") from error
    except OSError as error:
        raise CorpusError(
            f"{target} cannot be written: {error.strerror or error}. Free some space, or make its folder writable."
        ) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def part_of(target: Path) -> Path:
    """Where a corpus lies while it is written."""
    return target.with_name(f"{target.name}.part")


def read_meta(folder: Path) -> Meta:
    """Raises Damaged."""
    try:
        meta = Meta.model_validate_json((folder / _META).read_bytes())
    except OSError as error:
        raise Damaged(f"{_META} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise Damaged(f"{_META} is altered") from error
    if meta.form != FORM:
        raise Damaged("another version of hierchat wrote it")
    return meta


def read(folder: Path) -> Statistics:
    """The corpus, memory-mapped: nothing is read before it is used. Raises Damaged.

    Its files are hashed when they are new to this machine: a position out of range would be read from anywhere.
    """
    meta = read_meta(folder)
    for name in (_TOKENS, _ORDER):
        expected = meta.files.get(name)
        try:
            size = os.stat(folder / name).st_size
            if expected is None or size != expected.size or _sha256(folder / name) != expected.sha256:
                raise Damaged(f"{name} is altered")
        except OSError as error:
            raise Damaged(f"{name} cannot be read: {error.strerror or error}") from error
    try:
        tokens, order = (np.load(folder / name, mmap_mode="r") for name in (_TOKENS, _ORDER))
    except (OSError, ValueError) as error:
        raise Damaged(f"it cannot be mapped into memory: {error}") from error
    return Statistics(meta.name, tokens, order, folder)


def _sha256(file: Path) -> str:
    try:
        return cache.known_sha256(file)
    except OSError:  # the cache cannot be written
        return cache.sha256(file)
