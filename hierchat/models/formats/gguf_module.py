"""A GGUF file as safetensors of transformers' module, one tensor in memory at a time."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hierchat.models.errors import BrokenFileError, UnsupportedError
from hierchat.models.formats.block_types import floats_of
from hierchat.models.formats.gguf_families.family import Config, Family, Floats, Part
from hierchat.models.formats.gguf_head import Tensor, read_head
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
class Made:
    """A tensor of the module: out of which of the file."""

    name: str
    shape: Shape
    part: Part
    of: tuple[Tensor, ...]

    def put(self, gguf: Path, pieces: Sequence[NDArray[Any]], shape: Shape) -> NDArray[Any]:
        """What stands for the file's tensors, put in order: of this shape, but for dimensions of one. Raises
        BrokenFileError where it is of another."""
        try:
            found: NDArray[Any] = self.part.make(*pieces)
        except (ValueError, IndexError) as error:
            raise misfit(gguf, f"{self.of[0].name} cannot be put in order") from error
        if _counted(found.shape) != _counted(shape):
            said = f"{self.of[0].name} is {list(found.shape)} for {list(shape)} of {self.name}"
            raise misfit(gguf, said)
        return found


class Contents:
    """The tensors of a GGUF file, mapped."""

    def __init__(self, gguf: Path) -> None:
        self._files = [np.memmap(file, np.uint8, "r") for file in shards(gguf)]

    def raw(self, tensor: Tensor) -> NDArray[np.uint8]:
        """Rows as they lie in the file, uint8 [rows, bytes of a row]."""
        raw = np.asarray(self._files[tensor.shard][tensor.begin : tensor.begin + tensor.size])
        return raw.reshape(math.prod(tensor.shape[1:]), -1)

    def floats(self, tensor: Tensor) -> Floats:
        packed, floats = self.raw(tensor), np.empty(tensor.shape[::-1], np.float32)
        unpacked = floats.reshape(len(packed), -1)
        step = max(_AT_ONCE // unpacked.shape[1], 1)
        for first in range(0, len(packed), step):
            unpacked[first : first + step] = floats_of(tensor.type, packed[first : first + step])
        return floats


def write_module(
    gguf: Path, family: Family, config: Config, wanted: Mapping[str, Shape], folder: Path, report: Report
) -> None:
    """`config`: the family's, of this file; `wanted`: the module's tensors and their shapes. Raises BrokenFileError
    where one cannot be made, UnsupportedError where the file has what the module has not."""
    made = plan(gguf, family, config, wanted)
    contents, message = Contents(gguf), f"{gguf.name}, once"
    with (folder / FILE).open("wb") as file:
        file.write(_header(wanted))
        for number, one in enumerate(made):
            report(Progress("converting", number, len(made), message))
            floats = one.put(gguf, [contents.floats(tensor) for tensor in one.of], one.shape)
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


def plan(gguf: Path, family: Family, config: Config, wanted: Mapping[str, Shape]) -> list[Made]:
    """Out of what each tensor of the module is made, in order. Raises as write_module does."""
    head = read_head(gguf)
    tensors = {tensor.name: tensor for tensor in head.tensors}
    parts = sorted(family.parts(config).items(), key=lambda part: -len(part[0]))
    table = _table(family, config)

    def named(name: str) -> Tensor:
        if name not in tensors:
            raise BrokenFileError(f"{gguf.name} lacks the tensor {name}. Fetch or copy it again.")
        return tensors[name]

    def of(name: str) -> Made:
        part = next((part for ending, part in parts if name.endswith(ending)), Part())
        layer = _LAYER.search(name)
        block = f"blk.{layer[1]}." if layer else ""
        if part.whole and block + part.whole in tensors:
            return Made(name, wanted[name], Part(), (tensors[block + part.whole],))
        if part.of:
            return Made(name, wanted[name], part, tuple(named(block + one) for one in part.of))
        found = table(name)
        return Made(name, wanted[name], part, (named(found if found in tensors else f"{found}.weight"),))

    made = [of(name) for name in wanted]
    used = {tensor.name for one in made for tensor in one.of}
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


def misfit(gguf: Path, said: str) -> BrokenFileError:
    """Tensors of other sizes than its head leads to."""
    return BrokenFileError(f"{gguf.name} does not fit what it says of the model: {said}.")


def _counted(shape: Shape) -> list[int]:
    return [size for size in shape if size != 1]
