"""Which files of a corpus are read, and how their bytes become characters. A file is never held whole in memory."""

from __future__ import annotations

import codecs
import gzip
import io
import lzma
import os
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO, cast

from hierchat.corpus.errors import CorpusError

_TEXT = (
    ".txt .text .md .markdown .rst .adoc .tex .org .html .htm"
    " .py .pyi .js .mjs .jsx .ts .tsx .java .kt .scala .c .h .cc .cpp .cxx .hpp .cs .go .rs .swift .rb .php .pl .lua .r"
    " .jl .hs .ml .ex .exs .erl .clj .dart .sh .bash .zsh .ps1 .bat .sql .css .scss .vue .svelte .xml .yaml .yml .toml"
    " .ini .cfg .cmake .gradle .proto .tf .vim .el .lisp .f90 .m"
)
LINES = frozenset((".jsonl", ".ndjson"))
TABLES = frozenset((".parquet",))
PDFS = frozenset((".pdf",))
PACKED = (".gz", ".xz")
KNOWN = LINES | TABLES | PDFS | {".json"} | set(_TEXT.split())
"""What is read of a folder; a file that is named is read whatever it is called."""
PASSED_OVER = frozenset(("node_modules", "__pycache__", "venv", "site-packages"))
"""Folders that nobody wrote, beside the hidden ones."""

_CHUNK = 1 << 20
_FEW = 100
"""Bytes per bad one from which a text is UTF-8 with a few bytes spoilt, rather than another charset."""
_GARBLED = 10
"""Bytes per control character up to which a file is binary."""
_CONTROL = bytes(set(range(32)) - set(b"\t\n\r\f\x1b"))
_SPOILT = "utf-8?"
"""UTF-8 but for a few bytes."""
_BOMS = (  # UTF-32's begins like UTF-16's
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_CHARSETS = (
    "cp1252",
    "cp1250",
    "cp1251",
    "cp1253",
    "koi8_r",
    "shift_jis",
    "euc_jp",
    "gb18030",
    "big5",
    "euc_kr",
)


class Unreadable(Exception):
    """A file is passed over, for the reason that the text gives; the others are read."""


def kind(path: Path) -> str:
    """The suffix that decides how a file is read: 'a.jsonl.gz' is read as '.jsonl'."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in PACKED:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def find(paths: Iterable[Path], passed_over: list[str], left_out: Counter[str] | None = None) -> list[Path]:
    """The files that these name, and those of known kinds in the folders that they name; each once.

    What cannot be looked into goes to `passed_over`; what else of a folder is not read is counted in `left_out`, by
    what it is. Raises CorpusError for what is not there.
    """
    found: dict[Path, Path] = {}
    left_out = Counter() if left_out is None else left_out
    for path in paths:
        if os.path.isdir(path):
            for file in _walk(path, passed_over, left_out):
                found.setdefault(file.resolve(), file)
        elif os.path.isfile(path):
            found.setdefault(path.resolve(), path)
        else:
            raise CorpusError(f"{path}: {_why_none(path)}")
    return list(found.values())


def _why_none(path: Path) -> str:
    try:
        path.stat()
    except FileNotFoundError:
        return "there is no such file or folder. Check the path."
    except OSError as error:
        return f"{error.strerror}. Make it readable, or name another."
    return "this is neither a file nor a folder. Give files or folders of text."


def _walk(folder: Path, passed_over: list[str], left_out: Counter[str]) -> Iterator[Path]:
    def closed(error: OSError) -> None:
        passed_over.append(f"{error.filename}: {error.strerror}")

    def wanted(name: str, kind: str) -> bool:
        left = "hidden" if name[0] == "." else "of libraries" if name in PASSED_OVER else ""
        left_out[f"{kind} {left}" if left == "of libraries" else f"{left} {kind}"] += bool(left)
        return not left

    for here, folders, names in os.walk(folder, onerror=closed):
        folders[:] = sorted(name for name in folders if wanted(name, "folders"))
        for name in sorted(names):
            file = Path(here, name)
            if not wanted(name, "files") or not os.path.isfile(file):
                continue
            if kind(file) in KNOWN:
                yield file
            else:
                left_out[f"{kind(file)} files" if kind(file) else "files without a suffix"] += 1


@contextmanager
def opened(path: Path, raw: BinaryIO, notes: list[str]) -> Iterator[IO[str]]:
    """The characters of an open file, out of gzip or xz where it is packed. Lines end in '\\n', whatever they ended in.

    Says in `notes` how a file was read that is not UTF-8. Raises Unreadable for what is no text.
    """
    try:
        charset = _charset(_unpacked(path, raw))
        raw.seek(0)
        if charset != "utf-8":
            notes.append(
                f"{path}: " + ("a few bytes are not UTF-8" if charset == _SPOILT else f"read as {charset}")
            )
        text = io.TextIOWrapper(_unpacked(path, raw), charset.rstrip("?"), errors="replace")
        try:
            yield text
        finally:
            text.detach()
    except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        raise Unreadable(f"no whole {path.suffix.lower()[1:]} file ({error})") from error


def _unpacked(path: Path, raw: BinaryIO) -> BinaryIO:
    match path.suffix.lower():
        case ".gz":
            return cast(BinaryIO, gzip.GzipFile(fileobj=raw))
        case ".xz":
            return cast(BinaryIO, lzma.LZMAFile(raw))
    return raw


def _charset(stream: BinaryIO) -> str:
    """What all of a stream's bytes are written in."""
    beginning = stream.read(_CHUNK)
    for bom, charset in _BOMS:
        if beginning.startswith(bom):
            return charset
    if _is_garbled(beginning):
        raise Unreadable("binary")
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    size = characters = bad = 0
    sample, chunk = b"", beginning
    while chunk:
        if b"\0" in chunk:
            raise Unreadable("binary")
        text = decoder.decode(chunk)
        spoilt = max(text.count("\ufffd") - chunk.count(b"\xef\xbf\xbd"), 0)
        sample = sample or (chunk if spoilt else b"")
        bad += spoilt
        size += len(chunk)
        characters += len(text)
        chunk = stream.read(_CHUNK)
    if not bad:
        return "utf-8"
    if size - characters > bad and size > _FEW * bad:  # characters of several bytes are no accident
        return _SPOILT
    return _guess(sample)


def _is_garbled(beginning: bytes) -> bool:
    control = len(beginning) - len(beginning.translate(None, _CONTROL))
    return control * _GARBLED > len(beginning)


def _guess(sample: bytes) -> str:
    """The charset of bytes that are not UTF-8: by the letters that they would be, else Western European."""
    try:
        from charset_normalizer import from_bytes
    except ImportError:
        return "cp1252"
    best = from_bytes(sample[: 1 << 16], cp_isolation=list(_CHARSETS)).best()
    if best is None or "cp1252" in best.could_be_from_charset:  # as likely as any other
        return "cp1252"
    return best.encoding
