"""Qwen3 with experts, such as Qwen3-Coder 30B-A3B: Qwen3 whose layers have several experts, and no dense layer."""

from hierchat.models.architectures.architecture import Architecture
from hierchat.models.architectures.names import EXPERTS, MATRICES, NORMS, QUERY_KEY_NORMS

ARCHITECTURE = Architecture(
    model_type="qwen3_moe",
    gguf="qwen3moe",
    norms=NORMS | QUERY_KEY_NORMS,
    matrices=MATRICES | EXPERTS,
    inner="moe_intermediate_size",
)
