"""The list of tokens that a draft knows: written, read again, and refused where it is none."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from hierchat.models.load.tokenizer_files import KNOWN_TOKENS_FILE, read_known, same_tokens
from hierchat.models.progress import BrokenFileError

KNOWN = np.array([0, 2, 5, 49_151], np.int64)


def saved(values: Any, dtype: Any = np.int64) -> bytes:
    file = io.BytesIO()
    np.save(file, np.array(values, dtype))
    return file.getvalue()


def several() -> bytes:
    file = io.BytesIO()
    np.savez(file, one=KNOWN, other=KNOWN)
    return file.getvalue()


NO_LIST = [saved(values) for values in ([5, 2, 9], [2, 2, 9], [-1, 2, 9], [], 7, [[1, 2], [3, 4]])]
NO_LIST += [saved([1, 2, 3], dtype) for dtype in (np.int32, np.float64, np.uint64, ">i8", "U3")]
DAMAGED = [
    b"",
    b"nonsense",
    b"PK\x03\x04nonsense",
    saved(KNOWN)[:40],
    saved(KNOWN)[:-1],
    saved([{"a": 1}], object),
]


def test_what_was_written_is_read(tmp_path: Path) -> None:
    assert read_known(tmp_path) is None  # it knows all
    for known in (KNOWN, KNOWN[1:]):
        np.save(tmp_path / KNOWN_TOKENS_FILE, known)
        found = read_known(tmp_path)
        assert (found.dtype, found.tolist()) == (np.int64, known.tolist())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        *((content, r"is no list of tokens\.") for content in (*NO_LIST, several())),
        *((content, "cannot be read: .*") for content in DAMAGED),  # objects are not unpickled
    ],
)
def test_what_is_no_rising_list_of_tokens_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / KNOWN_TOKENS_FILE).write_bytes(content)
    with pytest.raises(BrokenFileError, match=rf"{KNOWN_TOKENS_FILE} {said} Distil the draft again"):
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
