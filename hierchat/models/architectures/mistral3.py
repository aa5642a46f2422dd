"""Ministral 3: Mistral with YaRN, and queries that grow with their position. GGUF files call it Mistral 3."""

from hierchat.models.architectures.architecture import Architecture
from hierchat.models.architectures.names import NORMS

ARCHITECTURE = Architecture(
    model_type="ministral3",
    gguf="mistral3",
    norms=NORMS,
    gguf_pairs_neighbours=True,
    window=True,
    rope_base=1_000_000.0,
)
