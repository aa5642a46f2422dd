"""The tokenizer and configuration of a GGUF file, against what transformers makes of the same file and leaves out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unicodedata import normalize

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from hierchat.models.fetch import describe as describing
from hierchat.models.fetch.describe import describe
from hierchat.models.formats.gguf_head import read_head
from hierchat.models.formats.gguf_tokenizer import SPLITS, write_tokenizer
from hierchat.models.load.load_tokenizer import read_tokenizer
from tests.models.formats.vocabulary import MERGES, SPECIAL, write_vocabulary

TEXTS = (
    "",
    "Hello, the world!",
    "def f(x):\n    return x**2  # the square\n\n\n\tdone\r\n",
    "   leading, and trailing   ",
    "e\u0301 and A\u030a, composed by some",
    "naïve café 日本語 🙂👩‍👩‍👧 \u200b\ufeff é \x00\x7f",
    "1234567890 3.14 ²³ ٣٤",
    "can't WE'LL they've I'M",
    "<|im_start|>user\nabab <think>the thing</think><|im_end|><|endoftext|> größe x [PAD1]",
)
THEIR_OWN = {
    "chatglm-bpe": ["It", "'s", " HTMLParser", " ", "123", "45", ".\n"],
    "dbrx": ["It", "'s", " HTMLParser", " ", "123", "45", ".\n"],
    "glm4": ["It", "'s", " HTMLParser", " ", "123", "45", ".\n"],
    "gpt-4o": ["It's", " HTMLParser", " ", "123", "45", ".\n"],
    "refact": ["It", "'s", " HTMLParser", " ", "1", "2", "3", "4", "5", ".", "\n"],
    "seed-coder": ["It", "'s", " HTMLParser", " ", "1", "2", "3", "4", "5", ".", "\n"],
    "starcoder": ["It", "'s", " HTMLParser", " ", "1", "2", "3", "4", "5", ".", "\n"],
    "tekken": ["It", "'s", " HTMLParser", " ", "1", "2", "3", "4", "5", ".\n"],
}
"""Splits that transformers does not make of files: what becomes of "It's HTMLParser 12345." and a line's end."""
FILES: dict[str, dict[str, Any]] = {
    **{f"split-{split}": {"split": split} for split in SPLITS if split not in THEIR_OWN},
    "llama": {
        "architecture": "llama",
        "split": "llama-bpe",
        "flags": ["add_bos_token"],
        "ids": [("bos", 0), ("eos", 1)],
    },
    "mistral": {"architecture": "mistral", "split": "smollm"},
    "qwen3": {"architecture": "qwen3", "ids": [("eos", 2), ("unknown", 0)], "template": ""},
    "both-ends": {"flags": ["add_bos_token", "add_eos_token"], "head": True},
    "no-ids": {"ids": []},
}


@pytest.fixture
def transformers_alone(tmp_path: Path) -> Any:
    """What transformers makes of a file, in a folder, with what it leaves out of the publishers' tokenizers."""

    def make(file: Path) -> Path:
        folder = tmp_path / "theirs"
        folder.mkdir()
        describing._describe_here(file, folder)
        said = _json(folder / "tokenizer.json")
        split = read_head(file).values.get("tokenizer.ggml.pre")
        if split == "qwen2":
            said["normalizer"] = {"type": "NFC"}
        if split == "smollm":
            digits = {"type": "Digits", "individual_digits": True}
            said["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [digits, said["pre_tokenizer"]]}
        (folder / "tokenizer.json").write_text(json.dumps(said), encoding="utf-8")
        return folder

    return make


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    folder = tmp_path / "ours"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("name", FILES)
def test_files_are_those_of_transformers(
    name: str, tmp_path: Path, ours: Path, transformers_alone: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_vocabulary(tmp_path / "tiny.gguf", **FILES[name])
    theirs = transformers_alone(file)
    monkeypatch.setattr(describing, "_describe_beside", lambda *_: pytest.fail("it was left to transformers"))
    describe(file, ours)
    assert _json(ours / "tokenizer.json") == _json(theirs / "tokenizer.json")
    assert {path.name for path in ours.iterdir()} == {path.name for path in theirs.iterdir()}
    for template in theirs.glob("*.jinja"):
        assert (ours / template.name).read_bytes() == template.read_bytes()
    said = _json(theirs / "config.json")
    if name == "qwen3":
        assert said.pop("head_dim") == 128  # the default of its class: the file says nothing
    for key, value in _json(ours / "config.json").items():
        assert said[key] == value, key
    own, other = read_tokenizer(ours), read_tokenizer(theirs)
    for key in ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "all_special_ids"):
        assert getattr(own, key) == getattr(other, key)
    assert len(own) == len(other)
    for text in TEXTS:
        assert own(text)["input_ids"] == other(text)["input_ids"]


@pytest.mark.parametrize("split", THEIR_OWN)
def test_splits_that_transformers_does_not_know(split: str, tmp_path: Path, ours: Path) -> None:
    assert write_tokenizer(write_vocabulary(tmp_path / "tiny.gguf", split=split), ours)
    splitter = Tokenizer.from_file(str(ours / "tokenizer.json")).pre_tokenizer
    pieces = [piece for piece, _ in splitter.pre_tokenize_str("It's HTMLParser 12345.\n")]
    assert [piece.replace("Ġ", " ").replace("Ċ", "\n") for piece in pieces] == THEIR_OWN[split]


def test_any_text(tmp_path: Path, ours: Path, transformers_alone: Any) -> None:
    file = write_vocabulary(tmp_path / "tiny.gguf")
    theirs = read_tokenizer(transformers_alone(file))
    describe(file, ours)
    own = read_tokenizer(ours)
    pieces = st.one_of(st.text(), st.sampled_from([*SPECIAL, "<think>", " the", "123", "\n\n", "  ", "ing"]))

    @settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.lists(pieces).map("".join))
    def check(text: str) -> None:
        ids = own(text)["input_ids"]
        assert ids == theirs(text)["input_ids"]
        assert own.decode(ids) == theirs.decode(ids) == normalize("NFC", text)

    check()


@pytest.mark.parametrize(
    "changed",
    [
        {"split": "of-tomorrow"},
        {"split": None},
        {"merges": [*MERGES, "x y z"]},
        {"ids": [("eos", 100)]},
        {"ids": [("eos", 100_000)]},
    ],
    ids=[
        "unknown split",
        "no split",
        "merge of three",
        "end that is no control token",
        "end that is not there",
    ],
)
def test_what_is_not_known_is_left_to_transformers(
    changed: dict[str, Any], tmp_path: Path, ours: Path
) -> None:
    file = write_vocabulary(tmp_path / "tiny.gguf", **changed)
    assert not write_tokenizer(file, ours)
    assert not list(ours.iterdir())


def test_an_unknown_split_is_read_all_the_same(tmp_path: Path, ours: Path, transformers_alone: Any) -> None:
    file = write_vocabulary(tmp_path / "tiny.gguf", split="of-tomorrow")
    describe(file, ours)
    assert _json(ours / "tokenizer.json") == _json(transformers_alone(file) / "tokenizer.json")


def test_no_token_is_made_up(tmp_path: Path, ours: Path) -> None:
    """transformers adds GPT-2's <|endoftext|> where the vocabulary has none: a number without an embedding."""
    file = write_vocabulary(tmp_path / "tiny.gguf", special=["<a>", "<b>", "<c>"])
    describe(file, ours)
    assert len(read_tokenizer(ours)) == _json(ours / "config.json")["vocab_size"]
    assert max(read_tokenizer(ours)("<|endoftext|>")["input_ids"]) < _json(ours / "config.json")["vocab_size"]


def _json(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))
