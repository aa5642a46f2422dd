"""Read the head of a GGUF model in one or several files: what it is, and its tensors.
gguf's own reader makes arrays of every token, which takes tens of seconds."""

import math
import mmap
import re
import struct
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hierchat.models.architectures.families import LONG_FACTORS
from hierchat.models.progress import NONSENSE, BrokenFileError, MissingError

# A model in several GGUF files of a folder, NAME-00001-of-00003.gguf and so on, as llama.cpp's tools cut it. The first
# says what model it is; each says where its own tensors are.
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})(?=\.gguf$)", re.IGNORECASE)


def shard_names(name: str) -> list[str]:
    """Return the names of all files of the model that `name` belongs to, in order; of a whole file, its own."""
    if not (found := _SHARD.search(name)):
        return [name]
    count = int(found[2])
    return [_SHARD.sub(f"-{number:05}-of-{count:05}", name) for number in range(1, count + 1)] or [name]


def shards(path: Path) -> list[Path]:
    """Return all files of the model that a file belongs to; they need not be there."""
    return [path.with_name(name) for name in shard_names(path.name)]


def require_shards(path: Path) -> list[Path]:
    """Return all files of a model. Raises MissingError, naming those that are not there."""
    files = shards(path)
    missing = [file.name for file in files if not file.is_file()]
    if missing and len(files) > 1:
        named = ", ".join(missing[:3])
        raise MissingError(
            f"{path.name} is one of the {len(files)} files of a model; missing in {path.parent}: {named}. "
            "Fetch or copy all of them."
        )
    return files


def whole_models(names: Collection[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the first file of each model that is whole among these GGUF files, and all its files."""
    there = set(names)
    for name in names:
        found = _SHARD.search(name)  # a name may claim 99,999 files
        if found and int(found[2]) > len(there):
            continue
        parts = shard_names(name)
        if parts[0] == name and there.issuperset(parts):
            yield name, parts


def without_number(name: str) -> str:
    """Return the name that the model would have in one file."""
    return _SHARD.sub("", name)


_MAGIC, _VERSIONS = b"GGUF", (2, 3)
_SCALARS = dict(enumerate(("B", "b", "H", "h", "I", "i", "f", "?", None, None, "Q", "q", "d")))
"""By the number of a value's type: how struct reads it."""
_STRING, _ARRAY = 8, 9
_LONGEST_TEXT, _LONGEST_NAME, _LONGEST_KIND = 1_000_000, 256, 60
MOST_LAYERS = 1024
"""Numbers in a row that may be one for each layer; longer rows are of the vocabulary."""
_MOST_VALUES, _MOST_ITEMS = 10_000, 1 << 23
"""Keys or tensors of a file, and texts in all its arrays: far more than any has, and a file of zeros may claim more."""
_MOST_ALIGNMENT, _MOST_DIMENSIONS, _MOST_NUMBERS = 1 << 20, 8, 1 << 48


@dataclass(frozen=True, slots=True)
class Tensor:
    """Tensor of a file. `shape`: row length first; `type`: gguf's name; `size` bytes from `begin` of `shard`."""

    name: str
    shape: tuple[int, ...]
    type: str
    begin: int = 0
    size: int = 0
    shard: int = 0


@dataclass(frozen=True, slots=True)
class Head:
    """Head of a GGUF model. `values`: by key; `by_layer`: short arrays of numbers; `lengths`: of every array."""

    values: dict[str, Any]
    tensors: tuple[Tensor, ...]
    by_layer: dict[str, list[Any]] = field(default_factory=dict)
    lengths: dict[str, int] = field(default_factory=dict)

    @property
    def architecture(self) -> str:
        """Return the architecture's name in the file; empty where it has none."""
        return str(self.values.get("general.architecture", ""))[:_LONGEST_KIND]

    @property
    def shards(self) -> int:
        count = self.values.get("split.count")
        return count if isinstance(count, int) and count > 1 else 1

    @property
    def vocabulary(self) -> int | None:
        """Return the number of tokens; None if neither the tokenizer nor a key tells."""
        found = self.lengths.get("tokenizer.ggml.tokens") or self.of_architecture("vocab_size")
        return found if isinstance(found, int) else None

    @property
    def parameters(self) -> int:
        return sum(math.prod(tensor.shape) for tensor in self.tensors)

    def of_architecture(self, key: str) -> Any:
        """Return a value such as "block_count"; None where it is not there, or differs from layer to layer."""
        each = self.of_layers(key)
        alike = each[0] if each and each.count(each[0]) == len(each) else None
        return self.values.get(f"{self.architecture}.{key}", alike)

    def of_layers(self, key: str) -> list[Any]:
        """Return a value under the architecture's name for each layer; empty where the file does not give it so."""
        return self.by_layer.get(f"{self.architecture}.{key}", [])


def partial_rotary(head: Head) -> float | None:
    """Return the share of a head's numbers that rotary positions rotate; None where it is all."""
    rotated = head.of_architecture("rope.dimension_count")
    heads = head.of_architecture("attention.head_count")
    if not rotated or not heads:
        return None
    size = head.of_architecture("attention.key_length") or head.of_architecture("embedding_length") // heads
    return rotated / size if rotated < size else None


def scaling_of(head: Head) -> dict[str, Any] | None:
    """Return how rotary positions are scaled; None where they are not."""
    kind = head.of_architecture("rope.scaling.type")
    if any(tensor.name == LONG_FACTORS for tensor in head.tensors):
        kind = "longrope"  # older files do not say it
    if kind in (None, "none"):
        return None
    both = head.of_architecture("rope.scaling.yarn_log_multiplier") or None
    found = {
        "rope_type": kind,
        "factor": head.of_architecture("rope.scaling.factor"),
        "original_max_position_embeddings": head.of_architecture("rope.scaling.original_context_length"),
        "beta_fast": head.of_architecture("rope.scaling.yarn_beta_fast"),
        "beta_slow": head.of_architecture("rope.scaling.yarn_beta_slow"),
        "truncate": False if head.architecture == "gpt-oss" else None,  # as it was trained
        "attention_factor": head.of_architecture("rope.scaling.attn_factor") if kind == "longrope" else None,
        "mscale": both,
        "mscale_all_dim": both,
        "llama_4_scaling_beta": head.of_architecture("attention.temperature_scale"),
    }
    return {key: value for key, value in found.items() if value is not None}


def rope_parameters(head: Head, **also: Any) -> dict[str, Any]:
    """Return the base, scaling and rotated share of rotary positions."""
    found = {"rope_type": "default", "rope_theta": head.of_architecture("rope.freq_base"), **also}
    found |= {"partial_rotary_factor": partial_rotary(head) or 1.0, **(scaling_of(head) or {})}
    return {key: value for key, value in found.items() if value is not None}


def needed(head: Head, key: str) -> Any:
    """Return a value for which transformers would else take a usual one. Raises KeyError where the head has none."""
    if (value := head.of_architecture(key)) is None:
        raise KeyError(key)
    return value


def layers_of(head: Head) -> int:
    """Count the layers, without those for multi-token prediction, which stand behind the others."""
    return int(needed(head, "block_count")) - int(head.of_architecture("nextn_predict_layers") or 0)


def by_layer(head: Head, key: str) -> list[Any]:
    """Return a value for each layer, whether the file has one for each or one for all."""
    layers = layers_of(head)
    return head.of_layers(key)[:layers] or [head.of_architecture(key) or 0] * layers


def has(head: Head, ending: str) -> bool:
    """Tell whether any tensor's name ends with `ending`."""
    return any(tensor.name.endswith(ending) for tensor in head.tensors)


def head_in(data: bytes) -> Head | None:
    """Read the head out of the beginning of a file; None where more of it is needed. Raises BrokenFileError."""
    if data[:4] != _MAGIC:
        raise BrokenFileError("This is no GGUF file.")
    with suppress(struct.error, *NONSENSE):
        try:
            return _Reader(data, (), whole=False).head()
        except _Misplaced as error:
            raise BrokenFileError(f"This is no whole GGUF file: {error}. Choose another file.") from error
    return None


def read_head(path: Path, arrays: Collection[str] = ()) -> Head:
    """Read the head of a model in one or several files. `arrays`: keys of those to read, as lists.
    Raises BrokenFileError, or MissingError for a missing file."""
    return joined([_read(file, arrays) for file in require_shards(path)], path.name)


def joined(heads: Sequence[Head], name: str) -> Head:
    """Join the heads of a model's files, in order. `name`: of one of them. Raises BrokenFileError."""
    first = heads[0]
    if first.shards != len(heads):
        raise BrokenFileError(
            f"{name} says that its model is cut into {first.shards} files; by its name there are {len(heads)}. "
            "Give the files the names that they had."
        )
    placed = [replace(tensor, shard=number) for number, head in enumerate(heads) for tensor in head.tensors]
    if len(placed) != first.values.get("split.tensors.count", len(placed)):
        raise BrokenFileError(
            f"{name} and the files beside it are not of one model. Fetch or copy them again."
        )
    return replace(first, tensors=tuple(placed))


def _read(path: Path, arrays: Collection[str]) -> Head:
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise ValueError("a pipe or a device, which may never end")
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(data, arrays).head()
    except _Misplaced as error:
        raise BrokenFileError(
            f"{path.name} is no whole GGUF file: {error}. Fetch or copy it again."
        ) from error
    except (struct.error, *NONSENSE) as error:
        raise BrokenFileError(f"{path} is no whole GGUF file. Fetch or copy it again.") from error
    except OSError as error:
        raise BrokenFileError(f"{path} cannot be read ({error.strerror}).") from error


class _Misplaced(Exception):
    """A tensor cannot be as the head describes it; the text names it."""


class _Reader:
    def __init__(self, data: mmap.mmap | bytes, arrays: Collection[str], *, whole: bool = True) -> None:
        self._data, self._arrays, self._whole, self._at = data, arrays, whole, 0
        self._items, self._lengths = _MOST_ITEMS, dict[str, int]()

    def head(self) -> Head:
        if self._data[:4] != _MAGIC:
            raise ValueError("another kind of file")
        self._at = 4
        if self._number("I") not in _VERSIONS:
            raise ValueError("another version")
        tensors, count = self._number("Q"), self._number("Q")
        if max(tensors, count) > _MOST_VALUES:
            raise ValueError("more than any file has")
        values, by_layer, keys = {}, {}, set[str]()
        for _ in range(count):
            key = self._text()
            if key in keys:
                raise ValueError("a key twice")
            keys.add(key)
            value = self._value(self._number("I"), key in self._arrays, key)
            if isinstance(value, list) and key not in self._arrays:
                by_layer[key] = value
            elif value is not None:
                values[key] = value
        found = [self._tensor() for _ in range(tensors)]
        if len({tensor.name for tensor in found}) < len(found):
            raise ValueError("a tensor twice")
        alignment = values.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 0 < alignment <= _MOST_ALIGNMENT:
            raise ValueError("no alignment")
        begin = -(-self._at // alignment) * alignment
        self._require_apart(found, begin)
        placed = tuple(replace(tensor, begin=begin + tensor.begin) for tensor in found)
        return Head(values, placed, by_layer, self._lengths)

    def _require_apart(self, tensors: Sequence[Tensor], begin: int) -> None:
        """Check that every tensor is within the file, and shares no byte with another."""
        end, before = 0, ""
        for tensor in sorted(tensors, key=lambda one: (one.begin, one.size)):
            if tensor.begin < end:
                raise _Misplaced(f"its tensors {before} and {tensor.name} overlap")
            end, before = tensor.begin + tensor.size, tensor.name
            if self._whole and begin + end > len(self._data):
                raise _Misplaced(f"its tensor {tensor.name} is cut off")

    def _tensor(self) -> Tensor:
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        name, dimensions = self._text(_LONGEST_NAME), self._number("I")
        if dimensions > _MOST_DIMENSIONS:
            raise ValueError("more dimensions than any tensor has")
        shape = tuple(self._number("Q") for _ in range(dimensions))
        if not shape or not 0 < math.prod(shape) <= _MOST_NUMBERS:
            raise _Misplaced(f"its tensor {name} has the shape {list(shape)}, which no tensor has")
        number, at = self._number("I"), self._number("Q")
        if number not in set(GGMLQuantizationType):
            return Tensor(name, shape, f"number {number}", at)  # newer than we are
        kind = GGMLQuantizationType(number)
        block, size = GGML_QUANT_SIZES[kind]
        if shape[0] % block:
            raise _Misplaced(
                f"its tensor {name} has rows of {shape[0]} numbers, which are no whole blocks of {kind.name} ({block})"
            )
        return Tensor(name, shape, kind.name, at, math.prod(shape) // block * size)

    def _value(self, kind: int, wanted: bool, key: str = "") -> Any:
        """Read the value of a key; None for an array that is not wanted, unless it may have a number for each layer."""
        if kind == _STRING:
            return self._text()
        if kind != _ARRAY:
            return self._number(_SCALARS[kind] or "")
        inner, count = self._number("I"), self._number("Q")
        self._lengths[key] = count
        if wanted or inner in (_STRING, _ARRAY):
            self._items -= count
            if self._items < 0:
                raise ValueError("more than any file has")
        if inner == _STRING:
            return self._texts(count, wanted)
        if inner == _ARRAY:
            for _ in range(count):
                self._value(_ARRAY, False)
            return None
        form, begin = f"<{count}{_SCALARS[inner]}", self._at
        self._skip(struct.calcsize(form))
        wanted = wanted or count <= MOST_LAYERS
        return list(struct.unpack_from(form, self._data, begin)) if wanted else None

    def _texts(self, count: int, wanted: bool) -> list[str] | None:
        """Read or skip texts. There may be hundreds of thousands of them: nothing is called that need not be."""
        data, at, found = self._data, self._at, list[str]()
        length = struct.Struct("<Q").unpack_from
        for _ in range(count):
            begin = at + 8
            at = begin + length(data, at)[0]
            if wanted:
                found.append(data[begin:at].decode("utf-8"))
        self._at = at
        self._skip(0)
        return found if wanted else None

    def _number(self, form: str) -> Any:
        (value,) = struct.unpack_from(f"<{form}", self._data, self._at)
        self._at += struct.calcsize(f"<{form}")
        return value

    def _text(self, longest: int = _LONGEST_TEXT) -> str:
        length = self._number("Q")
        if length > longest:
            raise ValueError("a text without end")
        begin = self._at
        self._skip(length)
        return self._data[begin : self._at].decode("utf-8", "replace")

    def _skip(self, count: int) -> None:
        self._at += count
        if self._at > len(self._data):
            raise ValueError("cut off")
