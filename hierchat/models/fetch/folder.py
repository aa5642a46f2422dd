"""Find out what a folder of safetensors holds before loading it: kind, size, wholeness, identity."""

from __future__ import annotations

import hashlib
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hierchat.models.architectures.families import ARCHITECTURES
from hierchat.models.architectures.model_config import WITHOUT_SLOTS, of_text, require_plausible, slot_size
from hierchat.models.catalogue import Size
from hierchat.models.fetch.convert import source_sha256
from hierchat.models.progress import NONSENSE, BrokenFileError, MissingError, UnsupportedError

_SAMPLES, _SAMPLE_BYTES = 16, 64 * 1024
_MOST_CONFIG, _MOST_HEADER, _LONGEST_NAME = 16_000_000, 100_000_000, 100


@dataclass(frozen=True, slots=True)
class Facts:
    """`positions`: the most that the model was made for. `identity`: names the weights themselves."""

    size: Size
    positions: int
    identity: str


def read_folder(folder: Path) -> Facts:
    """Read what a folder holds. Raises MissingError, BrokenFileError or UnsupportedError, naming the file."""
    config = causal_config(folder, folder.name)
    numels = {name: numel for shard in _shards(folder) for name, numel in _tensors(shard).items()}
    unquantised = [n for name, n in numels.items() if "embed" in name or "wte" in name or "lm_head" in name]
    try:
        size = Size(parameters=sum(numels.values()), embeddings=sum(unquantised), slot=slot_of(config))
    except NONSENSE as error:
        raise BrokenFileError(f"{folder} does not say what model it is. Fetch or copy it again.") from error
    return Facts(size, getattr(config, "max_position_embeddings", None) or 2048, identity_of(folder))


def slot_of(config: Any) -> int:
    """Count numbers per position of the key-value cache, by transformers' configuration."""
    said = of_text(config.to_dict())
    if said.get("model_type") in ARCHITECTURES:
        return slot_size(said)
    heads = getattr(config, "num_attention_heads", 0)
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_size = getattr(config, "head_dim", None) or (config.hidden_size // heads if heads else 0)
    kinds = getattr(config, "layer_types", None) or [None] * getattr(config, "num_hidden_layers", 0)
    return 2 * sum(kind not in WITHOUT_SLOTS for kind in kinds) * kv_heads * head_size


def identity_of(folder: Path) -> str:
    """Name the weights of a folder. Imports no transformers. Raises MissingError or BrokenFileError."""
    converted = source_sha256(folder)
    return f"gguf:{converted}" if converted else f"safetensors:{_sampled_sha256(_shards(folder))}"


def causal_config(folder: Path, name: str) -> Any:
    """Read transformers' configuration of a model that chats; errors say its `name`. Raises as read_folder does."""
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL

    said = read_config(folder)
    kind, architectures = said.get("model_type"), said.get("architectures") or []
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # its classes raise whatever odd values lead them to
        if kind in CONFIG_MAPPING_NAMES:
            raise BrokenFileError(
                f"{folder / 'config.json'} is not that of a {kind}. Fetch or copy it again."
            ) from error
        raise UnsupportedError(
            f"{name}: transformers does not know the architecture {kind!r}. Choose another model."
        ) from error
    known = {name for names in CAUSAL.values() for name in ([names] if isinstance(names, str) else names)}
    if kind not in CAUSAL or getattr(config, "is_encoder_decoder", False) or (set(architectures) - known):
        raise UnsupportedError(
            f"{name} is no causal language model ({kind}, made for another task), so it cannot chat."
        )
    return config


def read_config(folder: Path) -> dict[str, Any]:
    """Read config.json; its model_type is a text, and its numbers can be. Raises MissingError, BrokenFileError."""
    file = folder / "config.json"
    if not file.exists():
        raise MissingError(f"{folder} is no model folder: it has no config.json.")
    try:
        said = _json(file)
        kind = said.get("model_type", "")
        if not isinstance(kind, str) or len(kind) > _LONGEST_NAME:
            raise ValueError("it names no model_type")
        names = said.get("architectures") or []
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError("architectures is no list of names")
        require_plausible(said)
    except (OSError, *NONSENSE) as error:
        raise BrokenFileError(f"{file} cannot be read: {error}. Fetch or copy it again.") from error
    return said


def _json(file: Path) -> Any:
    if (size := file.stat().st_size) > _MOST_CONFIG:
        raise ValueError(f"it has {size:,} bytes")
    return json.loads(file.read_text(encoding="utf-8"))


def _shards(folder: Path) -> list[Path]:
    """List the safetensors files, all of those that the index names."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        try:
            names = sorted(set(_json(index)["weight_map"].values()))
            if elsewhere := next((name for name in names if Path(name).name != name), None):
                raise ValueError(f"it names {elsewhere[:80]}, which is no file beside it")
        except (OSError, *NONSENSE) as error:
            raise BrokenFileError(f"{index} cannot be read: {error}. Fetch or copy it again.") from error
        shards = [folder / name for name in names]
    else:
        shards = [folder / "model.safetensors"]
    for shard in shards:
        if not shard.exists():
            others = any(folder.glob("*.bin")) and " Weights in pickle files (.bin) are not loaded."
            raise MissingError(f"{folder} has no {shard.name}.{others or ''}")
    return shards


def _tensors(shard: Path) -> dict[str, int]:
    """Count the numbers in each tensor that a safetensors file declares, and check the file's length."""
    try:
        size = shard.stat().st_size
        with shard.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 0 < length <= min(size - 8, _MOST_HEADER):
                raise ValueError("its header is cut off")
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        end = 8 + length + max((tensor["data_offsets"][1] for tensor in header.values()), default=0)
        if end != size:
            raise ValueError(f"{end} bytes are declared and {size} are there")
        shapes = {name: tensor["shape"] for name, tensor in header.items()}
        if not all(type(one) is int and 0 <= one <= size for shape in shapes.values() for one in shape):
            raise ValueError("it declares a shape that cannot be")
    except (OSError, *NONSENSE) as error:
        raise BrokenFileError(f"{shard} is broken: {error}. Fetch or copy it again.") from error
    return {name: math.prod(shape) for name, shape in shapes.items()}


def _sampled_sha256(shards: list[Path]) -> str:
    """Hash each file's header, size and 16 blocks spread through it: edits of a few bytes between go unseen."""
    digest = hashlib.sha256()
    for shard in shards:
        size = shard.stat().st_size
        with shard.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            digest.update(size.to_bytes(8, "little") + file.read(min(length, _MOST_HEADER)))
            for i in range(_SAMPLES):
                file.seek(max(0, size - _SAMPLE_BYTES) * i // (_SAMPLES - 1), os.SEEK_SET)
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()
