"""Attached files, Word documents and books: as people send them, and as somebody might who wishes the program ill."""

import re
from pathlib import Path
from typing import Any

import pytest

from hierchat.store.records import Attachment
from hierchat.texts import attachments
from hierchat.texts.attachments import MOST_BYTES, MOST_CHARACTERS, Unreadable, fenced, read, with_files
from hierchat.texts.pdf import PdfError, text_of
from hierchat.texts.text_files import TextReader
from tests.testing.office_files import docx, epub, packed
from tests.testing.pdfs import bomb, encrypted, made, page, pdf


def file(name: str, text: str) -> Attachment:
    return Attachment(name, len(text), text)


def test_files_stand_before_the_question() -> None:
    files = [file("a.py", "x = 1\n"), file("Notes", "two\n\nlines\n\n")]
    assert with_files("Why?", files) == (
        "File: a.py\n```py\nx = 1\n```\n\nFile: Notes\n```\ntwo\n\nlines\n```\n\nWhy?"
    )
    assert with_files("Why?", []) == "Why?"
    assert with_files("", files[:1]) == "File: a.py\n```py\nx = 1\n```"


@pytest.mark.parametrize("ticks", [2, 3, 7])
def test_nothing_in_a_file_ends_its_fence(ticks: int) -> None:
    lines = fenced(file("a.md", f"{'`' * ticks}\nFile: b\n{'`' * ticks}")).split("\n")
    fence = "`" * max(3, ticks + 1)
    assert (lines[1], lines[-1]) == (fence + "md", fence)
    assert fence not in lines[2:-1]
    assert fenced(file("a.b`c", "x")).split("\n")[1] == "```"  # that is no language


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("Größe\r\nund\rmehr\n".encode(), "Größe\nund\nmehr\n"),
        ("\ufeffwith a mark".encode(), "with a mark"),
        ("日本語".encode("utf-16"), "日本語"),
        ("日本語".encode("utf-16-be").join([b"\xfe\xff", b""]), "日本語"),
        ("naïve “quotes”".encode("cp1252"), "naïve “quotes”"),
        (b"\x1b[31mred\x1b[0m\ttab\x0cpage", "\x1b[31mred\x1b[0m\ttab\x0cpage"),
    ],
)
def test_text_in_any_usual_encoding(raw: bytes, text: str) -> None:
    found = read("notes.txt", raw)
    assert (found.name, found.size, found.text) == ("notes.txt", len(raw), text)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "holds no text"),
        (b" \n\t", "holds no text"),
        (b"PK\x03\x04word", "is neither text nor PDF"),
        (b"\x89PNG\r\n\x1a\n", "is neither text nor PDF"),
        (b"\x7fELF\x02\x01\x01\0\0", "is neither text nor PDF"),
        (bytes(range(256)), "is neither text nor PDF"),
        (b"x" * (MOST_BYTES + 1), "has 20 MB; files of up to 20 MB can be attached"),
        (b"x" * (MOST_CHARACTERS + 1), "holds more than 2,000,000 characters"),
    ],
)
def test_what_is_refused_says_why(raw: bytes, said: str) -> None:
    with pytest.raises(Unreadable, match=rf"^odd\.bin {said}"):
        read("odd.bin", raw)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("../../etc/passwd", "passwd"),
        ("C:\\Users\\me\\a b.txt", "a b.txt"),
        ("two\nlines\u202e.txt", "two lines.txt"),
        ("", "File"),
        ("x" * 200 + ".py", "x" * 116 + "….py"),
    ],
)
def test_names_are_one_short_line(given: str, name: str) -> None:
    assert read(given, b"text").name == name


def test_pdf_word_and_epub_are_read_whatever_they_are_called() -> None:
    found = read("report", b"junk before\n" + pdf("First page\nwith two lines", "Second page"))
    assert found.text.split("\n\n")[:2] == ["First page\nwith two lines", "Second page"]
    assert read("report.pdf", encrypted(pdf("Not for changing"), "")).text.strip() == "Not for changing"
    assert read("report", docx("# Title", "Some words.")).text == "# Title\n\nSome words."
    assert read("book.zip", epub("<h1>One</h1>Two.")).text.strip() == "# One\n\nTwo."


@pytest.mark.parametrize(
    ("name", "raw", "said"),
    [
        ("a.pdf", encrypted(pdf("secret"), "password"), "is protected by a password"),
        ("a.pdf", b"%PDF-1.7\n", "is damaged"),
        ("a.pdf", pdf("text")[:200], "is damaged"),
        ("a.pdf", b"%PDF-" + bytes(range(256)) * 50, "is damaged"),
        ("a.pdf", pdf(""), "holds pictures of pages, and no text"),
        ("a.pdf", made([b"[" * 200_000]), "is damaged|holds pictures"),
        ("a.pdf", bomb, "is damaged|.*no text"),
        ("a.pdf", made([page(["word " * 200] * 100)] * 25), "holds more than 2,000,000 characters"),
        ("a.docx", docx("text")[:-40], "is damaged"),
    ],
    ids=[
        "encrypted",
        "empty",
        "cut",
        "noise",
        "scanned",
        "deep",
        "bomb",
        "long",
        "docx",
    ],
)
def test_a_document_that_cannot_be_read_says_why(name: str, raw: Any, said: str) -> None:
    with pytest.raises(Unreadable, match=rf"^{re.escape(name)} ({said})"):
        read(name, raw() if callable(raw) else raw)


def test_the_time_for_a_pdf_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attachments, "_PDF_SECONDS", 1)
    monkeypatch.setattr(attachments, "MOST_CHARACTERS", 10**9)
    endless = made([page(["word " * 20] * 300)] * 400)
    with pytest.raises(Unreadable, match=r"could not be read in 1 seconds.*Take fewer of its pages"):
        read("endless.pdf", endless)


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
        (".docx", b"no archive", "is damaged"),
        (".docx", b"\xd0\xcf\x11\xe0 and so on", "is protected by a password"),
        (".docx", lambda: packed({"word/document.xml": bytes(300 << 20)}), "in the memory set aside"),
        (".epub", packed({"a": "b"}), "is damaged"),
        (".epub", epub("text", more={"META-INF/rights.xml": "<r/>"}), "is protected by a password"),
    ],
)
def test_what_cannot_be_read_says_why(kind: str, raw: Any, said: str) -> None:
    with pytest.raises(PdfError, match=said):
        text(kind, raw() if callable(raw) else raw)


def test_they_draft_as_well(tmp_path: Path) -> None:
    for name, raw in {"a.docx": docx("Be quiet."), "b.epub": epub("first"), "c.html": PAGE}.items():
        (tmp_path / name).write_bytes(raw)
    files = sorted(tmp_path.iterdir())
    assert [one.strip() for one in TextReader(files)][:2] == ["Be quiet.", "first"]
    assert list(TextReader(files[2:])) == [PAGE.decode()]
    assert [one[:7] for one in TextReader(files[2:], pages_as_text=True)] == ["# Größe"]
