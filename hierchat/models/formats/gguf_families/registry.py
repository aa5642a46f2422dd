"""All families. A new one is a file of this folder and a line here."""

from __future__ import annotations

from hierchat.models.formats.gguf_families import (
    cohere2,
    gemma3n,
    glm4moe,
    granite,
    lfm2,
    nemotron_h,
    olmoe,
    qwen35,
)
from hierchat.models.formats.gguf_families.family import Family

_FILES = (cohere2, gemma3n, glm4moe, granite, lfm2, nemotron_h, olmoe, qwen35)
_ALL: tuple[Family, ...] = tuple(family for file in _FILES for family in file.FAMILIES)
FAMILIES = {family.gguf: family for family in _ALL}
"""By the name of the architecture in GGUF files."""
KINDS = {kind: family for family in _ALL for kind in family.kinds}
"""By transformers' names of what they may be."""
