"""Word documents, EPUB books and HTML pages: as Markdown, and as somebody might who wishes the program ill."""

from __future__ import annotations

from pathlib import Path

import pytest

from hierchat.texts.pdf import PdfError, text_of
from hierchat.texts.text_files import Reader
from tests.testing.office_files import docx, epub, packed

PAGE = (
    b"<html><head><title>T</title><style>p {}</style></head><body><h1>Gr\xc3\xb6\xc3\x9fe</h1><script>x()</script>"
    b"<p>A <b>bold</b> <a href='http://x'>link</a>, snake_case</p><ul><li>one</li></ul></body></html>"
)


def text(kind: str, raw: bytes, most: int = 1_000) -> str:
    return text_of(raw, most, 30, kind)


def test_each_kind_becomes_markdown() -> None:
    assert text(".docx", docx("# Rules", "Be quiet.", "# Pets", "None &lt;b&gt;.")) == (
        "# Rules\n\nBe quiet.\n\n# Pets\n\nNone <b>."
    )
    assert text(".epub", epub("<h1>One</h1><p>first</p>", "<h2>Two</h2>second")) == (
        "# One\n\nfirst\n\n## Two\n\nsecond\n\n"
    )
    assert text(".html", PAGE) == "# Größe\n\nA **bold** link, snake_case\n\n* one"
    assert text(".html", PAGE, 7) == "# Größe"[:7]


@pytest.mark.parametrize(
    ("kind", "raw", "said"),
    [
        (".docx", docx("text")[:300], "is damaged"),
        (".docx", b"no archive", "is damaged"),
        (".docx", b"\xd0\xcf\x11\xe0 and so on", "is protected by a password"),
        (".docx", packed({"word/document.xml": b"0" * (300 << 20)}), "in the memory set aside"),
        (".epub", packed({"a": "b"}), "is damaged"),
        (".epub", epub("text", more={"META-INF/rights.xml": "<r/>"}), "is protected by a password"),
        (".epub", epub("text", more={"bomb": b"0" * (300 << 20)}), "in the memory set aside"),
    ],
)
def test_what_cannot_be_read_says_why(kind: str, raw: bytes, said: str) -> None:
    with pytest.raises(PdfError, match=said):
        text(kind, raw)


def test_they_draft_as_well(tmp_path: Path) -> None:
    for name, raw in {"a.docx": docx("Be quiet."), "b.epub": epub("first"), "c.html": PAGE}.items():
        (tmp_path / name).write_bytes(raw)
    files = sorted(tmp_path.iterdir())
    assert [one.strip() for one in Reader(files)][:2] == ["Be quiet.", "first"]
    assert list(Reader(files[2:])) == [PAGE.decode()]
    assert [one[:7] for one in Reader(files[2:], pages_as_text=True)] == ["# Größe"]
