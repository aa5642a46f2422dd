"""SmolLM3: Llama, one layer of four without rotary positions."""

from hierchat.models.architectures.architecture import Architecture
from hierchat.models.architectures.names import NORMS

ARCHITECTURE = Architecture(
    model_type="smollm3",
    gguf="smollm3",
    norms=NORMS,
    gguf_pairs_neighbours=True,
    rope_base=2_000_000.0,
    unrotated_every=4,
)
