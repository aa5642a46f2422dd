"""Gemma 3, of texts: norms around attention and gate, windows over five layers of six, whose rotary base is another."""

from hierchat.models.architectures.architecture import Architecture
from hierchat.models.architectures.names import QUERY_KEY_NORMS, SANDWICH_NORMS

ARCHITECTURE = Architecture(
    model_type="gemma3_text",
    gguf="gemma3",
    norms=SANDWICH_NORMS | QUERY_KEY_NORMS,
    norm_offset=1.0,
    scaled_embedding=True,
    activation="gelu_pytorch_tanh",
    window=True,
    full_every=6,
    rope_base=1_000_000.0,
    local_rope_base=10_000.0,
)
