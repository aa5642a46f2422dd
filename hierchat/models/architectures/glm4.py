"""GLM 4 (0414): norms around attention and gate, one matrix for gate and up, half of each head rotated."""

from hierchat.models.architectures.architecture import Architecture
from hierchat.models.architectures.names import MATRICES, Name

ARCHITECTURE = Architecture(
    model_type="glm4",
    gguf="glm4",
    norms={
        "attention_norms": Name("input_layernorm", "attn_norm"),
        "after_attention_norms": Name("post_self_attn_layernorm", "post_attention_norm"),
        "inner_norms": Name("post_attention_layernorm", "ffn_norm"),
        "after_inner_norms": Name("post_mlp_layernorm", "post_ffw_norm"),
    },
    matrices=MATRICES | dict.fromkeys(("gate", "up"), Name("mlp.gate_up_proj", "ffn_up")),
    biases=("q", "k", "v"),
    optional_biases=True,
    gguf_pairs_neighbours=True,
    pairs_neighbours=True,
    rotary_part=0.5,
)
