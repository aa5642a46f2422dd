"""The texts of files: plain text in pieces, and out of JSON, Parquet and PDF what holds text. Nothing but a PDF is held
whole."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO

from hierchat.corpus.files import LINES, PDFS, TABLES, Unreadable, kind, opened
from hierchat.corpus.values import texts_of
from hierchat.pdf.text import PdfError, text_of

PIECE = 1 << 18
"""Characters of a text at most: what is longer becomes several."""
LARGEST_VALUE = 1 << 28
"""Characters of one JSON value at most."""
LARGEST_PDF = 1 << 28
"""Bytes of a PDF at most."""
_PDF_CHARACTERS, _PDF_SECONDS = 1 << 26, 120
_SPACE = re.compile(r"[\s,]*")


class Reader:
    """Iterates over the texts of files, and says how it went. A file that cannot be read stops nothing."""

    def __init__(self, files: Iterable[Path], passed_over: Iterable[str] = ()) -> None:
        self.files = list(files)
        self.total = sum(_size(file) for file in self.files)
        self.done = 0
        """Bytes read, of `total`."""
        self.passed_over = list(passed_over)
        """Files that were not read, or not to their end, with the reason."""
        self.reading = ""
        """The file that the last text is of."""
        self.notes: list[str] = []
        """Files that were read otherwise than as UTF-8."""

    def __iter__(self) -> Iterator[str]:
        before = 0
        for file in self.files:
            self.reading = str(file)
            try:
                with file.open("rb") as raw:
                    for text in self._texts(file, raw):
                        self.done = before + min(raw.tell(), _size(file))
                        yield from _pieces(text)
            except Unreadable as reason:
                self.passed_over.append(f"{file}: {reason}")
            except OSError as error:
                self.passed_over.append(f"{file}: {error.strerror or error}")
            before += _size(file)
            self.done = before

    def _texts(self, file: Path, raw: BinaryIO) -> Iterator[str]:
        if kind(file) in TABLES:
            for row in _rows(raw):
                yield from texts_of(row)
            return
        if kind(file) in PDFS:
            yield _pdf(raw)
            return
        with opened(file, raw, self.notes) as stream:
            if kind(file) in LINES:
                values = self._lines(file, stream)
            elif kind(file) == ".json":
                values = _values(stream)
            else:
                yield from _blocks(stream)
                return
            for value in values:
                yield from texts_of(value)

    def _lines(self, file: Path, stream: IO[str]) -> Iterator[Any]:
        bad = 0
        while line := stream.readline(LARGEST_VALUE):
            if line.isspace():
                continue
            try:
                yield json.loads(line)
            except (ValueError, RecursionError):
                bad += 1
        if bad:
            self.passed_over.append(f"{file}: {bad} line{'s' * (bad > 1)} not JSON")


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _pieces(text: str) -> Iterator[str]:
    """A text as the tokenizer can take it: in pieces, cut between lines or words where it has any."""
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode("utf-8")  # JSON may hold halves of surrogate pairs
    while len(text) > PIECE:
        end = text.rfind("\n", PIECE // 2, PIECE) + 1 or text.rfind(" ", PIECE // 2, PIECE) + 1 or PIECE
        yield text[:end]
        text = text[end:]
    if text and not text.isspace():
        yield text


def _blocks(stream: IO[str]) -> Iterator[str]:
    """A plain text: whole, or in blocks that end between lines."""
    block = stream.read(PIECE)
    while more := stream.read(PIECE):
        end = block.rfind("\n") + 1 or len(block)
        yield block[:end]
        block = block[end:] + more
    yield block


def _values(stream: IO[str]) -> Iterator[Any]:
    """The elements of a JSON array one by one; or other JSON values, one behind the other."""
    decoder = json.JSONDecoder()
    text = stream.read(PIECE)
    at = _SPACE.match(text).end()  # type: ignore[union-attr]  # matches everywhere
    inside = text.startswith("[", at)
    at += inside
    while True:
        at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
        if inside and text.startswith("]", at):
            return
        try:
            value, end = decoder.raw_decode(text, at)
        except RecursionError:
            raise Unreadable("its JSON is nested too deep") from None
        except ValueError as error:
            text, at = text[at:], 0
            if len(text) > LARGEST_VALUE:
                raise Unreadable(f"one JSON value of more than {LARGEST_VALUE >> 20} MB; split it") from None
            # Twice as much each time, so that a large value is not parsed often
            if more := stream.read(max(PIECE, len(text))):
                text += more
            elif text or inside:
                raise Unreadable(f"no whole JSON ({error})") from None
            else:
                return
        else:
            yield value
            at = end


def _pdf(raw: BinaryIO) -> str:
    """All pages of a PDF."""
    held = raw.read(LARGEST_PDF + 1)
    if len(held) > LARGEST_PDF:
        raise Unreadable(f"a PDF of more than {LARGEST_PDF >> 20} MB; split it")
    try:
        return text_of(held, _PDF_CHARACTERS, _PDF_SECONDS)
    except PdfError as error:
        raise Unreadable(f"it {error}".rstrip(".")) from error


def _rows(raw: BinaryIO) -> Iterator[dict[str, Any]]:
    """The rows of a Parquet file."""
    try:
        pyarrow: Any = importlib.import_module("pyarrow")
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise Unreadable("Parquet needs `pip install pyarrow`") from None
    try:
        for batch in parquet.ParquetFile(raw).iter_batches(batch_size=256):
            yield from batch.to_pylist()
    except pyarrow.ArrowException as error:
        raise Unreadable(f"no whole Parquet file ({error})") from error
