"""Granite 3: Llama with multipliers, which config.json gives (sizes)."""

from hierchat.models.architectures.architecture import Architecture
from hierchat.models.architectures.names import NORMS

ARCHITECTURE = Architecture(
    model_type="granite",
    gguf="granite",
    norms=NORMS,
    gguf_pairs_neighbours=True,
)
