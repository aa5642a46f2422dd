"""How many bytes a model's weights are: to fetch, and to read once for each token. Known from its files where they are
here, else from the catalogue."""

from __future__ import annotations

import re

from hierchat.models.catalogue import ModelEntry, ModelSource
from hierchat.models.fetch.bring import fetched_size, is_fetched

_BITS = {
    "q2_k": 3.2, "q3_k": 3.9, "q4_0": 4.6, "q4_1": 5.0, "q4_k": 4.9, "q5_k": 5.7, "q6_k": 6.6, "q8_0": 8.5,
    "mxfp4": 4.6, "f16": 16.0, "bf16": 16.0, "f32": 32.0, "iq4": 4.5,
    "iq3": 3.6, "iq2": 2.7, "iq1": 2.0, "tq2": 2.3, "tq1": 2.0,
}  # fmt: skip
"""Of a weight, on average over a file: by what its name says of its blocks."""
_WIDENED = {"iq3": 4.7, "iq2": 4.7, "iq1": 4.7, "tq2": 2.9, "tq1": 2.9}
"""The same of what is made of them in memory (formats.codebooks)."""
_HUB_BYTES = 2
"""Of a weight in a repository of safetensors: almost all are in bfloat16."""


def weight_bytes(entry: ModelEntry, device: str) -> int | None:
    """Of the files; None where neither they nor the catalogue tell."""
    if entry.engine:
        return None
    if is_fetched(entry, device):
        return fetched_size(entry, device)
    source = entry.source_on(device)
    if source.gguf and source.gguf.mirror:
        return source.gguf.mirror.size
    if not entry.size:
        return None
    return int(entry.size.parameters * _bytes_of(source))


def block_bytes(entry: ModelEntry, device: str, weights: int | None = None) -> int | None:
    """The same as our own engine has them in memory: packed, or widened where a file's blocks are narrower than those
    that it computes on. `weights`: bytes of the tensors of files that are not here."""
    weights, size = weights or weight_bytes(entry, device), entry.size
    if weights and size and entry.blocks:
        return size.parameters * (entry.blocks + 1) // 8
    if weights and size and (kind := _kind_of(entry.source_on(device))) in _WIDENED:
        return max(weights, int(size.parameters * _WIDENED[kind] / 8))
    return weights


def _bytes_of(source: ModelSource) -> float:
    kind = _kind_of(source)
    return _BITS[kind] / 8 if kind else _HUB_BYTES


def _kind_of(source: ModelSource) -> str:
    """The kind of its blocks by the name of its file; empty where that does not tell."""
    gguf = source.gguf
    file = (
        (source.wheel and source.wheel.file) or (gguf and (gguf.file or (gguf.path and gguf.path.name))) or ""
    )
    kinds = [kind for kind in _BITS if re.search(rf"[-_.]{kind}(?![a-z0-9])", file.lower().replace("-", "_"))]
    return max(kinds, key=len, default="")
