"""A loaded model: weights, tokenizer and chat template, as models.load gives it to the engine."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from hierchat.config import GenerationSettings
from hierchat.models.catalogue import Activations, Backend, ModelEntry, Quantisation
from hierchat.models.fetch.bring import folder_of, gguf_file
from hierchat.models.formats.gguf_head import read_head
from hierchat.models.load.tokenizer_files import tokens_sha256
from hierchat.models.progress import ModelError


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """Weights and tokenizer of a model. `model` is a BlockModel where the CPU engine computes, a BlockModule where it
    multiplies for transformers, else a transformers module in eval mode. `device` and `dtype` as torch names them.
    `model_key` is a SHA-256 that names the tokens and the weights before quantisation and rounding: history written
    under it may draft for any precision of the same model. `end_ids` are the tokens that end a reply. `note`: why the
    CPU engine does not compute it, or that it was not made to chat. `activations`: what the CPU engine should multiply
    by; it reports what it really does."""

    name: str
    model: Any
    tokenizer: Any
    device: str
    dtype: str
    quantisation: Quantisation
    backend: Backend
    context_length: int
    model_key: str
    end_ids: frozenset[int]
    note: str = ""
    activations: Activations = "int16"


def model_key(tokenizer: Any, identity: str) -> str:
    """Name a model by its tokens and the identity of its weights."""
    return hashlib.sha256(f"{tokens_sha256(tokenizer)}\n{identity}".encode()).hexdigest()


def end_ids(generation: Any, tokenizer: Any) -> frozenset[int]:
    """Return the tokens that end a reply: those of a generation configuration, and the tokenizer's."""
    several = generation if isinstance(generation, list) else [generation]
    return frozenset(end for end in [*several, tokenizer.eos_token_id] if end is not None)


# What a chat needs of a model's files: a template, which tokens end a turn, and how its makers sample
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
"""A control token behind a turn, unless a turn is several messages: then those have channels, as gpt-oss' have."""
CHANNEL = "<|channel|>"

_PUBLISHED = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
_IN_GGUF = {"temp": "temperature", "penalty_repeat": "repetition_penalty"}
"""Sampling in generation_config.json, and what GGUF files call otherwise."""


def makers_sampling(entry: ModelEntry) -> GenerationSettings:
    """Return the sampling of an entry; where it sets none, what the makers wrote into its files on this machine."""
    if "sampling" in entry.model_fields_set:
        return entry.sampling
    with suppress(OSError, ValueError, ModelError):  # loading it will say what is wrong
        file, folder = gguf_file(entry.source), folder_of(entry.source)
        if file := file or (folder and folder / "generation_config.json"):
            return _published(file, file.stat().st_mtime_ns)
    return entry.sampling


@lru_cache(maxsize=64)
def _published(file: Path, changed: int) -> GenerationSettings:
    """Read sampling out of a file. `changed`: the time of its last change, so that a new one is read."""
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
    """Return the model with a chat template, a note where it brought none, and all tokens that end its turns."""
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
