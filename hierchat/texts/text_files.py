"""Find the files of a corpus that can be read, and decode their bytes. A file is never held whole in memory."""

import codecs
import gzip
import io
import json
import lzma
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from charset_normalizer import from_bytes
from charset_normalizer.utils import identify_sig_or_bom

from hierchat.models.cache import size_of
from hierchat.texts.pdf import KINDS, PAGE, PdfError, text_of


class CorpusError(Exception):
    """Raised if a corpus cannot be built, found or removed; nothing was changed."""


_TEXT = (
    ".txt .text .md .markdown .rst .adoc .tex .org .html .htm"
    " .py .pyi .js .mjs .jsx .ts .tsx .java .kt .scala .c .h .cc .cpp .cxx .hpp .cs .go .rs .swift .rb .php .pl .lua .r"
    " .jl .hs .ml .ex .exs .erl .clj .dart .sh .bash .zsh .ps1 .bat .sql .css .scss .vue .svelte .xml .yaml .yml .toml"
    " .ini .cfg .cmake .gradle .proto .tf .vim .el .lisp .f90 .m"
)
LINES = frozenset((".jsonl", ".ndjson"))
PDFS = frozenset((".pdf", ".docx", ".epub"))
"""What pdf.py reads: of how much text they hold, their size tells nothing."""
PACKED = (".gz", ".xz")
KNOWN = LINES | PDFS | {".json"} | set(_TEXT.split())
"""What is read of a folder; a file that is named is read whatever it is called."""
PASSED_OVER = frozenset(("node_modules", "__pycache__", "venv", "site-packages"))
"""Folders that nobody wrote, beside the hidden ones."""

LARGEST_UNPACKED = 1 << 32
"""Bytes of a packed file once it is unpacked: a small one may unpack to no end."""
_CHUNK = 1 << 20
_FEW = 100
"""Bytes per bad one from which a text is UTF-8 with a few bytes spoilt, rather than another charset."""
_TELLING = 20
"""Bad bytes from which on they tell the charset."""
_GARBLED = 10
"""Bytes per control character up to which a file is binary."""
_CONTROL = bytes(set(range(32)) - set(b"\t\n\r\f\x1b"))
_CHARSETS = [
    "cp1252", "cp1250", "cp1251", "cp1253", "koi8_r", "shift_jis", "euc_jp", "gb18030", "big5", "euc_kr",
]  # fmt: skip


class SkippedFile(Exception):
    """Raised to pass a file over, for the reason that the text gives; the others are read."""


def kind(path: Path) -> str:
    """Return the suffix that decides how a file is read: '.jsonl' for 'a.jsonl.gz'."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in PACKED:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def named_path(said: str) -> Path:
    """Return the file or folder at the path that somebody typed. Raises CorpusError if there is none."""
    path = Path(said.strip().strip("\"'")).expanduser()
    if not said.strip() or not path.is_absolute():
        raise CorpusError("Type the whole path of a file or folder, such as ~/notes or /home/you/code.")
    if not path.exists():
        raise CorpusError(f"There is no file or folder {path} on this machine. Check the path.")
    return path


def find(paths: Iterable[Path], passed_over: list[str]) -> list[Path]:
    """Return the files of known kinds in paths, each once; unreadable ones go to `passed_over`. Raises CorpusError."""
    found: dict[Path, Path] = {}
    for path in paths:
        if os.path.isdir(path):
            for file in _walk(path, passed_over):
                found.setdefault(file.resolve(), file)
        elif os.path.isfile(path):
            found.setdefault(path.resolve(), path)
        else:
            why = "this is neither a file nor a folder. Give files or folders of text."
            try:
                path.stat()
            except FileNotFoundError:
                why = "there is no such file or folder. Check the path."
            except OSError as error:
                why = f"{error.strerror}. Make it readable, or name another."
            raise CorpusError(f"{path}: {why}")
    return list(found.values())


def _walk(folder: Path, passed_over: list[str]) -> Iterator[Path]:
    def closed(error: OSError) -> None:
        passed_over.append(f"{error.filename}: {error.strerror}")

    for here, folders, names in os.walk(folder, onerror=closed):
        folders[:] = sorted(name for name in folders if name[0] != "." and name not in PASSED_OVER)
        for name in sorted(names):
            file = Path(here, name)
            if name[0] != "." and kind(file) in KNOWN and os.path.isfile(file):
                yield file


@contextmanager
def opened(path: Path, raw: BinaryIO, notes: list[str]) -> Iterator[IO[str]]:
    """Yield the characters of an open file, unpacked from gzip or xz. Lines end in '\\n', whatever they ended
    in. Adds to `notes` how a file was read that is not UTF-8. Raises SkippedFile for what is no text."""
    try:
        charset, spoilt = charset_of(
            _unpacked(path, raw), LARGEST_UNPACKED if path.suffix.lower() in PACKED else None
        )
        raw.seek(0)
        if spoilt:
            notes.append(f"{path}: a few bytes are not UTF-8")
        elif charset != "utf-8":
            notes.append(f"{path}: read as {charset}")
        text = io.TextIOWrapper(_unpacked(path, raw), charset, errors="replace")
        try:
            yield text
        finally:
            text.detach()
    except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        raise SkippedFile(f"no whole {path.suffix.lower()[1:]} file ({error})") from error


def _unpacked(path: Path, raw: BinaryIO) -> BinaryIO:
    match path.suffix.lower():
        case ".gz":
            return cast(BinaryIO, gzip.GzipFile(fileobj=raw))
        case ".xz":
            return cast(BinaryIO, lzma.LZMAFile(raw))
    return raw


def charset_of(stream: BinaryIO, most: int | None = None) -> tuple[str, bool]:
    """Return the charset of a stream, all of which is read, and whether it is that but for a few bytes. Raises
    SkippedFile if it is binary, or has more than `most` bytes."""
    beginning = stream.read(_CHUNK)
    if marked := identify_sig_or_bom(beginning)[0]:
        return "utf-8-sig" if marked == "utf_8" else marked.replace("_", "-"), False
    control = len(beginning) - len(beginning.translate(None, _CONTROL))
    if control * _GARBLED > len(beginning):
        raise SkippedFile("binary")
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    size = characters = bad = 0
    sample, chunk = b"", beginning
    while chunk:
        if b"\0" in chunk:
            raise SkippedFile("binary")
        text = decoder.decode(chunk)
        spoilt = max(text.count("\ufffd") - chunk.count(b"\xef\xbf\xbd"), 0)
        sample = sample or (chunk if spoilt else b"")
        bad += spoilt
        size += len(chunk)
        if most is not None and size > most:
            raise SkippedFile(f"it unpacks to more than {most >> 20:,} MB; unpack it and split it")
        characters += len(text)
        chunk = stream.read(_CHUNK)
    if not bad or (
        size - characters > bad and size > _FEW * bad
    ):  # characters of several bytes are no accident
        return "utf-8", bool(bad)
    # By the letters that the bytes would be, if there are enough to tell, else Western European
    best = from_bytes(sample[: 1 << 16], cp_isolation=_CHARSETS).best() if bad > _TELLING else None
    if best is None or "cp1252" in best.could_be_from_charset:
        return "cp1252", False
    return best.encoding, False


# What of a JSON value is text: fields that hold text, and conversations in the forms that are about.

TEXT = ("text", "content", "reply", "response", "output", "completion", "answer")
TALK = ("messages", "conversations", "conversation", "turns", "dialogue", "chat_messages")
MODEL = frozenset(("assistant", "gpt", "chatgpt", "model", "bot", "ai"))
"""Roles of a model: it is a model that the corpus drafts for."""
LEAST = 40
"""Characters of a string that counts as text though no name says so."""


def texts_of(value: Any) -> Iterator[str]:
    """Yield all texts in a JSON value; of a conversation the model's part, or all of it if nobody is the model."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        yield from _listed(value)
    elif isinstance(value, dict):
        talks = [value[name] for name in TALK if isinstance(value.get(name), list)]
        fields = [value[name] for name in TEXT if isinstance(value.get(name), str)]
        if isinstance(mapping := value.get("mapping"), dict):  # ChatGPT's export
            nodes = [node.get("message") for node in mapping.values() if isinstance(node, dict)]
            yield from _said([node for node in nodes if isinstance(node, dict)])
        elif talks or fields:
            for talk in talks:
                yield from _listed(talk)
            yield from fields
        else:
            yield from _long(value)


def _listed(values: list[Any]) -> Iterator[str]:
    if any(isinstance(value, dict) and _role(value) for value in values):
        yield from _said([value for value in values if isinstance(value, dict)])
    else:
        for value in values:
            yield from texts_of(value)


def _said(messages: list[dict[str, Any]]) -> Iterator[str]:
    replies = [message for message in messages if _role(message) in MODEL]
    for message in replies or messages:
        content = message.get("content", message.get("value", message.get("text")))
        if isinstance(content, dict):
            content = content.get("parts")
        parts = content if isinstance(content, list) else [content]
        for part in parts:  # the others are images and calls of tools
            text = part.get("text") if isinstance(part, dict) else part
            if isinstance(text, str):
                yield text


def _role(message: dict[str, Any]) -> str:
    author = message.get("author")
    role = message.get("role") or message.get("from") or message.get("sender")
    if role is None and isinstance(author, dict):
        role = author.get("role")
    return role.lower() if isinstance(role, str) else ""


def _long(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        if len(value) >= LEAST:
            yield value
    elif isinstance(value, (list, dict)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _long(inner) if not isinstance(inner, dict) else texts_of(inner)


# The texts of files: plain text in pieces, and out of JSON and PDF what holds text. Nothing but a
# PDF is held whole.

PIECE = 1 << 18
"""Characters of a text at most: what is longer becomes several."""
LARGEST_VALUE = 1 << 28
"""Characters of one JSON value at most."""
LARGEST_PDF = 1 << 28
"""Bytes of a PDF at most."""
_PDF_CHARACTERS, _PDF_SECONDS = 1 << 26, 120
_SPACE = re.compile(r"[\s,]*")


class TextReader:
    """Iterates over the texts of files, and records how it went. A file that cannot be read stops nothing."""

    def __init__(
        self, files: Iterable[Path], passed_over: Iterable[str] = (), *, pages_as_text: bool = False
    ) -> None:
        """Prepare; `pages_as_text`: HTML becomes what a reader sees of it; else it stays as it was written."""
        self.files = list(files)
        self._pages_as_text = pages_as_text
        self.total = sum(size_of(file) for file in self.files)
        self.done = 0
        """Bytes read, of `total`."""
        self.passed_over = list(passed_over)
        """Files that were not read, or not to their end, with the reason."""
        self.notes: list[str] = []
        """Files that were read otherwise than as UTF-8."""

    def __iter__(self) -> Iterator[str]:
        before = 0
        for file in self.files:
            size = size_of(file)
            try:
                with file.open("rb") as raw:
                    for text in self._texts(file, raw):
                        self.done = before + min(raw.tell(), size)
                        yield from (piece for piece in pieces(text) if not piece.isspace())
            except SkippedFile as reason:
                self.passed_over.append(f"{file}: {reason}")
            except OSError as error:
                self.passed_over.append(f"{file}: {error.strerror or error}")
            before += size
            self.done = before

    def _texts(self, file: Path, raw: BinaryIO) -> Iterator[str]:
        if kind(file) in PDFS or (self._pages_as_text and kind(file) in KINDS):
            text = _converted(kind(file), raw)
            yield text if self._pages_as_text else text.replace(PAGE, "")
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


def pieces(text: str, most: int = PIECE) -> Iterator[str]:
    """Cut a text into pieces of at most `most` characters for the tokenizer, between lines or words if it has any."""
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode("utf-8")  # JSON may hold halves of surrogate pairs
    while len(text) > most:
        end = text.rfind("\n", most // 2, most) + 1 or text.rfind(" ", most // 2, most) + 1 or most
        yield text[:end]
        text = text[end:]
    if text:
        yield text


def _blocks(stream: IO[str]) -> Iterator[str]:
    block = stream.read(PIECE)
    while more := stream.read(PIECE):
        end = block.rfind("\n") + 1 or len(block)
        yield block[:end]
        block = block[end:] + more
    yield block


def _values(stream: IO[str]) -> Iterator[Any]:
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
            raise SkippedFile("its JSON is nested too deep") from None
        except ValueError as error:
            text, at = text[at:], 0
            if len(text) > LARGEST_VALUE:
                raise SkippedFile(f"one JSON value of more than {LARGEST_VALUE >> 20} MB; split it") from None
            # Twice as much each time, so that a large value is not parsed often
            if more := stream.read(max(PIECE, len(text))):
                text += more
            elif text or inside:
                raise SkippedFile(f"no whole JSON ({error})") from None
            else:
                return
        else:
            yield value
            at = end


def _converted(kind: str, raw: BinaryIO) -> str:
    held = raw.read(LARGEST_PDF + 1)
    if len(held) > LARGEST_PDF:
        raise SkippedFile(f"a {kind[1:].upper()} file of more than {LARGEST_PDF >> 20} MB; split it")
    try:
        return text_of(held, _PDF_CHARACTERS, _PDF_SECONDS, kind)
    except PdfError as error:
        raise SkippedFile(f"it {error}".rstrip(".")) from error
