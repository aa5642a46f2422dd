"""Gemma 4, of texts: Gemma 3 with larger heads where there is no window, and what some of its sizes have: layers that
share keys and values, inputs of layers, experts beside the rest."""

from hierchat.models.architectures.architecture import Architecture
from hierchat.models.architectures.names import (
    EXPERTS_BESIDE,
    LAYER_INPUT_NORMS,
    LAYER_INPUTS,
    LAYER_SCALES,
    MATRICES,
    NORMS_BESIDE,
    QUERY_KEY_NORMS,
    SANDWICH_NORMS,
)

ARCHITECTURE = Architecture(
    model_type="gemma4_text",
    gguf="gemma4",
    norms=SANDWICH_NORMS | QUERY_KEY_NORMS | LAYER_INPUT_NORMS | NORMS_BESIDE,
    matrices=MATRICES | LAYER_INPUTS,
    beside=EXPERTS_BESIDE,
    scales=LAYER_SCALES,
    value_norm=True,
    scaled_embedding=True,
    activation="gelu_pytorch_tanh",
    window=True,
    full_every=6,
    rope_base=1_000_000.0,
    local_rope_base=10_000.0,
    query_scale=1.0,
    full_head_dim=512,
)
