"""GGUF files of the families that transformers' modules compute and its own reader does not read (gguf_families)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from hierchat.models import cache
from hierchat.models.errors import BrokenFileError
from hierchat.models.fetch.describe import describe_tokenizer, first_line
from hierchat.models.formats import block_module
from hierchat.models.formats.codebooks import widening
from hierchat.models.formats.gguf_config import end_tokens, gguf_config
from hierchat.models.formats.gguf_families.registry import FAMILIES
from hierchat.models.formats.gguf_head import Head, read_head
from hierchat.models.formats.gguf_module import WIDTH, largest, write_module
from hierchat.models.formats.gguf_module_blocks import read_module
from hierchat.models.formats.module_tensors import matrices_of, stored
from hierchat.models.memory import require_free
from hierchat.models.progress import Report

_AT_ONCE = 3
"""How often the largest tensor may be in memory while it is made: as pieces, joined, in another order."""


def convert_module(gguf: Path, folder: Path, report: Report) -> None:
    """Writes weights as float32 safetensors, configuration and tokenizer. Raises BrokenFileError, UnsupportedError,
    DiskFullError, DoesNotFitError."""
    head, config, module, shapes = _described(gguf)
    cache.require_space(WIDTH * sum(map(math.prod, shapes.values())))
    require_free(_AT_ONCE * largest(shapes), f"Converting {gguf.name}")
    write_module(gguf, FAMILIES[head.architecture], config, shapes, folder, report)
    _describe(gguf, module, folder)


def convert_module_blocks(gguf: Path, folder: Path, report: Report) -> None:
    """The same with matrices in the file's blocks, for a processor."""
    head, config, module, shapes = _described(gguf)
    size = int(sum(tensor.size * widening(tensor.type) for tensor in head.tensors))
    cache.require_space(size)
    require_free(size, f"Converting {gguf.name}")
    family, (multiplied, looked_up) = FAMILIES[head.architecture], matrices_of(module)
    weights = read_module(gguf, family, config, shapes, multiplied, looked_up, report)
    block_module.write(weights, folder / block_module.FILE)
    _describe(gguf, module, folder)


def _described(gguf: Path) -> tuple[Head, dict[str, Any], Any, dict[str, tuple[int, ...]]]:
    """The head, the configuration, the module without weights, and its tensors' shapes by their names."""
    head = read_head(gguf)
    config = {**gguf_config(head), **_tokens(head)}
    module = _empty(gguf, config)
    return head, config, module, {name: tuple(tensor.shape) for name, tensor in stored(module).items()}


def _describe(gguf: Path, module: Any, folder: Path) -> None:
    describe_tokenizer(gguf, folder)
    module.config.architectures = [type(module).__name__]
    module.config.save_pretrained(folder)
    module.generation_config.save_pretrained(folder)


def _tokens(head: Head) -> dict[str, Any]:
    """Those that begin and end texts, also where there are none: transformers would make some up."""
    said = {"bos": "bos", "pad": "padding"}
    found = {
        f"{name}_token_id": head.values.get(f"tokenizer.ggml.{key}_token_id") for name, key in said.items()
    }
    return {**found, "eos_token_id": end_tokens(head)}


def _empty(gguf: Path, config: dict[str, Any]) -> Any:
    """The module without weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    kind = config["model_type"]
    try:
        made = AutoConfig.for_model(**config)
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(made)
    except Exception as error:  # a configuration's checks raise nothing more exact
        raise BrokenFileError(
            f"{gguf.name} does not say what model it is: {first_line(error)} ({kind})."
        ) from error
