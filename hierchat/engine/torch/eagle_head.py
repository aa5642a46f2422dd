"""Draft by an EAGLE-3 head (models/formats/eagle_files.py) for a model that transformers' modules compute."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.initialization import no_init_weights
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm

from hierchat.engine.draft_head import Floats
from hierchat.engine.torch.block_linear import PackedLinear, can_pack, multiplier_of, pack
from hierchat.engine.torch.mtp_head import ModuleHead, module_behind
from hierchat.models.formats.eagle_files import EagleConfig, head_tensors, read_config, take_known
from hierchat.models.formats.mtp_layer import made_of

_IN_FILES = {"lm_head.0.weight": "norm.weight", "lm_head.1.weight": "lm_head.weight"}


class EagleLayer(LlamaDecoderLayer):
    """Compute the layer of an EAGLE-3 head over [rows, 2 * hidden]: a token's embedding and the state beside it."""

    def __init__(self, config: LlamaConfig, normed_residual: bool) -> None:
        super().__init__(config, 0)
        self._normed_residual = normed_residual
        self.hidden_norm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        for name in ("q_proj", "k_proj", "v_proj"):
            out = getattr(self.self_attn, name).out_features
            wide = nn.Linear(2 * config.hidden_size, out, bias=config.attention_bias)
            setattr(self.self_attn, name, wide)

    def forward(self, hidden_states: torch.Tensor, **places: Any) -> torch.Tensor:
        embedded, state = hidden_states.chunk(2, dim=-1)
        normed = self.hidden_norm(state)
        both = torch.cat((self.input_layernorm(embedded), normed), dim=-1)
        x = (normed if self._normed_residual else state) + self.self_attn(hidden_states=both, **places)[0]
        return x + self.mlp(self.post_attention_layernorm(x))


class EagleHead(ModuleHead):
    """Draft by an EAGLE-3 head; once it is made, its target's runner brings the states that it reads."""

    def __init__(self, name: str, path: Path, said: dict[str, Any], runner: Any) -> None:
        """Take the head of a folder or a GGUF file with its configuration, and the target's runner. Raises
        UnsupportedError where it does not fit the target, BrokenFileError, and what safetensors raise."""
        target = module_behind(runner)
        self.name, self._config = name, read_config(said, target.config.get_text_config(decoder=True))
        self._states = len(self._config.layers) * self._config.state
        tensors = head_tensors(path, self._config, target.dtype)
        known, embeds = take_known(tensors, self._config), "embed_tokens.weight" in tensors
        layer = made_of(tensors, lambda: _empty(self._config, embeds, target.dtype), _IN_FILES)
        packed = multiplier_of(target) or any(isinstance(part, PackedLinear) for part in target.modules())
        if packed and can_pack(layer):
            pack(layer)
        if layer.get_input_embeddings() is None:
            layer.set_input_embeddings(target.get_input_embeddings())
        super().__init__(layer, target, runner.context_length, self._states)
        self.known = known
        runner.keep_layers(self._config.layers)

    @torch.inference_mode()
    def joined(self, tokens: Sequence[int], states: Floats) -> Floats:
        layer, options = self._layer, self._config.options
        embedded = layer.get_input_embeddings()(torch.tensor([tokens], device=layer.device))[0]
        state = torch.from_numpy(states).to(layer.device, embedded.dtype)
        if state.shape[1] == self._states:  # the target's
            state = layer.fc(layer.input_norm(state) if "norm_before_fc" in options else state)
        elif "norm_output" in options:
            state = layer.lm_head[0](state)
        return np.asarray(torch.cat((embedded, state), dim=-1).float().numpy(force=True))


def _empty(config: EagleConfig, embeds: bool, dtype: torch.dtype) -> Any:
    """Make the module without memory for its weights. The last norm is part of the output: what is chained comes from
    before it."""
    own = LlamaConfig(**config.shape, vocab_size=config.outputs, num_hidden_layers=1)
    states, size = len(config.layers) * config.state, own.hidden_size
    with no_init_weights(), torch.device("meta"):
        layer: Any = LlamaForCausalLM._from_config(own, dtype=dtype)
        layer.model.layers[0] = EagleLayer(layer.config, "norm_before_residual" in config.options).to(dtype)
        layer.lm_head, layer.model.norm = nn.Sequential(layer.model.norm, layer.lm_head), nn.Identity()
        layer.fc = nn.Linear(states, size, bias=False, dtype=dtype)
        if "norm_before_fc" in config.options:
            layer.input_norm = LlamaRMSNorm(states, eps=own.rms_norm_eps).to(dtype)
        layer.model.embed_tokens = None
        if embeds or size != config.state:
            layer.model.embed_tokens = nn.Embedding(config.vocabulary, size, dtype=dtype)
    return layer
