"""What a folder of safetensors holds, found out before loading it: kind, size, wholeness, identity."""

import hashlib
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hierchat.models.architectures.layers import WITHOUT_SLOTS, slot_size
from hierchat.models.architectures.of_text import of_text
from hierchat.models.architectures.registry import ARCHITECTURES
from hierchat.models.catalogue import Size
from hierchat.models.errors import BrokenFileError, MissingError, UnsupportedError
from hierchat.models.fetch.convert import source_sha256

_SAMPLES, _SAMPLE_BYTES = 16, 64 * 1024


@dataclass(frozen=True, slots=True)
class Facts:
    """`positions`: the most that the model was made for. `identity`: names the weights themselves."""

    size: Size
    positions: int
    identity: str


def read_folder(folder: Path) -> Facts:
    """Raises MissingError, BrokenFileError or UnsupportedError, naming the file that cannot be loaded."""
    config = causal_config(folder, folder.name)
    shards = _shards(folder)
    headers = {shard: _header(shard) for shard in shards}
    numels = {
        name: math.prod(tensor["shape"]) for header in headers.values() for name, tensor in header.items()
    }
    size = Size(
        parameters=sum(numels.values()),
        embeddings=sum(
            n for name, n in numels.items() if "embed" in name or "wte" in name or "lm_head" in name
        ),
        slot=slot_of(config),
    )
    return Facts(size, getattr(config, "max_position_embeddings", None) or 2048, identity_of(folder))


def slot_of(config: Any) -> int:
    """Numbers per position of the key-value cache, by transformers' configuration."""
    said = of_text(config.to_dict())
    if said.get("model_type") in ARCHITECTURES:
        return slot_size(said)
    heads = getattr(config, "num_attention_heads", 0)
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_size = getattr(config, "head_dim", None) or (config.hidden_size // heads if heads else 0)
    kinds = getattr(config, "layer_types", None) or [None] * getattr(config, "num_hidden_layers", 0)
    return 2 * sum(kind not in WITHOUT_SLOTS for kind in kinds) * kv_heads * head_size


def identity_of(folder: Path) -> str:
    """See Facts. Imports no transformers. Raises MissingError or BrokenFileError."""
    converted = source_sha256(folder)
    return f"gguf:{converted}" if converted else f"safetensors:{_sampled_sha256(_shards(folder))}"


def causal_config(folder: Path, name: str) -> Any:
    """transformers' configuration of a model that chats; errors say its `name`. Raises as read_folder does."""
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL

    file = folder / "config.json"
    if not file.exists():
        raise MissingError(f"{folder} is no model folder: it has no config.json.")
    try:
        said = json.loads(file.read_text(encoding="utf-8"))
        kind, architectures = said.get("model_type"), said.get("architectures") or []
        if not isinstance(architectures, list):
            raise ValueError("architectures is no list")
    except (ValueError, AttributeError) as error:
        raise BrokenFileError(f"{file} cannot be read: {error}") from error
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except (ValueError, KeyError, OSError) as error:
        raise UnsupportedError(
            f"{name}: transformers does not know the architecture {kind!r}. Choose another model."
        ) from error
    known = {name for names in CAUSAL.values() for name in ([names] if isinstance(names, str) else names)}
    if kind not in CAUSAL or getattr(config, "is_encoder_decoder", False) or (set(architectures) - known):
        raise UnsupportedError(
            f"{name} is no causal language model ({kind}, made for another task), so it cannot chat."
        )
    return config


def _shards(folder: Path) -> list[Path]:
    """The safetensors files, all of those that the index names."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        try:
            shards = [
                folder / name for name in sorted(set(json.loads(index.read_text())["weight_map"].values()))
            ]
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise BrokenFileError(f"{index} cannot be read: {error}") from error
    else:
        shards = [folder / "model.safetensors"]
    for shard in shards:
        if not shard.exists():
            others = any(folder.glob("*.bin")) and " Weights in pickle files (.bin) are not loaded."
            raise MissingError(f"{folder} has no {shard.name}.{others or ''}")
    return shards


def _header(shard: Path) -> dict[str, dict[str, Any]]:
    """The tensors that a safetensors file declares; checks that the file is as long as they need."""
    try:
        size = shard.stat().st_size
        with shard.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 0 < length <= min(size - 8, 100_000_000):
                raise ValueError("its header is cut off")
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        end = 8 + length + max((tensor["data_offsets"][1] for tensor in header.values()), default=0)
        if end != size:
            raise ValueError(f"{end} bytes are declared and {size} are there")
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise BrokenFileError(f"{shard} is broken: {error}. Fetch or copy it again.") from error
    return header


def _sampled_sha256(shards: list[Path]) -> str:
    """Over each file's header, size and 16 blocks spread through it: quick, the same for every whole copy,
    and another for retrained weights. An edit of a few bytes between the blocks goes unseen.
    """
    digest = hashlib.sha256()
    for shard in shards:
        size = shard.stat().st_size
        with shard.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            digest.update(size.to_bytes(8, "little") + file.read(length))
            for i in range(_SAMPLES):
                file.seek(max(0, size - _SAMPLE_BYTES) * i // (_SAMPLES - 1), os.SEEK_SET)
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()
