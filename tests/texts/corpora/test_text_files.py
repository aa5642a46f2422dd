"""Files of every kind, whole and broken, and what of a JSON value is text."""

import gzip
import json
import lzma
import os
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hierchat.texts import text_files
from hierchat.texts.text_files import CorpusError, TextReader, find, texts_of


def read(path: Path, content: bytes | str) -> tuple[list[str], TextReader]:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    reader = TextReader([path])
    texts = list(reader)
    assert reader.done == reader.total == path.stat().st_size
    return texts, reader


GERMAN = "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. “Größe”, sagte er müde.\n"
RUSSIAN = "Съешь же ещё этих мягких французских булок, да выпей чаю. Так говорят в книгах.\n"
JAPANESE = "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。\n"
PACKED = {
    # without the time, which would differ between the processes that collect these tests
    "gz": gzip.compress(b"one two three four\n" * 99, mtime=0),
    "xz": lzma.compress(b"one two three four\n" * 99),
}


@pytest.mark.parametrize(
    ("name", "content", "texts", "said"),
    [
        ("a.txt", b"one\r\ntwo\nthree", ["one\ntwo\nthree"], ""),
        ("a.txt", b"\xef\xbb\xbfone", ["one"], "read as utf-8-sig"),
        ("a.jsonl.xz", lzma.compress(b'{"text": "one"}\n"two"'), ["one", "two"], ""),
        ("a.jsonl", rb'{"text": "smile \ud83d!"}', ["smile ?!"], ""),
        ("a.json", b'{"data": [{"text": "one"}]}\n', ["one"], ""),
        ("a.json", b'{"text": "one"}\n{"text": "two"}', ["one", "two"], ""),
        (
            "a.jsonl",
            b'{"text": "one"}\n\n{"text": "tw\n{"text": "three"}\n]',
            ["one", "three"],
            "2 lines not JSON",
        ),
        ("a.json", b'[{"text": "one"}, {"te', ["one"], "no whole JSON"),
        ("a.json", b'[{"text": "one"}', ["one"], "no whole JSON"),
        ("a.json", b'[{"text": "one"}, ' + b"[" * 100_000, ["one"], "nested too deep|no whole JSON"),
        ("a.txt", b"\x7fELF\x02\x01\x01\0\0\0", [], "binary"),
        ("a.txt", random.Random(0).randbytes(5000), [], "binary"),
        ("a.txt", b"text\n" * 400_000 + b"\0", [], "binary"),
        ("a.txt", bytes(range(1, 32)) * 9, [], "binary"),
        *(
            (f"a.txt.{suffix}", content, [], f"no whole {suffix} file")
            for suffix, whole in PACKED.items()
            for content in (whole[:10], whole[:-3], b"plain")
        ),
        ("a.txt", (GERMAN * 20).encode("cp1252"), [GERMAN * 20], "read as cp1252"),
        ("a.txt", (RUSSIAN * 20).encode("cp1251"), [RUSSIAN * 20], "read as cp1251"),
        ("a.txt", (JAPANESE * 20).encode("shift_jis"), [JAPANESE * 20], "read as shift_jis"),
        ("a.txt", (GERMAN * 20).encode("utf-16"), [GERMAN * 20], "read as utf-16"),
        ("a.txt", (RUSSIAN * 20).encode() + b"\xff", [RUSSIAN * 20 + "\ufffd"], "a few bytes are not UTF-8"),
    ],
)
def test_a_file_gives_its_texts_and_says_what_is_wrong(
    tmp_path: Path, name: str, content: bytes, texts: list[str], said: str
) -> None:
    found, reader = read(tmp_path / name, content)
    assert found == texts
    if said:
        (line,) = reader.notes + reader.passed_over
        assert re.search(f"^{re.escape(str(tmp_path / name))}: .*({said})", line)
        assert bool(reader.notes) == ("UTF" in said or "read as" in said)
    else:
        assert reader.notes == reader.passed_over == []


@pytest.mark.parametrize("name", ["a.txt", "a.md.gz"])
def test_a_long_text_comes_in_pieces_that_end_between_lines(tmp_path: Path, name: str) -> None:
    """A line without end is cut."""
    lines = [f"line {n} {'ä' * (n % 50)}" for n in range(30_000)]
    content = "\n".join(lines).encode()
    texts, _ = read(tmp_path / name, gzip.compress(content) if name.endswith("gz") else content)
    assert "".join(texts) == "\n".join(lines)
    assert len(texts) > 3
    assert all(text.endswith("\n") for text in texts[:-1])
    assert max(map(len, texts)) <= text_files.PIECE
    texts, _ = read(tmp_path / "b.txt", "x" * (3 * text_files.PIECE))
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


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("chunk", [7, 64, 1 << 18])
def test_a_json_list_is_read_element_by_element(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, indent: int | None
) -> None:
    monkeypatch.setattr(text_files, "PIECE", chunk)
    texts = [f"[{n}] " + "x" * (n * 7 % 5) for n in range(200)]
    monkeypatch.setattr(text_files, "pieces", lambda text: [text])
    found, reader = read(tmp_path / "a.json", json.dumps([{"text": text} for text in texts], indent=indent))
    assert found == texts
    assert reader.passed_over == []


def test_a_json_value_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "LARGEST_VALUE", 1 << 19)
    texts, reader = read(tmp_path / "a.json", json.dumps(["one" * 5, "x" * (1 << 21)]))
    assert texts == ["one" * 5]
    assert "split it" in reader.passed_over[0]


def test_a_folder_gives_its_known_files_once(tmp_path: Path) -> None:
    tmp_path = tmp_path / "corpus"
    for name in (
        "b.txt",
        "a.py",
        "deep/c.md",
        ".hidden/d.txt",
        "node_modules/e.js",
        "f.png",
        ".g.txt",
        "h.JSONL.gz",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    found = find([tmp_path / "b.txt", tmp_path, tmp_path / "f.png"], [])
    names = [str(file.relative_to(tmp_path)) for file in found]
    assert names == ["b.txt", "a.py", "h.JSONL.gz", "deep/c.md", "f.png"]
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
    reader = TextReader(find([open_folder], passed_over), passed_over)
    assert list(reader) == []
    assert [line.rsplit(": ")[1] for line in reader.passed_over] == ["Permission denied"] * 2
    with pytest.raises(CorpusError, match="Permission denied"):
        find([open_folder / "shut" / "b.txt"], [])


LONG = "a string of forty characters and some more"
IMAGE = {"type": "image", "url": LONG}


def said(role: str, *parts: Any) -> dict[str, Any]:
    """A message of ChatGPT's."""
    return {"message": {"author": {"role": role}, "content": {"parts": [*parts]}}}


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
        ({"messages": [{"role": "assistant", "content": [{"type": "text", "text": "r"}, IMAGE]}]}, ["r"]),
        (
            {
                "title": "talk",
                "mapping": {
                    "0": {"message": None},
                    "1": said("user", "q"),
                    "2": said("assistant", "r", IMAGE),
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
