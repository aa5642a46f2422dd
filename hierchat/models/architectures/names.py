"""Tensors of a decoder: how transformers calls them, and how GGUF files do."""

from __future__ import annotations

from typing import NamedTuple


class Name(NamedTuple):
    """A tensor's name in both. In the tables below, without its layer and without "weight" or "bias"."""

    transformers: str
    gguf: str

    def of(self, layer: int, kind: str = "weight") -> Name:
        """The whole name in a layer; `kind`: "weight" or "bias"."""
        return Name(f"model.layers.{layer}.{self.transformers}.{kind}", f"blk.{layer}.{self.gguf}.{kind}")


EMBEDDING = Name("model.embed_tokens.weight", "token_embd.weight")
LAST_NORM = Name("model.norm.weight", "output_norm.weight")
HEAD = Name("lm_head.weight", "output.weight")
"""Missing where the embedding serves as the head."""
ROPE_FACTORS = "rope_freqs.weight"
"""In GGUF files alone: what divides the rotary frequencies, ready-made."""
LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"
"""The same of texts that are longer than the model was first trained with, and of others."""

MATRICES = {
    "q": Name("self_attn.q_proj", "attn_q"),
    "k": Name("self_attn.k_proj", "attn_k"),
    "v": Name("self_attn.v_proj", "attn_v"),
    "o": Name("self_attn.o_proj", "attn_output"),
    "gate": Name("mlp.gate_proj", "ffn_gate"),
    "up": Name("mlp.up_proj", "ffn_up"),
    "down": Name("mlp.down_proj", "ffn_down"),
}
"""Matrices of a layer, in the order in which the CPU engine keeps them. All architectures have these."""
EXPERTS = {
    "router": Name("mlp.gate", "ffn_gate_inp"),
    "gate": Name("mlp.experts.{}.gate_proj", "ffn_gate_exps"),
    "up": Name("mlp.experts.{}.up_proj", "ffn_up_exps"),
    "down": Name("mlp.experts.{}.down_proj", "ffn_down_exps"),
}
"""Where a layer has several experts: what chooses among them, and in place of the matrices above, those of all experts
one behind the other. "{}" stands for an expert's number: GGUF files have all in one tensor."""
FUSED_EXPERTS = {
    "router": Name("mlp.router", "ffn_gate_inp"),
    "gate": Name("mlp.experts.gate_up_proj", "ffn_gate_exps"),
    "up": Name("mlp.experts.gate_up_proj", "ffn_up_exps"),
    "down": Name("mlp.experts.down_proj", "ffn_down_exps"),
}
"""The same in gpt-oss, whose safetensors have all experts in one tensor, gate and up in turn (formats/tensors.py)."""
NORMS = {
    "attention_norms": Name("input_layernorm", "attn_norm"),
    "inner_norms": Name("post_attention_layernorm", "ffn_norm"),
}
"""Before attention, and before the products of gate and up."""
SANDWICH_NORMS = {
    "attention_norms": Name("input_layernorm", "attn_norm"),
    "after_attention_norms": Name("post_attention_layernorm", "post_attention_norm"),
    "inner_norms": Name("pre_feedforward_layernorm", "ffn_norm"),
    "after_inner_norms": Name("post_feedforward_layernorm", "post_ffw_norm"),
}
"""Before attention and before the products of gate and up, and of what each of the two adds to the residual stream."""
NORMS_AFTER = {
    "after_attention_norms": Name("post_attention_layernorm", "post_attention_norm"),
    "after_inner_norms": Name("post_feedforward_layernorm", "post_ffw_norm"),
}
"""Only of what attention and gate add to the residual stream."""
QUERY_KEY_NORMS = {
    "query_norms": Name("self_attn.q_norm", "attn_q_norm"),
    "key_norms": Name("self_attn.k_norm", "attn_k_norm"),
}
"""Of each head of the queries and keys, or of all heads together, before rotary positions."""
