"""Build corpora: tokenise texts in batches, with memory for the tokens alone, and sort their suffixes."""

import os
import shutil
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from hierchat.drafting.suffix_index import BREAK, suffix_order
from hierchat.models import cache
from hierchat.models.load.tokenizer_files import tokens_sha256
from hierchat.models.progress import Progress, Report
from hierchat.texts.text_files import CorpusError, TextReader

# How a corpus lies on disk: tokens.npy, order.npy and meta.json in a folder of its own, whole or not at all.

FORM = 1
"""A new number makes what older versions stored unreadable: raise it when the order of suffixes changes."""
_META, _TOKENS, _ORDER = "meta.json", "tokens.npy", "order.npy"

Tokens = NDArray[np.int32]


@dataclass(frozen=True)
class Statistics:
    """Corpus that drafts: token ids with a BREAK after each text, and the order of their suffixes."""

    name: str
    tokens: Tokens
    order: Tokens
    folder: Path | None = None
    """Where it lies."""


class File(BaseModel, frozen=True):
    """Size and hash of a corpus's file as it was written."""

    size: int
    sha256: str


class Meta(BaseModel, frozen=True):
    """Description of a stored corpus, kept as JSON beside its files."""

    form: int
    name: str
    tokenizer: str  # its tokens_sha256
    model: str  # the model that it was added for
    texts: int
    tokens: int
    sources: tuple[str, ...]
    made: datetime
    files: dict[str, File]


class Damaged(Exception):
    """Raised if a stored corpus cannot be used, for the reason that the text gives."""


def write(target: Path, tokens: Tokens, **about: Any) -> Statistics:
    """Sort the suffixes and write the corpus. `about`: further fields of Meta. Raises CorpusError."""
    part = target.with_name(f"{target.name}.part")
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
        made = datetime.now().astimezone()
        meta = Meta(form=FORM, tokens=order.size, made=made, files=files, **about)
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


def read_meta(folder: Path) -> Meta:
    """Read the description of a stored corpus. Raises Damaged."""
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
    """Open a stored corpus, memory-mapped, its files hashed if new to this machine. Raises Damaged."""
    meta = read_meta(folder)
    for name in (_TOKENS, _ORDER):
        expected = meta.files.get(name)
        try:
            size = os.stat(folder / name).st_size
            if (
                expected is None
                or size != expected.size
                or expected.sha256 != cache.known_sha256(folder / name)
            ):
                raise Damaged(f"{name} is altered")
        except OSError as error:
            raise Damaged(f"{name} cannot be read: {error.strerror or error}") from error
    try:
        tokens, order = (np.load(folder / name, mmap_mode="r") for name in (_TOKENS, _ORDER))
    except (OSError, ValueError) as error:
        raise Damaged(f"it cannot be mapped into memory: {error}") from error
    return Statistics(meta.name, tokens, order, folder)


BATCH = 1 << 20
"""Characters that are tokenised at once, at least."""
_MEMORY = 16
"""Bytes of memory that a token takes while its corpus is built."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a corpus is built from: a name, files, the tokenizer and its model."""

    name: str
    reader: TextReader
    tokenizer: Any
    model: str
    sources: Sequence[str]
    """The reader's files as the user named them."""


def build(target: Path, recipe: Recipe, report: Report) -> Statistics:
    """Build a corpus at `target`, in place of what is there. Raises CorpusError; nothing is changed then."""
    reader, tokenizer, name = recipe.reader, recipe.tokenizer, recipe.name
    tokens, texts = array("i"), 0
    report(Progress("reading", 0, reader.total, name))
    for batch in _batches(reader):
        for ids in encoded(tokenizer, batch):
            if ids:
                tokens.extend(ids)
                tokens.append(BREAK)
                texts += 1
        _require_room(len(tokens))
        report(Progress("reading", reader.done, reader.total, name))
    if not texts:
        if not reader.files and not reader.passed_over:
            raise CorpusError("There are no files of text in it. Name the files if their kind is unusual.")
        reasons = "; ".join(reader.passed_over[:3]) or "what is there is empty, or has no text in it"
        raise CorpusError(
            f"There is no usable text ({reasons}). Give files of text, code, Markdown or JSON lines."
        )
    report(Progress("sorting", 0, None, f"{len(tokens) - texts:,} tokens"))
    log, key = np.frombuffer(tokens, np.int32), tokens_sha256(tokenizer)
    return write(
        target, log, name=name, texts=texts, tokenizer=key, model=recipe.model, sources=recipe.sources
    )


def encoded(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    """Tokenise each text alone, without special tokens."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        encoded = tokenizer(texts, add_special_tokens=False, return_attention_mask=False, verbose=False)
        return list(encoded["input_ids"])
    backend.no_truncation()
    backend.no_padding()
    # Half the time of the call above, which makes more than ids
    return [encoded.ids for encoded in backend.encode_batch_fast(texts, add_special_tokens=False)]


def _batches(reader: TextReader) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for text in reader:
        batch.append(text)
        size += len(text)
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _require_room(tokens: int) -> None:
    if tokens >= np.iinfo(np.int32).max:
        raise CorpusError("That is more than 2 billion tokens: add it in parts.")
    # Of which the tokens so far are taken already
    if (_MEMORY - 4) * tokens > psutil.virtual_memory().available:
        raise CorpusError(
            "That is more text than fits into memory. Close other programs, or add it in parts."
        )
