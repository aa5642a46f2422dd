"""The tokenizer in a GGUF file. Imports transformers, which reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import pre_tokenizers
from transformers import AutoTokenizer

from hierchat.models.errors import UnsupportedError
from hierchat.models.formats.gguf_head import read_head

_SPLITS = {
    # Each digit by itself, then GPT-2's rule over what lies between
    "smollm": lambda: pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
}
"""How a text is split before its tokens are found, where transformers does not know the file's name for it."""


def gguf_tokenizer(path: Path) -> Any:
    """With the chat template, if the file has one. Raises UnsupportedError."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    except Exception as error:  # the tokenizers library raises nothing more exact
        said = (str(error) or type(error).__name__).strip().splitlines()[0]
        raise UnsupportedError(f"The tokenizer in {path.name} cannot be read: {said}") from error
    if split := _SPLITS.get(read_head(path).values.get("tokenizer.ggml.pre", "")):
        tokenizer.backend_tokenizer.pre_tokenizer = split()
    return tokenizer
