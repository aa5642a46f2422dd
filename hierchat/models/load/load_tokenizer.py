"""A catalogue model's tokenizer without its weights, and which models have the same one."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path
from typing import Any

from hierchat.config import cache_dir
from hierchat.models.catalogue import ModelEntry
from hierchat.models.errors import BrokenFileError
from hierchat.models.fetch.bring import prepare
from hierchat.models.load.token_map import tokens_sha256
from hierchat.models.progress import Report, silent


def load_tokenizer(entry: ModelEntry, progress: Report = silent) -> Any:
    """The tokenizer that loading the model gives; the model is fetched where needed. Raises a ModelError."""
    tokenizer = read_tokenizer(prepare(entry, progress))
    note_tokens(entry, tokens_sha256(tokenizer))
    return tokenizer


def read_tokenizer(folder: Path) -> Any:
    """The tokenizer in a folder. Imports no torch where there is a tokenizer.json. Raises BrokenFileError."""
    try:
        if (folder / "tokenizer.json").exists():
            from transformers import PreTrainedTokenizerFast  # AutoTokenizer would bring torch with it

            return PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # the tokenizers library raises nothing more exact
        raise BrokenFileError(
            f"The tokenizer in {folder} cannot be read: {error}. Delete the folder."
        ) from error


def note_tokens(entry: ModelEntry, tokens: str) -> None:
    """Remember a model's token-to-id map (its tokens_sha256), so that it is known before the model is loaded."""
    if known_tokens(entry) != tokens:
        with suppress(OSError):
            _note(entry).parent.mkdir(parents=True, exist_ok=True)
            _note(entry).write_text(tokens, encoding="ascii")


def known_tokens(entry: ModelEntry) -> str | None:
    """The tokens_sha256 of a model that was loaded before."""
    try:
        return _note(entry).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return None


def _note(entry: ModelEntry) -> Path:
    said = f"{entry.source.model_dump_json()}{entry.cpu and entry.cpu.model_dump_json()}"
    return cache_dir() / "tokenizers" / hashlib.sha256(said.encode()).hexdigest()
