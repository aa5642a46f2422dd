"""Gemma 2: norms around attention and gate, windows over every second layer, soft caps of scores and logits."""

from hierchat.models.architectures.architecture import Architecture
from hierchat.models.architectures.names import SANDWICH_NORMS

ARCHITECTURE = Architecture(
    model_type="gemma2",
    gguf="gemma2",
    norms=SANDWICH_NORMS,
    norm_offset=1.0,
    scaled_embedding=True,
    activation="gelu_pytorch_tanh",
    window=True,
    full_every=2,
)
