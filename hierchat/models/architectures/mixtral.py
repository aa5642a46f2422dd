"""Mixtral, of safetensors: Llama whose layers have several experts. Its GGUF files call themselves Llama's."""

from hierchat.models.architectures.architecture import Architecture
from hierchat.models.architectures.names import MATRICES, NORMS, Name

ARCHITECTURE = Architecture(
    model_type="mixtral",
    gguf="mixtral",
    norms=NORMS,
    matrices=MATRICES
    | {
        "router": Name("block_sparse_moe.gate", "ffn_gate_inp"),
        "gate": Name("block_sparse_moe.experts.{}.w1", "ffn_gate_exps"),
        "up": Name("block_sparse_moe.experts.{}.w3", "ffn_up_exps"),
        "down": Name("block_sparse_moe.experts.{}.w2", "ffn_down_exps"),
    },
    window=True,
    rope_base=1_000_000.0,
)
