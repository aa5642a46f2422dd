"""What models.yaml shall say of a model that the user names, out of its config.json or the head of its GGUF file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hierchat.models.architectures.layers import slot_size
from hierchat.models.architectures.names import EMBEDDING, HEAD, LAYER_EMBEDDING
from hierchat.models.architectures.sizes import experts_of, require_plausible
from hierchat.models.catalogue import Catalogue, ModelEntry
from hierchat.models.errors import NONSENSE, BrokenFileError, UnsupportedError
from hierchat.models.formats.gguf_config import gguf_config
from hierchat.models.formats.gguf_head import Head
from hierchat.models.formats.gguf_shards import without_number
from hierchat.models.load.check import by_engine, require_runnable_head
from hierchat.models.memory import best_device
from hierchat.models.own import add_model, free_name
from hierchat.models.runnable import Step, gguf_step, refused, step, unsupported

CONTEXT = 8192
"""Positions that an added model gets at most; models.yaml may say more."""
_EMBEDDINGS = (EMBEDDING.gguf, HEAD.gguf, LAYER_EMBEDDING.gguf)


@dataclass(frozen=True, slots=True)
class Described:
    """`name`: what it would be called; `fields`: of models.yaml; `step`: what will compute it here; `weights`: bytes of
    its tensors, None where that is not known."""

    name: str
    fields: Mapping[str, Any]
    step: Step
    weights: int | None = None

    @property
    def entry(self) -> ModelEntry:
        """As the catalogue would have it."""
        return ModelEntry.model_validate({"name": free_name(without_number(self.name), _NONE), **self.fields})

    def at(self, **source: Mapping[str, str]) -> Described:
        """The same, with the place that it comes from."""
        return replace(self, fields={"source": source, **self.fields})


_NONE = Catalogue(models={}, default="")


def add_described(described: Described, catalogue: Catalogue) -> str:
    """Write it into the user's models.yaml; its name there. Raises CatalogueError."""
    name = free_name(without_number(described.name), catalogue)
    add_model(name, described.fields)
    return name


def of_head(name: str, head: Head) -> Described:
    """Of a GGUF file. Raises UnsupportedError where it cannot run here, BrokenFileError."""
    entry = ModelEntry.model_validate({"name": "it", "source": {"gguf": {"path": name}}})
    device = best_device()
    try:
        require_runnable_head(entry.model_copy(update={"name": name}), head, device)
        config = gguf_config(head)
        computed = gguf_step(head, own=by_engine(entry, device, None), device=device)
        embeddings = [tensor for tensor in head.tensors if tensor.name in _EMBEDDINGS]
        inner = [tensor for tensor in head.tensors if tensor not in embeddings]
        whole = head.parameters
        rest = Head({}, tuple(inner)).parameters
        counted = {"parameters": whole, "embeddings": whole - rest, "slot": _slot(config)}
        size = {"size": counted | _active(head)} if whole else {}
        fields = {**_context(config), **size, **_licence(head.values), **_kind(config)}
    except NONSENSE as error:
        raise BrokenFileError(f"{name} does not say what model it is. Choose another file.") from error
    return Described(name, fields, computed, sum(tensor.size for tensor in head.tensors) or None)


def of_config(name: str, text: str | bytes, parameters: int | None = None) -> Described:
    """Of safetensors beside a config.json of this text, packed to blocks where our own engine can compute it.
    `parameters`: in all of them, where that is known. Raises UnsupportedError, BrokenFileError."""
    try:
        config = json.loads(text)
        require_plausible(config)
        own = unsupported(config)
        through = refused(config)
        on_cpu = best_device().startswith("cpu")
        computed = step(config, own=on_cpu)
        size = {"size": _size(config, parameters)} if parameters else {}
        fields = {**_context(config), **({"blocks": 8} if not own else {}), **size, **_kind(config)}
    except NONSENSE as error:
        raise BrokenFileError(
            f"The config.json of {name} does not say what model it is. Choose another model."
        ) from error
    if through and (own or not on_cpu):
        kind = config.get("model_type")
        raise UnsupportedError(f"{name} cannot run here. It is a model of the kind {kind}, and {through}.")
    return Described(name, fields, computed)


def _size(config: Mapping[str, Any], parameters: int) -> dict[str, int]:
    text = config.get("text_config") or config
    tied = text.get("tie_word_embeddings", config.get("tie_word_embeddings", False))
    rows = _number(text.get("vocab_size")) * _number(text.get("hidden_size"))
    experts, active = experts_of(text)
    width = _number(text.get("moe_intermediate_size") or text.get("intermediate_size"))
    layers = _number(text.get("num_hidden_layers"))
    asleep = 3 * _number(text.get("hidden_size")) * width * layers * max(experts - active, 0)
    woken = {"active": parameters - asleep} if active and 0 < asleep < parameters else {}
    embeddings = min(rows if tied else 2 * rows, parameters)
    return {"parameters": parameters, "embeddings": embeddings, "slot": _slot(text), **woken}


def _number(told: Any) -> int:
    return told if isinstance(told, int) and told > 0 else 0


def _active(head: Head) -> dict[str, int]:
    """How many parameters a token uses, where only some of several experts are woken, or layers have inputs."""
    experts, active = (int(head.of_architecture(f"expert_{key}") or 0) for key in ("count", "used_count"))
    several = [tensor for tensor in head.tensors if "_exps." in tensor.name]
    asleep = 0
    if several and 0 < active < experts:
        asleep = Head({}, tuple(several)).parameters * (experts - active) // experts
    inputs = tuple(tensor for tensor in head.tensors if tensor.name == LAYER_EMBEDDING.gguf)
    looked_up = Head({}, inputs).parameters  # of which a token uses a row
    found = {"active": head.parameters - asleep - looked_up, "looked_up": looked_up}
    return {key: number for key, number in found.items() if number} if asleep or looked_up else {}


def _context(config: Mapping[str, Any]) -> dict[str, int]:
    positions = (config.get("text_config") or config).get("max_position_embeddings")
    return {
        "context_length": min(CONTEXT, positions)
        if isinstance(positions, int) and positions >= 16
        else CONTEXT
    }


def _slot(config: Mapping[str, Any]) -> int:
    try:
        return slot_size(config)
    except NONSENSE:
        return 0


def _kind(config: Mapping[str, Any]) -> dict[str, str]:
    return {"kind": str(config["model_type"])} if config.get("model_type") else {}


def _licence(values: Mapping[str, Any]) -> dict[str, str]:
    licence = values.get("general.license")
    return {"licence": licence[:60]} if isinstance(licence, str) and licence else {}
