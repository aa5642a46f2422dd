"""Read PDF, Word documents, EPUB books and HTML pages in a process with bounds of memory and time."""

import io
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from posixpath import dirname, join, normpath
from urllib.parse import unquote
from xml.etree import ElementTree

from hierchat.config import process_environment

_ENCRYPTED, _BROKEN, _TOO_MUCH = 3, 4, 5
"""What the process exits with where there is no text."""
_MEMORY = 2**30
PAGE = "\f"
"""Stands behind each page of a PDF."""


class PdfError(ValueError):
    """Raised if a PDF cannot be read. The text goes on behind its name, and says what to do."""


def text_of(raw: bytes, most: int, seconds: int, kind: str = ".pdf") -> str:
    """Return up to `most` characters of a file of this `kind` (KINDS), in up to `seconds`. Raises PdfError."""
    too_much = PdfError(
        f"could not be read in {seconds} seconds and in the memory set aside. Take fewer of its pages."
    )
    try:
        done = subprocess.run(
            [sys.executable, "-m", "hierchat.texts.pdf", str(most), str(seconds), kind],
            input=raw,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=process_environment(),
            timeout=seconds,
        )
    except subprocess.TimeoutExpired as error:
        raise too_much from error
    if done.returncode == _ENCRYPTED:
        raise PdfError("is protected by a password. Save a copy without one.")
    if done.returncode == _TOO_MUCH or done.returncode < 0:  # killed at a bound
        raise too_much
    if done.returncode != 0:
        raise PdfError("is damaged, or not of the kind that its name tells. Save it anew, or as PDF.")
    text = done.stdout.decode("utf-8", "replace")
    if not text.strip() and kind == ".pdf":
        raise PdfError("holds pictures of pages, and no text. A program for text recognition can add it.")
    return text


def _main(most: int, seconds: int, kind: str) -> int:
    """Write up to `most` characters of the file in standard input to standard output."""
    with suppress(ImportError, ValueError, OSError):  # Windows has neither
        import resource

        os.nice(10)  # replies go first
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    left, read = most, _pages if kind == ".pdf" else partial(markdown_of, kind)
    try:
        for text in read(sys.stdin.buffer.read()):
            sys.stdout.buffer.write(text[:left].encode("utf-8", "replace"))
            left -= len(text)
            if left <= 0:
                break
    except Protected:
        return _ENCRYPTED
    except MemoryError:
        return _TOO_MUCH
    except Exception:  # the libraries raise whatever a broken file leads them to
        return _BROKEN
    return 0


def _pages(raw: bytes) -> Iterator[str]:
    from pypdf import PdfReader
    from pypdf.errors import DependencyError, FileNotDecryptedError

    try:
        reader = PdfReader(io.BytesIO(raw))
        # Many files have no password for reading, only one for changing.
        if reader.is_encrypted and not reader.decrypt(""):
            raise Protected
        for page in reader.pages:
            yield f"{page.extract_text().rstrip()}\n\n{PAGE}"
    except (DependencyError, FileNotDecryptedError) as error:
        raise Protected from error


# Word, EPUB and HTML.
KINDS = frozenset((".docx", ".epub", ".html", ".htm"))
_MOST_UNPACKED = 1 << 28
"""Bytes of all that an archive holds: a small one may unpack to no end."""
OLE = b"\xd0\xcf\x11\xe0"
"""How a Word document begins that has a password, and how those of before 2007 do."""
_UNSEEN = ["script", "style", "template", "noscript", "svg", "head"]


class Protected(Exception):
    """Raised if a file has a password, or may be read by one program only."""


def markdown_of(kind: str, raw: bytes) -> Iterator[str]:
    """Yield the Markdown of a file in pieces. Raises Protected, MemoryError, and whatever a broken file leads to."""
    if kind == ".docx":
        if raw.startswith(OLE):
            raise Protected
        _opened(raw).close()
        import mammoth

        pictures = mammoth.images.img_element(lambda picture: {})
        yield _markdown(mammoth.convert_to_html(io.BytesIO(raw), convert_image=pictures).value)
    elif kind == ".epub":
        with _opened(raw) as book:
            if "META-INF/rights.xml" in book.namelist():
                raise Protected
            for chapter in _chapters(book):
                yield _markdown(book.read(chapter)) + "\n\n"
    else:
        yield _markdown(raw)


def _opened(raw: bytes) -> zipfile.ZipFile:
    archive = zipfile.ZipFile(io.BytesIO(raw))
    if sum(file.file_size for file in archive.infolist()) > _MOST_UNPACKED:
        raise MemoryError
    return archive


def _chapters(book: zipfile.ZipFile) -> Iterator[str]:
    container = ElementTree.fromstring(book.read("META-INF/container.xml"))
    package = next(root.attrib["full-path"] for root in container.iter() if root.tag.endswith("rootfile"))
    listed = ElementTree.fromstring(book.read(package))
    places = {item.get("id"): item.get("href", "") for item in listed.iterfind("{*}manifest/{*}item")}
    for page in listed.iterfind("{*}spine/{*}itemref"):
        name = normpath(join(dirname(package), unquote(places.get(page.get("idref"), ""))))
        if name in book.namelist():
            yield name


def _markdown(page: str | bytes) -> str:
    from bs4 import BeautifulSoup
    from markdownify import ATX, MarkdownConverter

    tree = BeautifulSoup(page, "html.parser")
    for unseen in tree(_UNSEEN):
        unseen.decompose()
    converter = MarkdownConverter(
        heading_style=ATX,
        strip=["a", "img"],
        escape_asterisks=False,
        escape_underscores=False,
        escape_misc=False,
    )
    text: str = converter.convert_soup(tree)
    return text.strip()


if __name__ == "__main__":
    sys.exit(_main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
