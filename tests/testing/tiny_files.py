"""A tiny random Llama with its own tokenizer, as a folder, as a GGUF file and on a hub; entries of the catalogue."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from hierchat.models.catalogue import Folder, Gguf, ModelEntry, ModelSource
from tests.testing.architectures import write_gguf
from tests.testing.fake_hub import FakeHub
from tests.testing.tiny_chat import SPECIAL, for_chats


def tiny_tokenizer(extra: tuple[str, ...] = ()) -> PreTrainedTokenizerFast:
    """Byte level: three control tokens, one token per byte, then `extra`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *alphabet, *extra])}
    raw = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    return for_chats(raw)


def tiny_config(**changed: Any) -> LlamaConfig:
    shape = {"vocab_size": 272, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256}
    tokens = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2, "tie_word_embeddings": True}
    return LlamaConfig(**{**shape, **heads, **tokens, **changed})


def tiny_llama(seed: int = 0) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(tiny_config()).eval().requires_grad_(False)


def save_tiny(folder: Path, seed: int = 0) -> Path:
    tiny_llama(seed).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def change_config(folder: Path, **changed: Any) -> None:
    """Say something else in a model's config.json."""
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changed))


def write_tiny_gguf(folder: Path) -> Path:
    """As llama.cpp writes it: blocks in Q8_0, norms in float32, and a chat template."""
    return write_gguf(tiny_llama(), folder / "tiny.Q8_0.gguf", tiny_tokenizer(extra=("ab",)), packed=True)


def of_folder(path: Path, **fields: Any) -> ModelEntry:
    return ModelEntry(**{"name": "tiny", "source": ModelSource(folder=Folder(path=path)), **fields})


def of_gguf(path: Path, **fields: Any) -> ModelEntry:
    return ModelEntry(**{"name": "tiny", "source": ModelSource(gguf=Gguf(path=path)), **fields})


@contextmanager
def serving_hub(files: dict[str, bytes]) -> Iterator[FakeHub]:
    """A hub with one repository of these files, in a thread of its own."""
    with FakeHub(files) as hub:
        threading.Thread(target=hub.serve_forever, daemon=True).start()
        yield hub
        hub.answering.set()
        hub.shutdown()
