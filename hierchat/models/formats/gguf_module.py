"""Read a GGUF file as the weights of transformers' module: float32 safetensors, or on a GPU the file's own blocks."""

import json
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hierchat.models.formats.blocks import floats_of
from hierchat.models.formats.gguf_config import require_type
from hierchat.models.formats.gguf_families import Config, Family, Floats, Part
from hierchat.models.formats.gguf_head import Head, Tensor, shards
from hierchat.models.formats.layouts import BLOCK
from hierchat.models.progress import BrokenFileError, Progress, Report, UnsupportedError

TensorShape = tuple[int, ...]
WIDTH = 4
"""Bytes of a float."""
_LAYER, _BLOCK = re.compile(r"\.layers\.(\d+)\."), re.compile(r"blk\.(\d+)\.")
_ALIGNED = 8
_AT_ONCE = 1 << 22
"""Numbers that are unpacked at a time: that takes several times their memory."""


@dataclass(frozen=True, slots=True)
class _Made:
    """Tensor of the module, and the tensors of the file out of which it is made."""

    name: str
    shape: TensorShape
    part: Part
    of: tuple[Tensor, ...]


class RawRows(NamedTuple):
    """Rows of block type `type` in a file: uint8 [rows, bytes of a row], mapped, and which row goes where."""

    type: str
    rows: NDArray[np.uint8]
    order: NDArray[np.int64]


class RawMatrix(NamedTuple):
    """Matrix out of rows of a file, or a stack of experts' matrices. `pieces`: above one another, in a stack for all
    experts; `columns`: which one goes where, None: as stored."""

    pieces: tuple[RawRows, ...]
    columns: NDArray[np.int64] | None = None


def raw_rows(gguf: Path, tensor: Tensor) -> NDArray[np.uint8]:
    """Map a tensor's rows as they lie in a model's files, uint8 [rows, bytes of a row]."""
    raw = np.memmap(shards(gguf)[tensor.shard], np.uint8, "r", tensor.begin, tensor.size)
    return np.asarray(raw).reshape(math.prod(tensor.shape[1:]), -1)


def unpacked(gguf: Path, tensor: Tensor) -> Floats:
    """Read a tensor of a model as float32, the row's length last. Raises UnknownBlockType."""
    packed, floats = raw_rows(gguf, tensor), np.empty(tensor.shape[::-1], np.float32)
    rows = floats.reshape(len(packed), -1)
    step = max(_AT_ONCE // rows.shape[1], 1)
    for first in range(0, len(packed), step):
        rows[first : first + step] = floats_of(tensor.type, packed[first : first + step])
    return floats


class GgufModule:
    """Makes the tensors `wanted` by a module out of a GGUF file of a family.
    Raises BrokenFileError for a missing tensor, or while it is read for a misshapen one; UnsupportedError for an
    unknown one."""

    def __init__(
        self, gguf: Path, head: Head, config: Config, wanted: Mapping[str, TensorShape], family: Family
    ) -> None:
        self._gguf, self._wanted = gguf, wanted
        self._made = self._plan(head, config, family)

    def write(self, file: Path, report: Report) -> None:
        """Write safetensors in float32. Raises BrokenFileError."""
        said: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        end = 0
        for name, shape in self._wanted.items():
            begin, end = end, end + WIDTH * math.prod(shape)
            said[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, end]}
        header = json.dumps(said).encode()
        header += b" " * (-len(header) % _ALIGNED)
        with file.open("wb") as out:
            out.write(len(header).to_bytes(8, "little") + header)
            for one in self._reported(report):
                np.ascontiguousarray(self._floats(one), "<f4").tofile(out)

    def in_file(
        self, matrices: Collection[str], report: Report
    ) -> tuple[dict[str, RawMatrix], dict[str, NDArray[Any]]]:
        """Map `matrices`, and read the other tensors. Raises BrokenFileError."""
        found, vectors = dict[str, RawMatrix](), dict[str, NDArray[Any]]()
        for one in self._reported(report):
            if one.name in matrices:
                if one.of[0].shape[0] % BLOCK:
                    raise self._misfit(f"rows of {one.name} are no whole blocks of {BLOCK}")
                found[one.name] = self._stacks(one) if len(one.shape) == 3 else self._raw(one)
            else:
                vectors[one.name] = np.ascontiguousarray(self._floats(one)).reshape(one.shape)
        return found, vectors

    def _raw(self, one: _Made) -> RawMatrix:
        outputs, inputs = one.shape
        raws = [raw_rows(self._gguf, tensor) for tensor in one.of]
        begins = np.cumsum([0, *map(len, raws)])
        rows, columns = np.arange(begins[-1]), np.arange(inputs)
        for tensor in one.of:
            if tensor.shape[0] != inputs or len(rows) != outputs:
                raise self._misfit(f"{tensor.name} is {list(tensor.shape[::-1])} for {one.name}")
        if one.part.columns:
            order = self._put(one, [columns[None]], (1, inputs)).reshape(-1)
            return RawMatrix((RawRows(one.of[0].type, raws[0], rows),), order)
        order = self._put(one, np.split(rows[:, None], begins[1:-1]), (outputs, 1)).reshape(-1)
        sources = np.searchsorted(begins, order, "right") - 1  # which tensor has a row
        pieces = list[RawRows]()
        for run in np.split(rows, np.flatnonzero(np.diff(sources)) + 1):
            source = sources[run[0]]
            pieces.append(RawRows(one.of[source].type, raws[source], order[run] - begins[source]))
        return RawMatrix(tuple(pieces))

    def _stacks(self, one: _Made) -> RawMatrix:
        """Map the tensors of a stack of experts' matrices [experts, outputs, inputs]; gates and what they multiply
        are two pieces, also where one tensor has both."""
        experts, outputs, inputs = one.shape
        if one.part.transposed:
            outputs, inputs = inputs, outputs
        matrices = (2 if one.name.endswith("gate_up_proj") else 1) // len(one.of)
        pieces = list[RawRows]()
        for tensor in one.of:
            if tensor.shape != (inputs, outputs // len(one.of), experts):
                raise self._misfit(f"{tensor.name} is {list(tensor.shape[::-1])} for {one.name}")
            rows = raw_rows(self._gguf, tensor)
            orders = np.arange(len(rows)).reshape(experts, matrices, -1)
            pieces += [RawRows(tensor.type, rows, orders[:, n].reshape(-1)) for n in range(matrices)]
        return RawMatrix(tuple(pieces))

    def _reported(self, report: Report) -> Iterator[_Made]:
        message, count = f"{self._gguf.name}, once", len(self._made)
        for number, one in enumerate(self._made):
            report(Progress("converting", number, count, message))
            yield one
        report(Progress("converting", count, count, message))

    def _plan(self, head: Head, config: Config, family: Family) -> list[_Made]:
        wanted, layers = self._wanted, config["num_hidden_layers"]
        tensors = {tensor.name: tensor for tensor in head.tensors}
        parts = sorted(family.parts(config).items(), key=lambda part: -len(part[0]))
        table = _table(family.gguf, family.prefixes, layers + 1)

        def named(name: str) -> Tensor:
            if name not in tensors:
                raise BrokenFileError(f"{self._gguf.name} lacks the tensor {name}. Fetch or copy it again.")
            return tensors[name]

        def of(name: str) -> _Made:
            part = next((part for ending, part in parts if name.endswith(ending)), Part())
            layer = _LAYER.search(name)
            block = f"blk.{layer[1]}." if layer else ""
            if part.whole and block + part.whole in tensors:
                return _Made(name, wanted[name], Part(), (tensors[block + part.whole],))
            if part.of:
                return _Made(name, wanted[name], part, tuple(named(block + one) for one in part.of))
            found = table(name)
            return _Made(name, wanted[name], part, (named(found if found in tensors else f"{found}.weight"),))

        made = [of(name) for name in wanted]
        for one in made:
            for tensor in one.of:
                require_type(tensor, self._gguf.name, matrix=len(_squeezed(one.shape)) > 1)
        used = {tensor.name for one in made for tensor in one.of}
        for name in sorted(tensors.keys() - used):
            number = _BLOCK.match(name)
            behind = number and int(number[1]) >= layers  # they guess further tokens
            if not behind and not name.endswith(family.unused or ("\0",)):
                raise UnsupportedError(
                    f"{self._gguf.name} has the tensor {name}, which {config['model_type']} does not have."
                )
        return made

    def _put(self, one: _Made, pieces: Sequence[NDArray[Any]], shape: TensorShape) -> NDArray[Any]:
        try:
            found: NDArray[Any] = one.part.make(*pieces)
        except (ValueError, IndexError) as error:
            raise self._misfit(f"{one.of[0].name} cannot be put in order") from error
        if _squeezed(found.shape) != _squeezed(shape):
            raise self._misfit(f"{one.of[0].name} is {list(found.shape)} for {list(shape)} of {one.name}")
        return found

    def _misfit(self, said: str) -> BrokenFileError:
        return BrokenFileError(f"{self._gguf.name} does not fit what it says of the model: {said}.")

    def _floats(self, one: _Made) -> Floats:
        return self._put(one, [unpacked(self._gguf, tensor) for tensor in one.of], one.shape)


def _squeezed(shape: Sequence[int]) -> list[int]:
    return [size for size in shape if size != 1]


def _table(architecture: str, prefixes: tuple[str, str], layers: int) -> Callable[[str], str]:
    """Return a function from transformers' names to the file's, by gguf's table. `prefixes`: in transformers, in the
    table."""
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    kind = next(kind for kind, name in MODEL_ARCH_NAMES.items() if name == architecture)
    names = get_tensor_name_map(kind, layers)

    def find(name: str) -> str:
        said = name.replace(*prefixes, 1)
        return names.get_name(said, (".weight", ".bias")) or said.removesuffix(".weight")

    return find


# The tensors of a module of transformers, without torch being imported before there is one.


def stored(module: Any) -> dict[str, Any]:
    """Return a module's tensors by name. An output that is the embedding is stored once."""
    found: dict[str, Any] = {}
    seen = set()
    for name, tensor in module.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            found[name] = tensor
        seen.add(id(tensor))
    return found


def filled(module: Any, tensors: Mapping[str, Any]) -> Any:
    """Give a module without memory its tensors, those that no file holds computed, and return it in eval mode."""
    import torch

    module.load_state_dict(tensors, strict=False, assign=True)
    for tensor in stored(module).values():
        tensor._is_hf_initialized = True
    for part in module.modules():
        for key, buffer in part._buffers.items():
            if buffer is not None and buffer.is_meta:
                part._buffers[key] = torch.empty_like(buffer, device="cpu")
    module.initialize_weights()  # of buffers that no file holds
    return module.eval().requires_grad_(False)


_ROUTED = (
    "experts.gate_up_proj", "experts.up_proj", "experts.down_proj", ".gate.weight", "router.weight",
)  # fmt: skip
"""How names of experts' stacks end, and those of routers."""


def matrices_of(module: Any) -> set[str]:
    """Return the names of a module's matrices: of linear layers, embeddings, routers, and stacks of experts'."""
    from torch import nn

    names = {id(tensor): name for name, tensor in stored(module).items()}
    matrices = (part for part in module.modules() if isinstance(part, nn.Linear | nn.Embedding))
    found = {names[id(part.weight)] for part in matrices}
    return found | {name for name in names.values() if name.endswith(_ROUTED)}
