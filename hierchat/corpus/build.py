"""From texts to tokens: in batches, with memory for the tokens alone."""

from __future__ import annotations

import shutil
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from hierchat.corpus.errors import CorpusError
from hierchat.corpus.format import Statistics, Tokens, write
from hierchat.corpus.reading import Reader
from hierchat.drafting.suffix_index import BREAK
from hierchat.models.cache import gigabytes
from hierchat.models.load.token_map import tokens_sha256
from hierchat.models.progress import Progress, Report

BATCH = 1 << 20
"""Characters that are tokenised at once, at least."""
_DISK, _MEMORY = 8, 16
"""Bytes that a token takes, at the end on disk and on the way there in memory."""
_SPARE = 64 * 2**20


def build(
    target: Path,
    name: str,
    reader: Reader,
    tokenizer: Any,
    model: str,
    sources: Iterable[str],
    report: Report,
) -> Statistics:
    """A corpus at `target`, in place of what is there. Raises CorpusError; nothing is changed then."""
    if not reader.total:
        raise _nothing(reader)
    tokens, texts, begins = _tokenised(reader, tokenizer, target, name, report)
    if not texts:
        raise _nothing(reader)
    report(Progress("sorting", 0, None, f"{tokens.size - texts:,} tokens"))
    return write(target, name, tokens, texts, tokens_sha256(tokenizer), model, tuple(sources), begins)


def _tokenised(
    reader: Reader, tokenizer: Any, target: Path, name: str, report: Report
) -> tuple[Tokens, int, list[tuple[int, str]]]:
    """The tokens of all texts, a BREAK after each; how many texts there are; and where each file begins."""
    tokens, texts = array("i"), 0
    begins: list[tuple[int, str]] = []
    report(Progress("reading", 0, reader.total, name))
    for batch in _batches(reader):
        for (file, _), ids in zip(batch, encoded(tokenizer, [text for _, text in batch]), strict=True):
            if ids:
                if not begins or begins[-1][1] != file:
                    begins.append((len(tokens), file))
                tokens.extend(ids)
                tokens.append(BREAK)
                texts += 1
        _require_room(len(tokens), target)
        report(Progress("reading", reader.done, reader.total, name))
    return np.frombuffer(tokens, np.int32), texts, begins


def encoded(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    """The tokens of each text alone."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        encoded = tokenizer(texts, add_special_tokens=False, return_attention_mask=False, verbose=False)
        return list(encoded["input_ids"])
    backend.no_truncation()
    backend.no_padding()
    # Half the time of the call above, which makes more than ids
    return [encoded.ids for encoded in backend.encode_batch_fast(texts, add_special_tokens=False)]


def _batches(reader: Reader) -> Iterator[list[tuple[str, str]]]:
    """File and text of each."""
    batch: list[tuple[str, str]] = []
    size = 0
    for text in reader:
        batch.append((reader.reading, text))
        size += len(text)
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _require_room(tokens: int, target: Path) -> None:
    """Raises CorpusError before disk or memory are full."""
    if tokens >= np.iinfo(np.int32).max:
        raise CorpusError("That is more than 2 billion tokens: add it in parts.")
    free = shutil.disk_usage(next(folder for folder in target.parents if folder.exists())).free
    if _DISK * tokens + _SPARE > free:
        raise CorpusError(
            f"The disk that holds {target.parent} has only {gigabytes(free)} free. Free some space, or add less."
        )
    # Of which the tokens so far are taken already
    if (_MEMORY - 4) * tokens > psutil.virtual_memory().available:
        raise CorpusError(
            "That is more text than fits into memory. Close other programs, or add it in parts."
        )


def _nothing(reader: Reader) -> CorpusError:
    """Nobody shall have to guess why there is nothing."""
    if not reader.files and not reader.passed_over:
        return CorpusError("There are no files of text in it. Name the files if their kind is unusual.")
    reasons = "; ".join(reader.passed_over[:3]) or "what is there is empty, or has no text in it"
    return CorpusError(
        f"There is no usable text ({reasons}). Give files of text, code, Markdown or JSON lines."
    )
