"""Check the tensors of a GGUF file against the list that follows from its configuration, before they are read."""

import math
from collections.abc import Mapping
from typing import Any

from hierchat.models.architectures import families, mixers, model_config
from hierchat.models.architectures.model_config import Expected
from hierchat.models.formats.blocks import TYPES, UnknownBlockType
from hierchat.models.formats.gguf_head import Head, Tensor
from hierchat.models.progress import BrokenFileError, UnsupportedError

FLOATS = ("F32", "F16", "BF16")
"""Types of tensors that are no matrices."""
_FACTORS = (families.ROPE_FACTORS, families.LONG_FACTORS, families.SHORT_FACTORS)


def expected_of(config: Mapping[str, Any], head: Head) -> dict[str, Expected]:
    """Return the tensors that a file must or may have, by name. Raises ValueError or KeyError."""
    embedding = next((one.shape[-1] for one in head.tensors if one.name == families.EMBEDDING.gguf), 0)
    config = {
        **mixers.completed(config),
        "vocab_size": head.vocabulary or config.get("vocab_size") or embedding or 1,
    }
    wanted = {one.name.gguf: one for one in model_config.expected(config)}
    # Keys and values of layers that use others' may be there, too; nobody reads them
    for one in model_config.expected({**config, "num_kv_shared_layers": 0}):
        wanted.setdefault(one.name.gguf, one._replace(optional=True))
    turned = model_config.rotary_layouts(config)[0].offset
    for name in _FACTORS:
        wanted[name] = Expected(families.Name("", name), (turned,), optional=True)
    return wanted


def require_shapes(head: Head, wanted: Mapping[str, Expected], name: str) -> None:
    """Check the shape and type of each listed tensor. Raises BrokenFileError, UnsupportedError."""
    for tensor in head.tensors:
        if one := wanted.get(tensor.name):
            shape = tensor.shape[::-1]
            squeezed = [size for size in shape if size != 1] == [size for size in one.shape if size != 1]
            in_one_row = len(one.shape) == 1 and math.prod(shape) == one.shape[0]
            if not (one.loose and (squeezed or in_one_row)):
                require_shape(tensor, one.shape, name)
            require_type(tensor, name, matrix=one.matrix)


def require_shape(tensor: Tensor, shape: tuple[int, ...], name: str) -> None:
    """Check a tensor's shape, row length last; leading dimensions of one do not count. Raises BrokenFileError."""
    if _plain(tensor.shape[::-1]) != _plain(shape):
        found, right = (" x ".join(map(str, one)) for one in (tensor.shape[::-1], shape))
        raise BrokenFileError(
            f"{name} does not fit what it says of the model: its tensor {tensor.name} is {found}, not {right}. "
            "Choose another file."
        )


def _plain(shape: tuple[int, ...]) -> tuple[int, ...]:
    ones = next((at for at, size in enumerate(shape) if size != 1), len(shape))
    return shape[ones:]


def require_type(tensor: Tensor, name: str, *, matrix: bool) -> None:
    """Check the type of a tensor's numbers. Raises UnsupportedError."""
    if tensor.type not in TYPES:
        raise UnsupportedError(f"{name}: {tensor.name} has {UnknownBlockType(tensor.type)}.")
    if not matrix and tensor.type not in FLOATS:
        raise UnsupportedError(
            f"{name}: {tensor.name} is in {tensor.type}; it is read in {', '.join(FLOATS)} alone."
        )


def foreign(head: Head, wanted: Mapping[str, Expected]) -> str | None:
    """Return a tensor of a file that the list lacks, None if there is none. MTP layers do not count."""
    total = head.of_architecture("block_count") or 0
    guessing = range(total - (head.of_architecture("nextn_predict_layers") or 0), total)
    behind = tuple(f"blk.{layer}." for layer in guessing)
    others = (one.name for one in head.tensors if one.name not in wanted and not one.name.startswith(behind))
    return min(others, default=None)


def require_all(head: Head, wanted: Mapping[str, Expected], name: str) -> None:
    """Check that a file has every tensor that it must have, and no other. Raises BrokenFileError, UnsupportedError."""
    there = {tensor.name for tensor in head.tensors}
    if missing := min(
        (key for key, one in wanted.items() if not one.optional and key not in there), default=None
    ):
        raise BrokenFileError(f"{name} lacks the tensor {missing}. Fetch or copy it again.")
    if other := foreign(head, wanted):
        raise UnsupportedError(f"{name} has the tensor {other}, which such a model does not have.")
