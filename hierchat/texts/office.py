"""Read Word documents, EPUB books and HTML pages as Markdown. pdf.py calls it, in its bounded process."""

import io
import zipfile
from collections.abc import Iterator
from posixpath import dirname, join, normpath
from urllib.parse import unquote
from xml.etree import ElementTree

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
