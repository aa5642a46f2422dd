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
LAYER_EMBEDDING = Name("model.embed_tokens_per_layer.weight", "per_layer_token_embd.weight")
LAYER_PROJECTION = Name("model.per_layer_model_projection.weight", "per_layer_model_proj.weight")
LAYER_PROJECTION_NORM = Name("model.per_layer_projection_norm.weight", "per_layer_proj_norm.weight")
"""What layers with inputs of their own begin with: a part of each token's own, and one made of its embedding."""
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
LAYER_INPUTS = {
    "layer_gate": Name("per_layer_input_gate", "inp_gate"),
    "layer_out": Name("per_layer_projection", "proj"),
}
"""Where a layer has an input of its own beside the residual stream: what opens it, and what makes it part of that."""
LAYER_INPUT_NORMS = {"after_layer_norms": Name("post_per_layer_input_norm", "post_norm")}
"""Of what it adds to the residual stream."""
EXPERTS_BESIDE = {
    "router": Name("router.proj", "ffn_gate_inp"),
    "gate": Name("experts.gate_up_proj", "ffn_gate_up_exps"),
    "up": Name("experts.gate_up_proj", "ffn_gate_up_exps"),
    "down": Name("experts.down_proj", "ffn_down_exps"),
    "dense_gate": Name("mlp.gate_proj", "ffn_gate"),
    "dense_up": Name("mlp.up_proj", "ffn_up"),
    "dense_down": Name("mlp.down_proj", "ffn_down"),
}
"""Where a layer has several experts beside the matrices that other layers have alone."""
NORMS_BESIDE = {
    "after_dense_norms": Name("post_feedforward_layernorm_1", "post_ffw_norm_1"),
    "expert_norms": Name("pre_feedforward_layernorm_2", "pre_ffw_norm_2"),
    "after_expert_norms": Name("post_feedforward_layernorm_2", "post_ffw_norm_2"),
}
"""Of what the others bring, before the experts, and of what these bring."""
ROUTER_NORMS = Name("router.scale", "ffn_gate_inp")
EXPERT_SCALES = Name("router.per_expert_scale", "ffn_down_exps")
"""What the router reads is multiplied by, and what each expert brings; of the kind "scale"."""
LAYER_SCALES = Name("layer_scalar", "layer_output_scale")
"""A number that multiplies the residual stream behind a layer."""
