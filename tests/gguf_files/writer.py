"""A module of transformers as a GGUF file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from tests.gguf_files.changes import Floats, tensors_in
from tests.gguf_files.heads import head_of
from tests.gguf_files.models import FAMILIES, GUESSING, STEP
from tests.testing.architectures import Q8_0, add_tokens, add_value, finish, tensors_of

_SPLITS = {
    **dict.fromkeys(("qwen35", "qwen35moe"), "qwen35"),
    **dict.fromkeys(("granitehybrid", "granitemoe"), "dbrx"),
    **dict.fromkeys(("nemotron_h", "nemotron_h_moe"), "pixtral"),
    **dict.fromkeys(("lfm2", "lfm2moe"), "lfm2"),
    "cohere2": "command-r",
    "olmoe": "olmo",
    "glm4moe": "glm4",
}


def write_family(
    name: str,
    model: Any,
    path: Path,
    tokenizer: Any,
    *,
    packed: bool = False,
    plain: str = "-",
    mtp: Mapping[str, Floats] | None = None,
    **changed: Any,
) -> Path:
    """`packed`: matrices in blocks of Q8_0, but for those whose names hold `plain`; `mtp`: tensors of the layer that
    guesses further tokens, as DeepSeek calls them; `changed`: values of the head, None for those to leave out."""
    architecture, config = FAMILIES[name][0], model.config
    writer = gguf.GGUFWriter(path, architecture)
    guessing = int(name in GUESSING or mtp is not None)
    for key, value in {**head_of(architecture, config, guessing), **changed}.items():
        add_value(writer, f"{architecture}.{key}", value)
    if architecture == "gemma3n":
        _add_characters(config, writer)
    else:
        add_tokens(config, writer, tokenizer, _SPLITS.get(architecture, "qwen2"), config.pad_token_id)
    for said, floats in tensors_in(architecture, config, {**tensors_of(model), **(mtp or {})}, guessing):
        in_blocks = packed and floats.ndim > 1 and floats.shape[-1] % 32 == 0 and "norm" not in said
        if in_blocks and "conv" not in said and "gate_inp" not in said and plain not in said:
            writer.add_tensor(said, _eight_bits(floats), raw_dtype=Q8_0)
        else:
            writer.add_tensor(said, np.ascontiguousarray(floats))
    finish(writer)
    return path


def _add_characters(config: Any, writer: gguf.GGUFWriter) -> None:
    """Gemma's kind of vocabulary: scores, a mark in place of a space, and bytes for what no token has."""
    control, some = ["<unk>", "<bos>", "<eos>"], ["\u2581", "a", "b", "ab", "\u2581ab"]
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = [*control, *bytes_, *some]
    tokens += [f"<pad{i}>" for i in range(config.vocab_size - len(tokens))]
    kinds = gguf.TokenType
    types = dict.fromkeys(control, kinds.CONTROL) | dict.fromkeys(bytes_, kinds.BYTE)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(number) for number in range(len(tokens))])
    writer.add_token_types([types.get(token, kinds.NORMAL) for token in tokens])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(config.pad_token_id)
    writer.add_add_space_prefix(False)


def _eight_bits(floats: Floats) -> NDArray[np.uint8]:
    """Blocks of Q8_0 whose scale is STEP."""
    numbers = (floats / STEP).astype(np.int8).reshape(*floats.shape[:-1], -1, 32).view(np.uint8)
    scales = np.full((*numbers.shape[:-1], 1), STEP, np.float16).view(np.uint8)
    return np.concatenate([scales, numbers], axis=-1).reshape(*floats.shape[:-1], -1)


def cut(whole: Path, folder: Path, tensors: int, name: str = "tiny.Q8_0") -> list[Path]:
    """Cut a file into several of at most so many tensors each, as gguf's own writer does."""
    folder.mkdir(parents=True, exist_ok=True)
    reader = gguf.GGUFReader(whole)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(folder / f"{name}.gguf", architecture, split_max_tensors=tensors)
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            kind, *inner = field.types
            writer.add_key_value(key, field.contents(), kind, inner[-1] if inner else None)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    finish(writer)
    return sorted(folder.glob("*.gguf"))
