"""How many bytes a model's weights are: to fetch, and to read once for each token. Known from its files where they are
here, else from the catalogue."""

from __future__ import annotations

import re

from hierchat.models.catalogue import ModelEntry, ModelSource
from hierchat.models.fetch.bring import fetched_size, is_fetched

_BITS = {
    "q2_k": 3.2, "q3_k": 3.9, "q4_0": 4.6, "q4_1": 5.0, "q4_k": 4.9, "q5_k": 5.7, "q6_k": 6.6, "q8_0": 8.5,
    "mxfp4": 4.6, "f16": 16.0, "bf16": 16.0, "f32": 32.0, "iq4": 4.5,
}  # fmt: skip
"""Of a weight, on average over a file: by what its name says of its blocks."""
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


def _bytes_of(source: ModelSource) -> float:
    file = (source.wheel and source.wheel.file) or (source.gguf and source.gguf.file) or ""
    kinds = [kind for kind in _BITS if re.search(rf"[-_.]{kind}(?![a-z0-9])", file.lower().replace("-", "_"))]
    return _BITS[max(kinds, key=len)] / 8 if kinds else _HUB_BYTES
