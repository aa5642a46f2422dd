"""Attached files as people send them, and as somebody might who wishes the program ill."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from hierchat.store.records import Attachment
from hierchat.texts import attachments
from hierchat.texts import pdf as reading
from hierchat.texts.attachments import MOST_BYTES, MOST_CHARACTERS, Unreadable, fenced, read, with_files
from tests.testing.office_files import docx, epub
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


def test_a_name_that_is_no_language() -> None:
    assert fenced(file("a.b`c", "x")).split("\n")[1] == "```"


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
        (
            b"PK\x03\x04word",
            "is an Office document or an archive. Save what you need of it as PDF or as text.",
        ),
        (b"\x89PNG\r\n\x1a\n", "is a picture"),
        (b"\x7fELF\x02\x01\x01\0\0", "is neither text nor PDF"),
        (bytes(range(256)), "is neither text nor PDF"),
        (b"x" * (MOST_BYTES + 1), "has 20 MB; files of up to 20 MB can be attached"),
        (b"x" * (MOST_CHARACTERS + 1), "holds more than 2,000,000 characters"),
        (b"\xff\xfe\x00", "is neither text nor PDF"),
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


def test_a_pdf_page_by_page_whatever_it_is_called() -> None:
    found = read("report", b"junk before\n" + pdf("First page\nwith two lines", "Second page"))
    assert found.text.split("\n\n")[:2] == ["First page\nwith two lines", "Second page"]
    assert read("report.pdf", encrypted(pdf("Not for changing"), "")).text.strip() == "Not for changing"


def test_word_and_epub_are_read_whatever_they_are_called() -> None:
    assert read("report", docx("# Title", "Some words.")).text == "# Title\n\nSome words."
    assert read("book.zip", epub("<h1>One</h1>Two.")).text.strip() == "# One\n\nTwo."
    with pytest.raises(Unreadable, match=r"^a\.docx is damaged"):
        read("a.docx", docx("text")[:-40])
    with pytest.raises(Unreadable, match=r"^old\.doc is an Office document. Save it as \.docx"):
        read("old.doc", b"\xd0\xcf\x11\xe0" + bytes(600))


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (encrypted(pdf("secret"), "password"), "is protected by a password"),
        (b"%PDF-1.7\n", "is damaged"),
        (pdf("text")[:200], "is damaged"),
        (b"%PDF-" + bytes(range(256)) * 50, "is damaged"),
        (pdf(""), "holds pictures of pages, and no text"),
        (made([page(["x"])], kids="2 0 R 2 0 R"), "is damaged|holds pictures"),
        (made([b"[" * 200_000]), "is damaged|holds pictures"),
        (made([page(["x"])], "/Filter /FlateDecode"), "is damaged|holds pictures"),
    ],
    ids=["encrypted", "empty", "cut", "noise", "scanned", "circle", "deep", "not packed"],
)
def test_a_pdf_that_cannot_be_read_says_why(raw: bytes, said: str) -> None:
    with pytest.raises(Unreadable, match=rf"^a\.pdf ({said})"):
        read("a.pdf", raw)


def test_a_pdf_that_unpacks_to_gigabytes_is_refused() -> None:
    raw = bomb()
    assert len(raw) < 100_000
    with pytest.raises(Unreadable, match=r"is damaged|no text"):
        read("bomb.pdf", raw)


def test_a_pdf_of_more_text_than_anybody_reads() -> None:
    lines = ["word " * 200] * 100
    with pytest.raises(Unreadable, match="holds more than 2,000,000 characters"):
        read("long.pdf", made([page(lines)] * 25))


def test_a_pdf_that_takes_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*given: Any, **named: Any) -> Any:
        raise subprocess.TimeoutExpired("python", named["timeout"])

    monkeypatch.setattr(reading.subprocess, "run", hang)
    with pytest.raises(Unreadable, match="could not be read in 60 seconds"):
        read("slow.pdf", pdf("text"))


def test_the_time_for_a_pdf_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attachments, "_PDF_SECONDS", 1)
    endless = made([page(["word " * 20] * 300)] * 400)
    monkeypatch.setattr(attachments, "MOST_CHARACTERS", 10**9)
    with pytest.raises(Unreadable, match="Take fewer of its pages"):
        read("endless.pdf", endless)
