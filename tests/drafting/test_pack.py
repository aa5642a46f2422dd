"""Seed packs: what is written is read, and damage is noticed."""

from __future__ import annotations

import lzma
from pathlib import Path

import numpy as np
import pytest

from hierchat.drafting.pack import PackError, read_pack, write_pack

NAMES = {"model": "tiny", "model_key": "ab" * 32, "tokenizer": "cd" * 32}
TEXTS = [[1, 2, 3], [49_151, 0], [7] * 500]


@pytest.mark.parametrize("largest", [2, 65_534, 65_535, 2**31 - 1])
def test_texts_are_read_as_they_were_written(tmp_path: Path, largest: int) -> None:
    texts = [*TEXTS, [], [largest, 5]]
    header = write_pack(tmp_path / "tiny.xz", texts, **NAMES)
    pack = read_pack(tmp_path / "tiny.xz")
    assert pack.header == header
    assert (header.texts, header.tokens, header.model) == (4, 507, "tiny")
    assert header.dtype == ("<u2" if largest < 65_535 else "<i4")
    assert pack.tokens.dtype == np.int32
    assert [text.tolist() for text in pack.texts()] == [text for text in texts if text]
    assert pack.tokens[:7].tolist() == [1, 2, 3, -1, 49_151, 0, -1]


def test_a_pack_may_be_empty(tmp_path: Path) -> None:
    write_pack(tmp_path / "tiny.xz", [], **NAMES)
    assert list(read_pack(tmp_path / "tiny.xz").texts()) == []


def test_negative_ids_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="negative"):
        write_pack(tmp_path / "tiny.xz", [[1, -1]], **NAMES)
    assert not list(tmp_path.iterdir())


def test_a_damaged_pack_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "tiny.xz"
    with pytest.raises(PackError, match="cannot be read"):
        read_pack(path)
    write_pack(path, TEXTS, **NAMES)
    whole = path.read_bytes()
    for damaged in (b"", b"x", whole[:-1], whole[: len(whole) // 2], whole[:40] + b"\xff" + whole[41:]):
        path.write_bytes(damaged)
        with pytest.raises(PackError, match="cannot be read"):
            read_pack(path)


def test_a_pack_that_its_header_does_not_fit_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "tiny.xz"
    write_pack(path, TEXTS, **NAMES)
    line, _, body = lzma.decompress(path.read_bytes()).partition(b"\n")
    for header, numbers, reason in (
        (b"{}", body, "no seed pack"),
        (line.replace(b'"form":1', b'"form":2'), body, "no seed pack"),
        (line, body[:-2], "length"),
        (line, body[:-2] + b"\0\0", "texts"),
        (line, b"\xff\xff" + body[2:], "texts"),
    ):
        path.write_bytes(lzma.compress(header + b"\n" + numbers))
        with pytest.raises(PackError, match=reason):
            read_pack(path)
