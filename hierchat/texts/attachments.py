"""Read the text of an attached file: text in any usual encoding, code, PDF, Word, EPUB. Its name decides nothing."""

import io
import re
from collections.abc import Iterable
from pathlib import PurePath

from hierchat.store.records import Attachment
from hierchat.store.repository import storable
from hierchat.texts.pdf import PAGE, PdfError, text_of
from hierchat.texts.text_files import SkippedFile, charset_of

MOST_BYTES = 20_000_000
MOST_CHARACTERS = 2_000_000
_MEGABYTE = 1_000_000
_PDF_SECONDS = 60
_NAME = 120
_PACKED = {b"word/document.xml": ".docx", b"META-INF/container.xml": ".epub"}


class Unreadable(ValueError):
    """Raised if a file cannot be attached; the message is for the page and says what to do."""


def read(name: str, raw: bytes) -> Attachment:
    """Read a file's bytes into an Attachment of text. Takes up to a minute for a PDF. Raises Unreadable."""
    name = _clean(name)
    if len(raw) > MOST_BYTES:
        raise too_big(name, len(raw))
    try:
        kind = _kind(raw)
        text = text_of(raw, MOST_CHARACTERS + 1, _PDF_SECONDS, kind) if kind else _text(name, raw)
    except PdfError as error:
        raise Unreadable(f"{name} {error}") from error
    text = storable(text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", ""))
    if not text.strip():
        raise Unreadable(f"{name} holds no text.")
    if len(text) > MOST_CHARACTERS:
        raise Unreadable(
            f"{name} holds more than {MOST_CHARACTERS:,} characters, which is more than a model can read at once. "
            "Attach the part of it that you need."
        )
    return Attachment(name, len(raw), text.replace(PAGE, "") if kind else text)


def too_big(name: str, size: int) -> Unreadable:
    """Return the error for a file of `size` bytes, more than can be attached."""
    return Unreadable(
        f"{_clean(name)} has {size / _MEGABYTE:,.0f} MB; files of up to {MOST_BYTES // _MEGABYTE} MB can be attached. "
        "Attach the part of it that you need."
    )


def _clean(name: str) -> str:
    line = " ".join(storable(name).replace("\\", "/").rsplit("/", 1)[-1].split())
    line = "".join(character for character in line if character.isprintable())
    if len(line) > _NAME:
        stem, dot, end = line.rpartition(".")
        kept = f"{dot}{end}" if stem and len(end) < 12 else ""
        line = line[: _NAME - 1 - len(kept)] + "…" + kept
    return line or "File"


def _kind(raw: bytes) -> str:
    if b"%PDF-" in raw[:1024]:
        return ".pdf"
    found = (kind for mark, kind in _PACKED.items() if raw.startswith(b"PK") and mark in raw)
    return next(found, "")


def _text(name: str, raw: bytes) -> str:
    try:
        return raw.decode(charset_of(io.BytesIO(raw))[0], "replace")
    except SkippedFile as error:
        raise Unreadable(
            f"{name} is neither text nor PDF, so it cannot be read. Save it as one of them."
        ) from error


# How a message holds the files that were sent with it, in the prompt and in exports.

_FENCES = re.compile(r"`{3,}")
PASSAGES = (
    "Passages of documents. Answer in sentences of your own; behind a sentence that rests on a passage put its number, "
    "as in [1]."
)
_SUFFIX = re.compile(r"\.[A-Za-z0-9+]{1,12}")


def with_files(text: str, files: Iterable[Attachment]) -> str:
    """Put files, fenced under their names, before the text, so that prompts begin alike; passages come between."""
    files = list(files)
    sent = [fenced(file) for file in files if file.number is None]
    found = [fenced(file) for file in files if file.number is not None]
    return "\n\n".join([*sent, *([PASSAGES] if found else []), *found, *([text] if text else [])])


def fenced(file: Attachment) -> str:
    """Fence one file, by more backticks than any run inside, so that nothing in the file ends it."""
    longest = max((len(run) for run in _FENCES.findall(file.text)), default=2)
    fence = "`" * (longest + 1)
    suffix = PurePath(file.name).suffix
    language = suffix[1:].lower() if _SUFFIX.fullmatch(suffix) else ""
    heading = f"File: {file.name}" if file.number is None else f"[{file.number}] {file.name}"
    return f"{heading}\n{fence}{language}\n{file.text.rstrip()}\n{fence}"
