"""A tiny model of one's own in the catalogue, and folders of each test's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import hierchat.drafting.suffix_index  # noqa: F401  # before the cache moves, so that it is compiled once

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def byte_tokenizer(extra: tuple[str, ...] = ()) -> PreTrainedTokenizerFast:
    """Three control tokens, one token per byte, then `extra`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *alphabet, *extra])}
    raw = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    return PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|im_end|>")


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Cache, data and catalogue of each test's own; the default model `tiny`, `twin` with its tokens, and `other`."""
    for name in ("cache", "config", "data"):
        monkeypatch.setenv(f"HIERCHAT_{name.upper()}", str(tmp_path / name))
    lines = ["models:"]
    for name, tokenizer in (
        ("tiny", byte_tokenizer()),
        ("twin", byte_tokenizer()),
        ("other", byte_tokenizer(("ab",))),
    ):
        tokenizer.save_pretrained(tmp_path / "models" / name)
        default = ", default: true" if name == "tiny" else ""
        lines.append(f"  {name}: {{source: {{folder: {{path: {tmp_path / 'models' / name}}}}}{default}}}")
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "models.yaml").write_text("\n".join(lines))
    return tmp_path


@pytest.fixture
def tokenizer() -> Any:
    """That of `tiny`, as it is loaded."""
    from hierchat.models.catalogue import read_catalogue
    from hierchat.models.load.tokenizer_files import load_tokenizer

    return load_tokenizer(read_catalogue().entry("tiny"))
