"""Files of every kind, whole and broken, and what of a JSON value is text."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import random
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hierchat.texts import text_files
from hierchat.texts.text_files import CorpusError, Reader, find, texts_of


def read(path: Path, content: bytes | str) -> tuple[list[str], Reader]:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    reader = Reader([path])
    texts = list(reader)
    assert reader.done == reader.total == path.stat().st_size
    return texts, reader


@pytest.mark.parametrize(
    ("name", "content", "texts"),
    [
        ("a.txt", b"one\r\ntwo\nthree", ["one\ntwo\nthree"]),
        ("a.txt", b"\xef\xbb\xbfone", ["one"]),
        ("a.jsonl.xz", lzma.compress(b'{"text": "one"}\n"two"'), ["one", "two"]),
        ("a.jsonl", rb'{"text": "smile \ud83d!"}', ["smile ?!"]),
        ("a.json", b'{"data": [{"text": "one"}]}\n', ["one"]),
        ("a.json", b'{"text": "one"}\n{"text": "two"}', ["one", "two"]),
    ],
)
def test_a_whole_file_gives_its_texts(tmp_path: Path, name: str, content: bytes, texts: list[str]) -> None:
    assert read(tmp_path / name, content)[0] == texts


@pytest.mark.parametrize("name", ["a.txt", "a.md.gz"])
def test_a_long_text_comes_in_pieces_that_end_between_lines(tmp_path: Path, name: str) -> None:
    lines = [f"line {n} {'ä' * (n % 50)}" for n in range(30_000)]
    content = "\n".join(lines).encode()
    texts, _ = read(tmp_path / name, gzip.compress(content) if name.endswith("gz") else content)
    assert "".join(texts) == "\n".join(lines)
    assert len(texts) > 3
    assert all(text.endswith("\n") for text in texts[:-1])
    assert max(map(len, texts)) <= text_files.PIECE


def test_a_line_without_end_is_cut(tmp_path: Path) -> None:
    texts, _ = read(tmp_path / "a.txt", "x" * (3 * text_files.PIECE))
    assert [len(text) for text in texts] == [text_files.PIECE] * 3


@pytest.mark.parametrize(("name", "pack"), [("a.txt.gz", gzip.compress), ("a.txt.xz", lzma.compress)])
def test_a_small_file_that_unpacks_to_no_end_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, pack: Callable[[bytes], bytes]
) -> None:
    monkeypatch.setattr(text_files, "LARGEST_UNPACKED", 1 << 21)
    texts, reader = read(tmp_path / name, pack(b"all the same " * 1_000_000))
    assert texts == []
    assert "unpacks to more than 2 MB; unpack it and split it" in reader.passed_over[0]
    texts, reader = read(tmp_path / "b.txt", b"all the same " * 1_000_000)
    assert (len(texts) > 1, reader.passed_over) == (True, [])


def test_json_lines_without_the_broken_ones(tmp_path: Path) -> None:
    lines = ['{"text": "one"}', "", '{"text": "tw', '{"text": "three"}', "]"]
    texts, reader = read(tmp_path / "a.jsonl", "\n".join(lines))
    assert texts == ["one", "three"]
    assert reader.passed_over == [f"{tmp_path / 'a.jsonl'}: 2 lines not JSON"]


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("chunk", [7, 64, 1 << 18])
def test_a_json_list_is_read_element_by_element(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, indent: int | None
) -> None:
    monkeypatch.setattr(text_files, "PIECE", chunk)
    texts = [f"[{n}] " + "x" * (n * 7 % 5) for n in range(200)]
    monkeypatch.setattr(text_files, "_pieces", lambda text: [text])
    found, reader = read(tmp_path / "a.json", json.dumps([{"text": text} for text in texts], indent=indent))
    assert found == texts
    assert reader.passed_over == []


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('[{"text": "one"}, {"te', "no whole JSON"),
        ('[{"text": "one"}', "no whole JSON"),
        ('[{"text": "one"}, ' + "[" * 100_000, "nested too deep|no whole JSON"),
    ],
)
def test_broken_json_gives_what_stands_before(tmp_path: Path, content: str, reason: str) -> None:
    texts, reader = read(tmp_path / "a.json", content)
    assert texts == ["one"]
    assert re.search(reason, reader.passed_over[0])


def test_a_json_value_too_large_for_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_files, "LARGEST_VALUE", 1 << 19)
    texts, reader = read(tmp_path / "a.json", json.dumps(["one" * 5, "x" * (1 << 21)]))
    assert texts == ["one" * 5]
    assert "split it" in reader.passed_over[0]


@pytest.mark.parametrize(
    "content",
    [
        b"\x7fELF\x02\x01\x01\0\0\0",
        random.Random(0).randbytes(5000),
        b"text\n" * 400_000 + b"\0",
        bytes(range(1, 32)) * 9,
    ],
)
def test_binary_files_are_named(tmp_path: Path, content: bytes) -> None:
    texts, reader = read(tmp_path / "a.txt", content)
    assert texts == []
    assert reader.passed_over == [f"{tmp_path / 'a.txt'}: binary"]


@pytest.mark.parametrize(
    ("charset", "text"),
    [
        (
            "cp1252",
            "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. “Größe”, sagte er müde.\n",
        ),
        ("cp1251", "Съешь же ещё этих мягких французских булок, да выпей чаю. Так говорят в книгах.\n"),
        ("shift_jis", "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。\n"),
        ("utf-16", "Zwölf Boxkämpfer jagen Viktor.\n"),
    ],
)
def test_other_charsets_are_read_and_said(tmp_path: Path, charset: str, text: str) -> None:
    texts, reader = read(tmp_path / "a.txt", (text * 20).encode(charset))
    assert texts == [text * 20]
    assert reader.notes == [f"{tmp_path / 'a.txt'}: read as {charset}"]


def test_utf_8_with_a_byte_spoilt_stays_utf_8(tmp_path: Path) -> None:
    content = ("über Brücken gehen\n" * 100).encode() + b"\xff und weiter"
    texts, reader = read(tmp_path / "a.txt", content)
    assert texts[0].startswith("über Brücken")
    assert texts[0].endswith("\ufffd und weiter")
    assert reader.notes == [f"{tmp_path / 'a.txt'}: a few bytes are not UTF-8"]


@pytest.mark.parametrize("cut", [10, -3, None], ids=["begun", "cut off", "not packed"])
@pytest.mark.parametrize(("suffix", "compress"), [("gz", gzip.compress), ("xz", lzma.compress)])
def test_a_packed_file_cut_off_is_named(
    tmp_path: Path, suffix: str, compress: Callable[[bytes], bytes], cut: int | None
) -> None:
    packed = compress(b"one two three four\n" * 99)[:cut] if cut else b"plain"
    texts, reader = read(tmp_path / f"a.txt.{suffix}", packed)
    assert texts == []
    assert f"no whole {suffix} file" in reader.passed_over[0]


def test_parquet_without_pyarrow_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    _, reader = read(tmp_path / "a.parquet", b"PAR1")
    assert "pip install pyarrow" in reader.passed_over[0]


def test_a_folder_gives_its_known_files_once(tmp_path: Path) -> None:
    tmp_path = tmp_path / "corpus"
    tmp_path.mkdir()
    names = [
        "b.txt",
        "a.py",
        "deep/c.md",
        ".hidden/d.txt",
        "node_modules/e.js",
        "f.png",
        ".g.txt",
        "h.JSONL.gz",
    ]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    found = find([tmp_path / "b.txt", tmp_path, tmp_path / "f.png"], [])
    assert [str(file.relative_to(tmp_path)) for file in found] == [
        "b.txt",
        "a.py",
        "h.JSONL.gz",
        "deep/c.md",
        "f.png",
    ]


def test_what_is_not_there_and_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="there is no such file or folder"):
        find([tmp_path / "none"], [])
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CorpusError, match="neither a file nor a folder"):
        find([tmp_path / "pipe"], [])


def test_permission_denied_is_named(open_folder: Path, request: pytest.FixtureRequest) -> None:
    (open_folder / "shut").mkdir()
    (open_folder / "shut" / "b.txt").write_text("x")
    (open_folder / "a.txt").write_text("x")
    for path in (open_folder / "a.txt", open_folder / "shut"):
        path.chmod(0)
    request.getfixturevalue("powerless")
    passed_over: list[str] = []
    reader = Reader(find([open_folder], passed_over), passed_over)
    assert list(reader) == []
    assert [line.rsplit(": ")[1] for line in reader.passed_over] == ["Permission denied"] * 2
    with pytest.raises(CorpusError, match="Permission denied"):
        find([open_folder / "shut" / "b.txt"], [])


LONG = "a string of forty characters and some more"


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        ("bare", ["bare"]),
        ({"text": "a", "id": "x" * 90}, ["a"]),
        ({"prompt": "q", "response": "r"}, ["r"]),
        ({"instruction": "q", "input": "", "output": "r"}, ["r"]),
        ({"turns": ["one", "two"]}, ["one", "two"]),
        ({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "r"}]}, ["r"]),
        ({"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "r"}]}, ["r"]),
        ({"messages": [{"role": "user", "content": "q"}, {"role": "user", "content": "p"}]}, ["q", "p"]),
        ([{"role": "user", "content": "q"}, {"role": "Assistant", "content": "r"}], ["r"]),
        ({"messages": [{"role": "assistant", "content": None}]}, []),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "content": [{"type": "text", "text": "r"}, {"type": "image", "url": LONG}],
                    }
                ]
            },
            ["r"],
        ),
        (
            {
                "title": "talk",
                "mapping": {
                    "0": {"message": None},
                    "1": {"message": {"author": {"role": "user"}, "content": {"parts": ["q"]}}},
                    "2": {
                        "message": {
                            "author": {"role": "assistant"},
                            "content": {"parts": ["r", {"image": 1}]},
                        }
                    },
                },
            },
            ["r"],
        ),
        ({"chat_messages": [{"sender": "human", "text": "q"}, {"sender": "assistant", "text": "r"}]}, ["r"]),
        ({"deep": {"er": [{"note": LONG}, "short"]}, "n": 1}, [LONG]),
        ({"data": [{"reply": "r"}]}, ["r"]),
        (7, []),
    ],
)
def test_texts_of_a_value(value: Any, texts: list[str]) -> None:
    assert list(texts_of(value)) == texts
