"""The tokenizer and configuration of a GGUF file, against what transformers makes of the same file and leaves out."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tokenizers import Tokenizer, pre_tokenizers
from transformers import GemmaTokenizer

from hierchat.models.fetch import convert as describing
from hierchat.models.fetch.convert import describe
from hierchat.models.formats.gguf_head import read_head
from hierchat.models.formats.gguf_tokenizer import SPLITS, write_tokenizer
from hierchat.models.load.tokenizer_files import read_tokenizer
from tests.testing.architectures import finish

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("a b", "Ġ t", "h e", "Ġt he", "1 2", "12 3", "Ċ Ċ", "Ġ Ġ", "i n", "in g", "ab Ġ")
SIZE, BOS = 64, "add_bos_token"


def write_vocabulary(
    path: Path,
    *,
    architecture: str = "qwen2",
    split: str | None = "qwen2",
    special: Sequence[str] = SPECIAL,
    merges: Sequence[str] = MERGES,
    words: Sequence[str] = (),
    ids: Sequence[tuple[str, int]] = (("bos", 1), ("eos", 2), ("padding", 2)),
    flags: Sequence[str] = (),
    template: str = "{{ messages }} ß\n",
    head: bool = False,
) -> Path:
    """`words`: of the vocabulary, to which no merges lead; `ids`: tokens with a name; `flags`: which of add_bos_token
    and add_eos_token are set."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merged = [merge.replace(" ", "") for merge in merges]
    tokens = [*special, *alphabet, *merged, *words, "<think>", "</think>", "größe x", "[PAD1]"]
    kinds = dict.fromkeys(special, gguf.TokenType.CONTROL)
    kinds |= dict.fromkeys(("<think>", "</think>"), gguf.TokenType.USER_DEFINED)
    writer = gguf.GGUFWriter(path, architecture)
    shape = {"block_count": 2, "context_length": 256, "embedding_length": SIZE, "feed_forward_length": 128}
    said = {"head_count": 4, "head_count_kv": 2, "rope_freq_base": 5000.0, "layer_norm_rms_eps": 1e-5}
    for name, value in {"name": "tiny", **shape, **said, "tokenizer_model": "gpt2"}.items():
        getattr(writer, f"add_{name}")(value)
    if split:
        writer.add_tokenizer_pre(split)
    writer.add_token_list(tokens)
    writer.add_token_types([kinds.get(token, gguf.TokenType.NORMAL) for token in tokens])
    writer.add_token_merges(merges)
    for name, number in ids:
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", number)
    for flag in flags:
        writer.add_bool(f"tokenizer.ggml.{flag}", True)
    if template:
        writer.add_chat_template(template)
    for name in ["token_embd.weight", *["output.weight"] * head]:
        writer.add_tensor(name, np.zeros((len(tokens), SIZE), np.float32))
    finish(writer)
    return path


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
_AS_LLAMA3 = ["It", "'s", " HTMLParser", " ", "123", "45", ".\n"]
_AS_GPT2 = ["It", "'s", " HTMLParser", " 12345", ".", "\n"]
_AS_QWEN2 = ["It", "'s", " HTMLParser", " ", "1", "2", "3", "4", "5", ".\n"]
_AS_STARCODER = ["It", "'s", " HTMLParser", " ", "1", "2", "3", "4", "5", ".", "\n"]
THEIR_OWN = {
    **dict.fromkeys(["chatglm-bpe", "dbrx", "falcon3", "glm4", "llama-v3", "llama3", "midm-2.0"], _AS_LLAMA3),
    **dict.fromkeys(["lfm2", "pixtral"], _AS_LLAMA3),
    **dict.fromkeys(["a.x-4.0", "exaone4", "mellum", "olmo", "trillion"], _AS_GPT2),
    **dict.fromkeys(["kormo", "megrez", "qwen35", "tekken"], _AS_QWEN2),
    **dict.fromkeys(["command-r", "minerva-7b", "refact", "seed-coder", "starcoder"], _AS_STARCODER),
    "deepseek-coder": ["It", "'", "s", " HTMLParser", " ", "1", "2", "3", "4", "5", ".", "\n"],
    "gpt-4o": ["It's", " HTMLParser", " ", "123", "45", ".\n"],
    "minicpm5": ["It", "'s", " HTMLParser", " ", "123", "45", ".", "\n"],
}
"""Splits that transformers does not make of files: what becomes of "It's HTMLParser 12345." and a line's end."""
FILES: dict[str, dict[str, Any]] = {
    **{f"split-{split}": {"split": split} for split in SPLITS if split not in THEIR_OWN},
    "llama": {"architecture": "llama", "split": "llama-bpe", "flags": [BOS], "ids": [("bos", 0), ("eos", 1)]},
    "mistral": {"architecture": "mistral", "split": "smollm"},
    "qwen3": {"architecture": "qwen3", "ids": [("eos", 2), ("unknown", 0)], "template": ""},
    "both-ends": {"flags": [BOS, "add_eos_token"], "head": True},
    "no-ids": {"ids": []},
}


@pytest.fixture
def transformers_alone(tmp_path: Path) -> Any:
    """What transformers makes of a file, in a folder, with what it leaves out of the publishers' tokenizers."""

    def make(file: Path) -> Path:
        folder = tmp_path / "theirs"
        folder.mkdir()
        describing._describe_by_transformers(file, folder)
        said = _json(folder / "tokenizer.json")
        split = read_head(file).values.get("tokenizer.ggml.pre")
        said["model"]["ignore_merges"] = split == "llama-bpe"
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
    by_transformers = "_describe_by_transformers"
    monkeypatch.setattr(describing, by_transformers, lambda *_: pytest.fail("it was left to transformers"))
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


@pytest.mark.parametrize("split", THEIR_OWN)
def test_splits_that_transformers_does_not_know(split: str, tmp_path: Path, ours: Path) -> None:
    assert write_tokenizer(write_vocabulary(tmp_path / "tiny.gguf", split=split), ours)
    splitter = Tokenizer.from_file(str(ours / "tokenizer.json")).pre_tokenizer
    pieces = [piece for piece, _ in splitter.pre_tokenize_str("It's HTMLParser 12345.\n")]
    assert [piece.replace("Ġ", " ").replace("Ċ", "\n") for piece in pieces] == THEIR_OWN[split]


@pytest.mark.parametrize(
    ("split", "expected"), [("llama-bpe", 1), ("minicpm5", 1), ("tekken", 1), ("qwen2", 2)]
)
def test_words_of_the_vocabulary_need_no_merges(
    split: str, expected: int, tmp_path: Path, ours: Path
) -> None:
    """The vocabulary has " th", to which no merge leads."""
    assert write_tokenizer(write_vocabulary(tmp_path / "tiny.gguf", split=split, words=["Ġth"]), ours)
    assert len(Tokenizer.from_file(str(ours / "tokenizer.json")).encode(" th").ids) == expected


def test_what_is_not_known_is_left_to_transformers(
    tmp_path: Path, ours: Path, transformers_alone: Any
) -> None:
    """An unknown way to split, a merge of three, an end that is no control token or is not there."""
    file = tmp_path / "tiny.gguf"
    odd: list[dict[str, Any]] = [
        {"split": None},
        {"merges": [*MERGES, "x y z"]},
        {"ids": [("eos", 100)]},
        {"ids": [("eos", 100_000)]},
        {"split": "of-tomorrow"},
    ]
    for changed in odd:
        assert not write_tokenizer(write_vocabulary(file, **changed), ours)
        assert not list(ours.iterdir())
    describe(file, ours)
    assert _json(ours / "tokenizer.json") == _json(transformers_alone(file) / "tokenizer.json")


@pytest.mark.parametrize("scored", [False, True], ids=["gemma 4", "gemma 3n"])
def test_gemma_as_its_publisher_has_it(scored: bool, tmp_path: Path, ours: Path) -> None:
    """Characters, a mark in place of a space, and bytes for what no token has. `scored`: no merges, but scores."""
    control = ["<pad>", "<eos>", "<bos>", "<unk>", "<turn|>"]
    merges = ["h e", "l l", "he ll", "\u2581 t", "\u2581t he", "\n \n", "a b", "ab \u2581"]
    letters = ["\u2581", "\n", *"abcdefghijklmnopqrstuvwxyz,."]
    words = [merge.replace(" ", "") for merge in merges]
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = [*control, "<|channel>", *bytes_, *letters, *words]
    kinds = dict.fromkeys(control, gguf.TokenType.CONTROL) | {"<|channel>": gguf.TokenType.USER_DEFINED}
    writer = gguf.GGUFWriter(tmp_path / "tiny.gguf", "gemma3n" if scored else "gemma4")
    writer.add_tokenizer_model("llama" if scored else "gemma4")
    writer.add_token_list(tokens)
    writer.add_token_types([kinds.get(token, gguf.TokenType.NORMAL) for token in tokens])
    if scored:
        writer.add_token_scores([-float(words.index(token)) if token in words else -1e3 for token in tokens])
    else:
        writer.add_token_merges(merges)
    for number, name in enumerate(("padding", "eos", "bos", "unknown")):
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", number)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(False)
    finish(writer)
    assert write_tokenizer(tmp_path / "tiny.gguf", ours)
    own = read_tokenizer(ours)
    vocabulary = {token: number for number, token in enumerate(tokens)}
    pairs = [tuple(merge.split(" ")) for merge in merges]
    theirs = GemmaTokenizer(vocab=vocabulary, merges=pairs, extra_special_tokens=["<turn|>", "<|channel>"])
    for text in (*TEXTS, "hello the abab  the\n\n\nhe<turn|> <|channel>x"):
        ids = own(text)["input_ids"]
        assert ids[0] == vocabulary["<bos>"]
        assert ids[1:] == theirs(text, add_special_tokens=False)["input_ids"], text
        assert own.decode(ids[1:]) == text
    assert "<|channel>" in own.decode(own("<|channel>he")["input_ids"], skip_special_tokens=True)


def test_no_token_is_made_up(tmp_path: Path, ours: Path) -> None:
    """transformers adds GPT-2's <|endoftext|> where the vocabulary has none: a number without an embedding."""
    describe(write_vocabulary(tmp_path / "tiny.gguf", special=["<a>", "<b>", "<c>"]), ours)
    known = _json(ours / "config.json")["vocab_size"]
    assert len(read_tokenizer(ours)) == known > max(read_tokenizer(ours)("<|endoftext|>")["input_ids"])


def _json(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))
