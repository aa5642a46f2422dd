"""The list of tokens that a draft knows: written, read again, and refused where it is none."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from hierchat.models.load.tokenizer_files import KNOWN_TOKENS_FILE, read_known, same_tokens, write_known
from hierchat.models.progress import BrokenFileError

KNOWN = np.array([0, 2, 5, 49_151], np.int64)


def saved(values: Any, dtype: Any = np.int64) -> bytes:
    file = io.BytesIO()
    np.save(file, np.array(values, dtype))
    return file.getvalue()


def test_what_was_written_is_read(tmp_path: Path) -> None:
    write_known(tmp_path, KNOWN)
    known = read_known(tmp_path)
    assert known is not None
    assert known.dtype == np.int64
    assert known.tolist() == KNOWN.tolist()
    write_known(tmp_path, KNOWN[1:])
    assert np.array_equal(read_known(tmp_path), KNOWN[1:])  # type: ignore[arg-type]


def test_a_model_without_the_list_knows_all_tokens(tmp_path: Path) -> None:
    assert read_known(tmp_path) is None


@pytest.mark.parametrize("values", [[5, 2, 9], [2, 2, 9], [-1, 2, 9], [], 7, [[1, 2], [3, 4]]], ids=repr)
def test_what_is_no_rising_list_of_tokens_is_refused(tmp_path: Path, values: Any) -> None:
    (tmp_path / KNOWN_TOKENS_FILE).write_bytes(saved(values))
    with pytest.raises(
        BrokenFileError, match=rf"{KNOWN_TOKENS_FILE} is no list of tokens. Distil the draft again"
    ):
        read_known(tmp_path)


@pytest.mark.parametrize("dtype", [np.int32, np.float64, np.uint64, ">i8", "U3"])
def test_numbers_of_another_kind_are_refused(tmp_path: Path, dtype: Any) -> None:
    (tmp_path / KNOWN_TOKENS_FILE).write_bytes(saved([1, 2, 3], dtype))
    with pytest.raises(BrokenFileError, match="is no list of tokens"):
        read_known(tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"nonsense", b"PK\x03\x04nonsense", saved(KNOWN)[:40], saved(KNOWN)[:-1]]
)
def test_a_damaged_file_says_what_to_do(tmp_path: Path, content: bytes) -> None:
    (tmp_path / KNOWN_TOKENS_FILE).write_bytes(content)
    with pytest.raises(
        BrokenFileError, match=rf"{KNOWN_TOKENS_FILE} cannot be read: .* Distil the draft again"
    ):
        read_known(tmp_path)


def test_several_lists_in_one_file_are_none(tmp_path: Path) -> None:
    with (tmp_path / KNOWN_TOKENS_FILE).open("wb") as file:
        np.savez(file, one=KNOWN, other=KNOWN)
    with pytest.raises(BrokenFileError, match="is no list of tokens"):
        read_known(tmp_path)


def test_objects_are_not_unpickled(tmp_path: Path) -> None:
    np.save(tmp_path / KNOWN_TOKENS_FILE, np.array([{"a": 1}], object), allow_pickle=True)
    with pytest.raises(BrokenFileError, match="cannot be read"):
        read_known(tmp_path)


@pytest.mark.filterwarnings("ignore")
def test_no_damaged_byte_raises_anything_else(tmp_path: Path) -> None:
    whole = saved(KNOWN)
    refused = 0
    for place in range(len(whole)):
        for value in (0, ord("\n"), ord("("), ord("'"), ord(","), ord("9"), whole[place] ^ 128):
            damaged = bytearray(whole)
            damaged[place] = value
            (tmp_path / KNOWN_TOKENS_FILE).write_bytes(damaged)
            try:
                known = read_known(tmp_path)
                assert known is not None
                assert (np.diff(known) > 0).all()
            except BrokenFileError:
                refused += 1
    assert refused > len(whole)


def test_same_tokens(tiny_folder: Path) -> None:
    target, draft = AutoTokenizer.from_pretrained(tiny_folder), AutoTokenizer.from_pretrained(tiny_folder)
    assert same_tokens(target, draft) is None
    draft.add_tokens(["longer"])
    assert same_tokens(target, draft) == "the target has 259 tokens and the draft model 260"
    target.add_tokens(["other"])
    reason = same_tokens(target, draft)
    assert reason == "the target's token 'other' with number 259 does not exist in the draft model"
