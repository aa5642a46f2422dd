"""A GGUF file as safetensors of transformers' module, one tensor in memory at a time."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hierchat.models.errors import BrokenFileError, UnsupportedError
from hierchat.models.formats.block_types import floats_of
from hierchat.models.formats.gguf_families.family import Config, Family, Floats, Part
from hierchat.models.formats.gguf_head import Head, Tensor, read_head
from hierchat.models.formats.gguf_shards import shards
from hierchat.models.progress import Progress, Report

Shape = tuple[int, ...]
FILE = "model.safetensors"
WIDTH = 4
"""Bytes of a float."""
_LAYER, _BLOCK = re.compile(r"\.layers\.(\d+)\."), re.compile(r"blk\.(\d+)\.")
_ALIGNED = 8
_AT_ONCE = 1 << 22
"""Numbers that are unpacked at a time: that takes several times their memory."""


@dataclass(frozen=True, slots=True)
class _Made:
    """A tensor of the module: out of which of the file."""

    shape: Shape
    part: Part
    of: tuple[Tensor, ...]


def write_module(
    gguf: Path, family: Family, config: Config, wanted: Mapping[str, Shape], folder: Path, report: Report
) -> None:
    """`config`: the family's, of this file; `wanted`: the module's tensors and their shapes. Raises BrokenFileError
    where one cannot be made, UnsupportedError where the file has what the module has not."""
    made = _planned(gguf, read_head(gguf), family, config, wanted)
    files = [np.memmap(file, np.uint8, "r") for file in shards(gguf)]

    def read(tensor: Tensor) -> Floats:
        raw = np.asarray(files[tensor.shard][tensor.begin : tensor.begin + tensor.size])
        rows, floats = math.prod(tensor.shape[1:]), np.empty(tensor.shape[::-1], np.float32)
        packed, unpacked = raw.reshape(rows, -1), floats.reshape(rows, -1)
        step = max(_AT_ONCE // unpacked.shape[1], 1)
        for first in range(0, rows, step):
            unpacked[first : first + step] = floats_of(tensor.type, packed[first : first + step])
        return floats

    message = f"{gguf.name}, once"
    with (folder / FILE).open("wb") as file:
        file.write(_header(wanted))
        for number, (name, one) in enumerate(made.items()):
            report(Progress("converting", number, len(made), message))
            try:
                floats = one.part.make(*(read(tensor) for tensor in one.of))
            except (ValueError, IndexError) as error:
                raise _misfit(gguf, f"{one.of[0].name} cannot be put in order") from error
            if _counted(floats.shape) != _counted(one.shape):
                said = f"{one.of[0].name} is {list(floats.shape)} for {list(one.shape)} of {name}"
                raise _misfit(gguf, said)
            np.ascontiguousarray(floats, "<f4").tofile(file)
        report(Progress("converting", len(made), len(made), message))


def largest(wanted: Mapping[str, Shape]) -> int:
    """Bytes of the largest tensor."""
    return WIDTH * max(math.prod(shape) for shape in wanted.values())


def _header(wanted: Mapping[str, Shape]) -> bytes:
    """Of a file of safetensors with these tensors in this order, in float32."""
    said: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in wanted.items():
        begin, end = end, end + WIDTH * math.prod(shape)
        said[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(said).encode()
    text += b" " * (-len(text) % _ALIGNED)
    return len(text).to_bytes(8, "little") + text


def _planned(
    gguf: Path, head: Head, family: Family, config: Config, wanted: Mapping[str, Shape]
) -> dict[str, _Made]:
    tensors = {tensor.name: tensor for tensor in head.tensors}
    parts = sorted(family.parts(config).items(), key=lambda part: -len(part[0]))
    table = _table(family, config)

    def named(name: str) -> Tensor:
        if name not in tensors:
            raise BrokenFileError(f"{gguf.name} lacks the tensor {name}. Fetch or copy it again.")
        return tensors[name]

    def of(name: str) -> _Made:
        part = next((part for ending, part in parts if name.endswith(ending)), Part())
        layer = _LAYER.search(name)
        block = f"blk.{layer[1]}." if layer else ""
        if part.whole and block + part.whole in tensors:
            return _Made(wanted[name], Part(), (tensors[block + part.whole],))
        if part.of:
            return _Made(wanted[name], part, tuple(named(block + one) for one in part.of))
        found = table(name)
        return _Made(wanted[name], part, (named(found if found in tensors else f"{found}.weight"),))

    made = {name: of(name) for name in wanted}
    used = {tensor.name for one in made.values() for tensor in one.of}
    layers = config["num_hidden_layers"]
    for name in sorted(tensors.keys() - used):
        block = _BLOCK.match(name)
        behind = block and int(block[1]) >= layers  # they guess further tokens
        if not behind and not name.endswith(family.unused or ("\0",)):
            raise UnsupportedError(
                f"{gguf.name} has the tensor {name}, which {config['model_type']} does not have."
            )
    return made


def _table(family: Family, config: Config) -> Callable[[str], str]:
    """transformers' names -> those of the file, by gguf's own table; with what they end in where it is not known."""
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    kind = next(kind for kind, name in MODEL_ARCH_NAMES.items() if name == family.gguf)
    names = get_tensor_name_map(kind, config["num_hidden_layers"])
    ours, theirs = family.prefixes

    def find(name: str) -> str:
        said = name.replace(ours, theirs, 1)
        return names.get_name(said, (".weight", ".bias")) or said.removesuffix(".weight")

    return find


def _misfit(gguf: Path, said: str) -> BrokenFileError:
    return BrokenFileError(f"{gguf.name} does not fit what it says of the model: {said}.")


def _counted(shape: Shape) -> list[int]:
    return [size for size in shape if size != 1]
