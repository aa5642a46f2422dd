"""OLMo 3, which GGUF files call OLMo 2: windows over three layers of four, whose rotary positions are not scaled."""

from hierchat.models.architectures.architecture import Architecture
from hierchat.models.architectures.names import NORMS_AFTER, QUERY_KEY_NORMS

ARCHITECTURE = Architecture(
    model_type="olmo3",
    gguf="olmo3",
    norms=NORMS_AFTER | QUERY_KEY_NORMS,
    window=True,
    full_every=4,
    rope_base=500_000.0,
    local_rope_base=500_000.0,
)
