"""gpt-oss: experts with biases and a clamped gate, windows in every other layer, and heads that may look at nothing."""

from hierchat.models.architectures.architecture import CLAMPED, Architecture
from hierchat.models.architectures.names import FUSED_EXPERTS, MATRICES, Name

ARCHITECTURE = Architecture(
    model_type="gpt_oss",
    gguf="gpt-oss",
    norms={
        "attention_norms": Name("input_layernorm", "attn_norm"),
        "inner_norms": Name("post_attention_layernorm", "post_attention_norm"),
    },
    matrices=MATRICES | FUSED_EXPERTS,
    biases=("q", "k", "v", "o", "router", "gate", "up", "down"),
    sinks=Name("self_attn.sinks", "attn_sinks"),
    activation=CLAMPED,
    window=True,
    full_every=2,
    rope_base=150_000.0,
)
