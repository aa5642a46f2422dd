"""A GGUF file of a few kilobytes: a vocabulary of byte-level BPE, a configuration, and no layers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np
from tokenizers import pre_tokenizers

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("a b", "Ġ t", "h e", "Ġt he", "1 2", "12 3", "Ċ Ċ", "Ġ Ġ", "i n", "in g", "ab Ġ")
SIZE = 64


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
    writer.add_name("tiny")
    writer.add_block_count(2)
    writer.add_context_length(256)
    writer.add_embedding_length(SIZE)
    writer.add_feed_forward_length(128)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_freq_base(5000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
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
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
