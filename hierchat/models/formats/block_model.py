"""Hold a decoder as matrices of blocks, which the CPU engine computes, and keep it in the cache."""

import json
import mmap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hierchat.models.architectures.model_config import (
    FULL,
    layer_input_size,
    matrix_sizes,
    require_consistent,
    rotary_layouts,
    vector_shapes,
)
from hierchat.models.formats.blocks import Blocks
from hierchat.models.formats.layouts import VERSION, in_large_pages
from hierchat.models.progress import NONSENSE, BrokenFileError

# A file of the cache: matrices of blocks and plain arrays as they lie in memory, behind a head in JSON.
_MAGIC = b"hierblok"
_ALIGNMENT = 64
_PAGE = 4096


def head_of(path: Path) -> dict[str, Any]:
    """Read the head of a file: the configuration, and where arrays lie. Raises what `broken` catches."""
    with path.open("rb") as file:
        if file.read(8) != _MAGIC:
            raise ValueError("it begins with something else")
        head: dict[str, Any] = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        head["begin"] = -(-file.tell() // _PAGE) * _PAGE
    return head


def read_arrays(
    path: Path, head: Mapping[str, Any], far: Sequence[str]
) -> tuple[dict[str, NDArray[Any]], dict[str, Blocks]]:
    """Read vectors and matrices, in large pages if possible; the matrices `far`, which come last, stay mapped.
    Raises MemoryError, and what `broken` catches."""
    if head["version"] != VERSION:
        raise ValueError("it is of another version")
    begin = head["begin"]
    with path.open("rb") as file:
        data = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)[begin:]
    ends = [at + size for name, (at, size, *_) in head["matrices"].items() if name not in far]
    near = in_large_pages(path, begin, min(max(ends, default=0), data.nbytes))
    matrices = {}
    for name, (at, size, kind, rows, columns, lanes) in head["matrices"].items():
        whole = near if near is not None and at + size <= near.nbytes else data
        matrices[name] = Blocks(kind, whole[at : at + size], rows, columns, lanes)
        if at < 0 or matrices[name].nbytes != size or not matrices[name].is_whole:
            raise ValueError("it is cut off")
    vectors = {}
    for name, (at, shape) in head["vectors"].items():
        if at < 0:
            raise ValueError(f"{name} lies nowhere")
        vectors[name] = data[at : at + 4 * int(np.prod(shape))].view(np.float32).reshape(shape)
    return vectors, matrices


@contextmanager
def broken(path: Path) -> Iterator[None]:
    """Raise a BrokenFileError for whatever a damaged file leads to."""
    try:
        yield
    except (OSError, *NONSENSE) as error:
        raise BrokenFileError(
            f"{path.name} is broken: {error}. Remove the model and get it again."
        ) from error


MODEL_FILE = "blocks.bin"
_MTP, _AROUND = "mtp.", ("enorm", "hnorm")
_LAST = ("embedding", "layer_embedding")
"""What lies behind the others in a file."""

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class BlockModel:
    """Weights of a decoder: config.json, matrices by layer and name, and vectors by name. Of experts, matrices stand
    one behind the other; `head` is the embedding itself where the two are tied. Vectors: norms [layers, hidden],
    "last_norm" [hidden], norms of heads [layers, head_dim], "biases" [layers, heads + 2 kv heads, head_dim],
    "rope_factors" [head_dim / 2], "scales" [layers, 1]. Where layers have inputs of their own: `layer_embedding` and
    `layer_projection` of all layers, [vocabulary, layers * input] and [layers * input, hidden], and vectors
    "layer_norm" [input] and "after_layer_norms". `mtp`: matrices of the layer for multi-token prediction that the model
    brings, "eh_proj" [hidden, 2 hidden] among them. The names of its vectors begin with "mtp.": those of such a layer,
    and "enorm" and "hnorm" [hidden], the norms of the two inputs of eh_proj."""

    config: dict[str, Any]
    embedding: Blocks
    head: Blocks
    layers: tuple[Mapping[str, Blocks], ...]
    vectors: Mapping[str, Floats]
    layer_embedding: Blocks | None = None
    layer_projection: Blocks | None = None
    mtp: Mapping[str, Blocks] = field(default_factory=dict)

    def mtp_model(self) -> "BlockModel":
        """Return the layer for multi-token prediction as a model of one layer, which shares embedding and head."""
        layer = {name: matrix for name, matrix in self.mtp.items() if name != "eh_proj"}
        vectors = {name[len(_MTP) :]: one for name, one in self.vectors.items() if name.startswith(_MTP)}
        own = {name: one for name, one in vectors.items() if name not in _AROUND}
        return BlockModel(mtp_config(self.config), self.embedding, self.head, (layer,), own)

    def with_mtp(self, layer: "BlockModel", eh_proj: Blocks, norms: Mapping[str, Floats]) -> "BlockModel":
        """Return this model with a layer that mtp_model will return, what joins its inputs, and their norms."""
        vectors = {f"{_MTP}{name}": one for name, one in {**layer.vectors, **norms}.items()}
        return replace(self, vectors={**self.vectors, **vectors}, mtp={**layer.layers[0], "eh_proj": eh_proj})

    def matrices(self) -> Iterable[tuple[str, Blocks]]:
        """Yield all matrices by name; the head only where it is not the embedding."""
        yield "embedding", self.embedding
        if self.head is not self.embedding:
            yield "head", self.head
        for number, layer in enumerate(self.layers):
            for name, matrix in layer.items():
                yield f"{number}.{name}", matrix
        for name, matrix in self.mtp.items():
            yield f"{_MTP}{name}", matrix
        if self.layer_embedding and self.layer_projection:
            yield "layer_embedding", self.layer_embedding
            yield "layer_projection", self.layer_projection

    def as_floats(self) -> "BlockModel":
        """Return the model with float32 weights, but for those of `layer_embedding`, which no product reads."""
        embedding = self.embedding.as_floats()
        return replace(
            self,
            embedding=embedding,
            head=embedding if self.head is self.embedding else self.head.as_floats(),
            layers=tuple({name: one.as_floats() for name, one in layer.items()} for layer in self.layers),
            mtp={name: one.as_floats() for name, one in self.mtp.items()},
            layer_projection=self.layer_projection and self.layer_projection.as_floats(),
        )


def mtp_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of the layer for multi-token prediction as a model of one layer."""
    return {**config, "num_hidden_layers": 1, "layer_types": [FULL]}


def require_sizes(model: BlockModel) -> None:
    """Check that every matrix and vector has the size that the configuration says. Raises ValueError, naming one."""
    config, hidden = model.config, model.config["hidden_size"]
    layers = config["num_hidden_layers"]
    require_consistent(config)
    # How many tokens there are is not among the sizes
    wanted = {"embedding": (model.embedding.rows, hidden), "head": (model.head.rows, hidden)}
    if inputs := layer_input_size(config):
        tokens = config.get("vocab_size_per_layer_input") or model.embedding.rows
        wanted["layer_embedding"] = tokens, layers * inputs
        wanted["layer_projection"] = layers * inputs, hidden
    for layer in range(layers):
        sizes = matrix_sizes(config, layer)
        wanted |= {f"{layer}.{place}": size.shape for place, size in sizes.items()}
    found = {"head": model.head, **dict(model.matrices())}
    own_vectors = {name: vector for name, vector in model.vectors.items() if not name.startswith(_MTP)}
    if model.mtp:
        guessing = model.mtp_model()
        require_sizes(guessing)
        around = {f"{_MTP}{name}": (hidden,) for name in _AROUND}
        others = model.vectors.keys() - own_vectors.keys() - {f"{_MTP}{name}" for name in guessing.vectors}
        require_equal(around, {name: model.vectors[name].shape for name in others})
        wanted |= {f"{_MTP}eh_proj": (hidden, 2 * hidden)}
        wanted |= {f"{_MTP}{name}": matrix.shape for name, matrix in guessing.layers[0].items()}
    require_equal(wanted, {name: matrix.shape for name, matrix in found.items()})
    if odd := next((name for name, matrix in found.items() if not matrix.is_whole), None):
        raise ValueError(f"the matrix {odd} is not whole")
    shapes = {name: vector.shape for name, vector in own_vectors.items()}
    if factors := shapes.pop("rope_factors", ()):
        require_equal({"rope_factors": rotary_layouts(config)[0][:1]}, {"rope_factors": factors})
    require_equal(vector_shapes(config), shapes)


def require_equal(wanted: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]]) -> None:
    """Compare shapes by name. Raises ValueError, naming one that differs or is missing."""
    for name in sorted(wanted.keys() | found.keys()):
        if found.get(name) != wanted.get(name):
            shapes = (list(one[name]) if name in one else "missing" for one in (found, wanted))
            raise ValueError("{} is {}, by the configuration {}".format(name, *shapes))


def write_model(model: BlockModel, path: Path) -> None:
    """Write a head, then all arrays in order, each where a register's loads are aligned; embeddings last: what a
    forward reads a row of may stay on disk."""
    head: dict[str, Any] = {"config": model.config, "version": VERSION, "vectors": {}, "matrices": {}}
    arrays: list[NDArray[Any]] = []
    end = 0

    def place(array: NDArray[Any]) -> int:
        nonlocal end
        begin = -(-end // _ALIGNMENT) * _ALIGNMENT
        end = begin + array.nbytes
        arrays.append(np.ascontiguousarray(array))
        return begin

    for name, vector in model.vectors.items():
        head["vectors"][name] = [place(np.asarray(vector, np.float32)), vector.shape]
    for name, matrix in sorted(
        model.matrices(), key=lambda item: item[0] in _LAST and _LAST.index(item[0]) + 1
    ):
        entry = [place(matrix.data), matrix.nbytes, matrix.name, *matrix.shape, matrix.lanes]
        head["matrices"][name] = entry
    text = json.dumps(head).encode()
    with path.open("wb") as file:
        file.write(_MAGIC + len(text).to_bytes(8, "little") + text)
        begin = -(-file.tell() // _PAGE) * _PAGE
        for array in arrays:
            file.write(bytes(begin - file.tell()))
            file.write(array.reshape(-1).view(np.uint8).data)
            begin += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT


def model_mapped_bytes(path: Path) -> int:
    """Count the bytes that stay on disk, of per-layer inputs. Raises BrokenFileError."""
    with broken(path):
        return int(head_of(path)["matrices"].get("layer_embedding", (0, 0))[1])


def read_model(path: Path) -> BlockModel:
    """Read a model that write_model wrote. Raises BrokenFileError, or MemoryError."""
    with broken(path):
        head = head_of(path)
        # Of an embedding that is not the head a forward reads a row per token, and it stays mapped.
        far = _LAST if "head" in head["matrices"] else _LAST[1:]
        vectors, matrices = read_arrays(path, head, far)
        layers = [dict[str, Blocks]() for _ in range(head["config"]["num_hidden_layers"])]
        mtp = {name[len(_MTP) :]: one for name, one in matrices.items() if name.startswith(_MTP)}
        for name, matrix in matrices.items():
            if "." in name and not name.startswith(_MTP):
                number, place = name.split(".")
                layers[int(number)][place] = matrix
        embedding = matrices["embedding"]
        inputs = matrices.get("layer_embedding"), matrices.get("layer_projection")
        output = matrices.get("head", embedding)
        model = BlockModel(head["config"], embedding, output, tuple(layers), vectors, *inputs, mtp)
        require_sizes(model)
        if {embedding.rows, output.rows} != {head["config"]["vocab_size"]}:
            raise ValueError("it has another vocabulary")
        return model
