"""Seed-OSS: Llama with biases of queries, keys and values."""

from hierchat.models.architectures.architecture import Architecture
from hierchat.models.architectures.names import Name

ARCHITECTURE = Architecture(
    model_type="seed_oss",
    gguf="seed_oss",
    norms={
        "attention_norms": Name("input_layernorm", "attn_norm"),
        "inner_norms": Name("post_attention_layernorm", "post_attention_norm"),
    },
    biases=("q", "k", "v"),
    optional_biases=True,
)
