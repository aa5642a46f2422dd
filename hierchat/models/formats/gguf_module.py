"""A GGUF file as safetensors of transformers' module, one tensor in memory at a time."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hierchat.models.formats.block_model import Matrix, ModuleWeights
from hierchat.models.formats.block_types import floats_of
from hierchat.models.formats.blocks import from_file
from hierchat.models.formats.gguf_families import Config, Family, Floats, Part
from hierchat.models.formats.gguf_head import Tensor, read_head, shards
from hierchat.models.formats.layouts import BLOCK
from hierchat.models.progress import BrokenFileError, Progress, Report, UnsupportedError

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
    """Make the header of a file of safetensors with these tensors in this order, in float32."""
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


# A GGUF file as the weights of transformers' module, in the file's own blocks wherever our kernels multiply
# them.


def read_module(
    gguf: Path,
    family: Family,
    config: Config,
    wanted: Mapping[str, Shape],
    matrices: Collection[str],
    looked_up: Collection[str],
    report: Report,
) -> ModuleWeights:
    """`matrices`: those of `wanted` that are multiplied with rows, or `looked_up` alone. What cannot be in blocks is in
    floats. Raises as gguf_module.write_module does."""
    made = plan(gguf, family, config, wanted)
    contents, message = Contents(gguf), f"{gguf.name}, once"
    found, vectors = dict[str, Matrix](), dict[str, NDArray[Any]]()
    for number, one in enumerate(made):
        report(Progress("converting", number, len(made), message))
        if one.name in matrices and _in_blocks(one):
            found[one.name] = _matrix(gguf, one, contents)
        else:
            floats = one.put(gguf, [contents.floats(tensor) for tensor in one.of], one.shape)
            vectors[one.name] = np.ascontiguousarray(floats).reshape(one.shape)
    report(Progress("converting", len(made), len(made), message))
    return ModuleWeights(found, vectors, tuple(name for name in found if name in looked_up))


def _in_blocks(one: Made) -> bool:
    """Whether our kernels multiply rows of this length, and find where the rows of an expert begin."""
    from hierchat.jit import LANES

    return one.shape[-1] % BLOCK == 0 and (len(one.shape) == 2 or one.shape[-2] % LANES == 0)


def _matrix(gguf: Path, one: Made, contents: Contents) -> Matrix:
    """What moves rows is asked with their numbers, what moves columns with theirs."""
    outputs, inputs = one.shape[-2:]
    rows = [contents.raw(tensor) for tensor in one.of]
    types = [tensor.type for tensor in one.of]
    for tensor in one.of:
        if tensor.shape[0] != inputs:
            raise misfit(
                gguf, f"rows of {tensor.name} have {tensor.shape[0]} numbers for {inputs} of {one.name}"
            )
    if one.part.columns:
        columns = one.put(gguf, [np.arange(inputs)[None]], (1, inputs)).reshape(-1)
        return Matrix((from_file(types[0], rows[0]),), columns=np.argsort(columns))
    ends = np.cumsum([len(some) for some in rows])
    numbers = [
        np.arange(end - len(some), end).reshape(*tensor.shape[:0:-1], 1)
        for tensor, some, end in zip(one.of, rows, ends, strict=True)
    ]
    order = one.put(gguf, numbers, (*one.shape[:-1], 1)).reshape(-1, outputs)
    if len(set(types)) == 1:
        whole = rows[0] if len(rows) == 1 else np.concatenate(rows)
        return Matrix((from_file(types[0], whole, order.reshape(-1)),), len(order))
    source = np.searchsorted(ends, order, side="right")  # [experts, outputs]
    pieces = [
        from_file(kind, some, order[source == number] - (end - len(some)))
        for number, (kind, some, end) in enumerate(zip(types, rows, ends, strict=True))
    ]
    return Matrix(tuple(pieces), len(order), np.argsort(np.argsort(source[0], kind="stable")))


# The tensors of a module of transformers, without torch being imported before there is one.


FORMS = ("gate_up_proj", "up_proj", "down_proj")
"""Matrices of several experts, as transformers' interface for them calls them."""


def stored(module: Any) -> dict[str, Any]:
    """By name. An output that is the embedding is stored once."""
    found: dict[str, Any] = {}
    seen = set()
    for name, tensor in module.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            found[name] = tensor
        seen.add(id(tensor))
    return found


def matrices_of(module: Any) -> tuple[set[str], set[str]]:
    """Names of matrices that rows are multiplied with or that are looked up, and of those that are only looked up."""
    from torch import nn

    names = {id(tensor): name for name, tensor in stored(module).items()}
    multiplied, looked_up = set[str](), set[str]()
    for part in module.modules():
        if type(part) is nn.Linear:
            multiplied.add(names[id(part.weight)])
        elif isinstance(part, nn.Embedding):
            looked_up.add(names[id(part.weight)])
        elif has_experts(part) and not part.is_transposed:
            multiplied |= {names[id(getattr(part, form))] for form in FORMS if hasattr(part, form)}
    return multiplied | looked_up, looked_up - multiplied


def has_experts(part: Any) -> bool:
    """Whether it holds experts as transformers' interface for them has it."""
    return hasattr(part, "has_post_expert_norm") and hasattr(part, "down_proj")
