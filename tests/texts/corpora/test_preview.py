"""What is said of files and folders before they are added."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hierchat.texts.previews import preview, sample
from hierchat.texts.text_files import CorpusError, Reader
from tests.testing.pdfs import encrypted, pdf


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """A folder of texts, and of other things."""
    folder = tmp_path / "notes"
    for inner in ("deep", ".git", "node_modules"):
        (folder / inner).mkdir(parents=True)
    (folder / "a.md").write_text("x" * 1000)
    (folder / "deep" / "b.py").write_text("y" * 3000)
    (folder / "report.pdf").write_bytes(pdf("All of the report"))
    for name in ("one.png", "two.png", ".hidden", ".git/config", "node_modules/lib.js", "Makefile"):
        (folder / name).write_text("not read")
    return folder


def test_what_is_read_and_what_is_not(notes: Path, tokenizer: Any) -> None:
    found = preview([notes], tokenizer)
    assert (found.files, found.closed, found.passed_over) == (3, 1, ())
    assert found.tokens == 4000  # a byte each
    assert found.size == 4000 + (notes / "report.pdf").stat().st_size
    assert found.left_out == {
        ".png files": 2,
        "hidden folders": 1,
        "folders of libraries": 1,
        "hidden files": 1,
        "files without a suffix": 1,
    }
    with pytest.raises(CorpusError, match="no such file or folder"):
        preview([notes / "none"], tokenizer)


def test_tokens_are_roughly_those_that_come(tmp_path: Path, tokenizer: Any) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(40):
        (folder / f"{number}.txt").write_text("wörter " * (100 + number))
    lines = [json.dumps({"text": "some text " * 20, "id": number}) for number in range(300)]
    (folder / "chats.jsonl").write_text("\n".join(lines))
    found = preview([folder], tokenizer)
    texts = Reader(sorted(folder.iterdir()))
    tokens = sum(len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts)
    assert 0.7 * tokens < found.tokens < 1.4 * tokens


def test_a_sample_is_of_all_files_and_of_no_closed_one(tmp_path: Path, notes: Path, tokenizer: Any) -> None:
    assert sum(map(len, sample([notes], tokenizer, 10_000))) == 4000
    assert sum(map(len, sample([notes], tokenizer, 700))) == 700
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(100):
        (folder / f"{number:02}.txt").write_text(f"{number:02}" * 500)
    read = [tokenizer.decode(ids[:2]) for ids in sample([folder], tokenizer, 5_000)]
    assert read == ["00", "05", "10", "15", "20"]


def test_a_pdf_is_read_and_one_that_cannot_be_says_why(tmp_path: Path) -> None:
    (tmp_path / "open.pdf").write_bytes(pdf("First page", "Second page"))
    (tmp_path / "closed.pdf").write_bytes(encrypted(pdf("secret"), "password"))
    reader = Reader([tmp_path / "open.pdf", tmp_path / "closed.pdf"])
    (text,) = reader
    assert text.split() == ["First", "page", "Second", "page"]
    (reason,) = reader.passed_over
    assert "closed.pdf: it is protected by a password" in reason
