"""Phi-3, Phi-4 and Phi-4-mini: Llama with one matrix for queries, keys and values, and one for gate and up."""

from hierchat.models.architectures.architecture import Architecture
from hierchat.models.architectures.names import MATRICES, NORMS, Name

_QKV = Name("self_attn.qkv_proj", "attn_qkv")
_GATE_UP = Name("mlp.gate_up_proj", "ffn_up")

ARCHITECTURE = Architecture(
    model_type="phi3",
    gguf="phi3",
    norms=NORMS,
    matrices=MATRICES | dict.fromkeys("qkv", _QKV) | dict.fromkeys(("gate", "up"), _GATE_UP),
    window=True,
)
