"""A catalogue model's tokenizer without its weights, and which models have the same one."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from hierchat.config import GenerationSettings, cache_dir
from hierchat.models.catalogue import ModelEntry
from hierchat.models.fetch.bring import prepare
from hierchat.models.formats.gguf_head import read_head
from hierchat.models.load.loaded import LoadedModel, tokens_sha256
from hierchat.models.progress import BrokenFileError, ModelError, Report, silent


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


# What a chat needs of a model's files: a template, which tokens end a turn, and how its makers sample.


PLAIN_TEMPLATE = (
    "{{ bos_token or '' }}{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
"""A conversation as text to be continued."""
NO_TEMPLATE = (
    "{} brings no chat template: it was made to continue texts. It gets the conversation as text, and may go on in "
    "your name."
)
TURN_ENDS = ("<end_of_turn>", "<turn|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|return|>", "<|call|>")
"""Control tokens behind a turn. GGUF files often name the end of a text alone."""
MESSAGE_END = "<|end|>"
"""The same, but where a turn is several messages, such as gpt-oss' thought and answer: then those have channels."""
CHANNEL = "<|channel|>"

_PUBLISHED = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
"""What generation_config.json says of sampling, by its names."""
_IN_GGUF = {"temp": "temperature", "penalty_repeat": "repetition_penalty"}
"""What GGUF files call it, where that differs."""


def makers_sampling(entry: ModelEntry) -> GenerationSettings:
    """Return the sampling of an entry; where it sets none, what the makers wrote into its files on this machine."""
    folder, gguf = entry.source.folder, entry.source.gguf
    if "sampling" in entry.model_fields_set:
        return entry.sampling
    with suppress(OSError, ValueError, ModelError):  # loading it will say what is wrong
        if folder:
            file = folder.path / "generation_config.json"
            return _published(file, file.stat().st_mtime_ns)
        if gguf and gguf.path:
            return _published(gguf.path, gguf.path.stat().st_mtime_ns)
    return entry.sampling


@lru_cache(maxsize=64)
def _published(file: Path, changed: int) -> GenerationSettings:
    """`changed`: when the file was, so that a new one is read."""
    said: dict[str, Any]
    if file.suffix == ".json":
        said = json.loads(file.read_text(encoding="utf-8"))
        if not said.get("do_sample"):
            said.pop("temperature", None)
    else:
        names = {name: name for name in _PUBLISHED} | {name: ours for ours, name in _IN_GGUF.items()}
        values = read_head(file).values
        said = {name: values.get(f"general.sampling.{theirs}") for name, theirs in names.items()}
        # Float32 in the file
        said = {name: round(value, 6) if isinstance(value, float) else value for name, value in said.items()}
    return GenerationSettings(**{name: said[name] for name in _PUBLISHED if said.get(name) is not None})


def ready_to_chat(loaded: LoadedModel) -> LoadedModel:
    """The model with a template and all tokens that end its turns; its note says where it was made for another use."""
    tokenizer = loaded.tokenizer
    vocabulary, added = tokenizer.get_vocab(), tokenizer.added_tokens_decoder
    names = TURN_ENDS if CHANNEL in vocabulary else (*TURN_ENDS, MESSAGE_END)
    ends = {vocabulary[token] for token in names if token in vocabulary}
    ends = {token for token in ends if token in added and added[token].special}
    note = loaded.note
    if not tokenizer.chat_template:
        tokenizer.chat_template = PLAIN_TEMPLATE
        note = " ".join(filter(None, [note, NO_TEMPLATE.format(loaded.name)]))
    return replace(loaded, end_ids=loaded.end_ids | ends, note=note)
