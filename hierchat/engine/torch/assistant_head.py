"""Draft by a Gemma 4 assistant: layers that have queries alone, and look at the keys and values of their target.

Of a token and the state before it, it makes the next state and token. Each draft is computed at the place behind the
target's text and sees what is committed there, but no other draft: of its own the assistant keeps nothing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM
from transformers.initialization import no_init_weights

from hierchat.engine.draft_head import Floats, HeadForward, HeadRows
from hierchat.engine.torch.mtp_head import ModuleHead, module_behind
from hierchat.engine.torch.torch_runner import TorchSequence
from hierchat.engine.verification import ArrayRows
from hierchat.language import later
from hierchat.models.architectures.model_config import SLIDING
from hierchat.models.fetch.convert import causal_config
from hierchat.models.formats.mtp_layer import made_of, read_tensors
from hierchat.models.progress import BrokenFileError, UnsupportedError


class AssistantHead(ModuleHead):
    """Draft by an assistant. The sequences of its cells hold no keys: they count."""

    def __init__(self, name: str, folder: Path, sequence: Any) -> None:
        """Take the assistant of a folder, and a sequence of the target whose text may go. Raises UnsupportedError where
        it does not fit the target, BrokenFileError, and what safetensors raise."""
        self.name, target = name, module_behind(sequence.runner)
        config, text = causal_config(folder, name), target.config.get_text_config(decoder=True)
        sequence.rollback(0)
        sequence.read([1])
        self._window, self._seen = config.get_text_config().sliding_window, _seen(config, text, sequence)
        output = {"model.embed_tokens.weight": "lm_head.weight" if config.tie_word_embeddings else None}
        tensors = read_tensors(folder, lambda tensor: output.get(tensor, tensor.removeprefix("model.")))
        layer = made_of(tensors, lambda: _empty(config, target.dtype))
        if config.use_ordered_embeddings:
            order, groups = layer.masked_embedding.token_ordering, config.num_centroids
            whole = len(order) % groups == 0 and config.centroid_intermediate_top_k <= groups
            if not whole or order.min() < 0 or order.max() >= len(order):
                raise BrokenFileError(later("its groups of tokens (token_ordering) make no sense"))
        layer.set_input_embeddings(target.get_input_embeddings())
        super().__init__(layer, target, sequence.context_length, text.hidden_size, sequence)

    @torch.inference_mode()
    def joined(self, tokens: Sequence[int], states: Floats) -> Floats:
        embedded = self._layer.get_input_embeddings()(torch.tensor([tokens], device=self._layer.device))[0]
        return np.concatenate((embedded.float().numpy(force=True), states), axis=1)

    @torch.inference_mode()
    def forward(self, wanted: Sequence[HeadForward]) -> list[HeadRows]:
        found, layer = list[HeadRows](), self._layer
        for one in wanted:
            began, rows = time.perf_counter(), one.last or 1  # others mean nothing to these
            assert isinstance(one.sequence, TorchSequence)
            assert isinstance(one.target, TorchSequence)
            one.sequence.segment, slots, shared = one.tokens, one.target.slots, {}
            for kind, number in self._seen.items():
                begin = max(slots.length - self._window - 1, 0) if kind == SLIDING else 0  # it masks the rest
                both = slots.layers[number].keys, slots.layers[number].values
                shared[kind] = [part[:, :, begin : slots.length].expand(rows, -1, -1, -1) for part in both]
            inputs = torch.from_numpy(self.joined(one.tokens[-rows:], one.states[-rows:]))
            out = layer(
                inputs_embeds=inputs[:, None].to(layer.device, layer.dtype),
                position_ids=torch.full((rows, 1), slots.length, device=layer.device),
                shared_kv_states=shared,
            )
            read = [part[:, 0].float().numpy(force=True) for part in (out.logits, out.last_hidden_state)]
            found.append(HeadRows(ArrayRows(*read), None, (time.perf_counter() - began) * 1e3))
        return found


def _seen(config: Any, target: Any, sequence: Any) -> dict[str, int]:
    """Return at which of the target's layers those of each kind look: the last one with keys of its own. Raises
    UnsupportedError where the assistant was made for another target."""
    own, seen, layers = config.get_text_config(), dict[str, int](), getattr(sequence.slots, "layers", ())
    if (own.vocab_size, config.backbone_hidden_size) == (target.vocab_size, target.hidden_size):
        kinds = zip(getattr(target, "layer_types", None) or (), layers, strict=False)
        seen = {kind: number for number, (kind, held) in enumerate(kinds) if held.is_initialized}
    for kind, one in zip(own.layer_types, own.per_layer_config, strict=True):
        shape = one.num_key_value_heads, one.head_dim
        if kind not in seen or layers[seen[kind]].keys.shape[1::2] != shape:
            raise UnsupportedError(later("it was made for another model"))
    return seen


def _empty(config: Any, dtype: torch.dtype) -> Any:
    """Make the module without memory for its weights, at first with keys of its own: transformers would look for a
    layer below that has some."""
    config.get_text_config().num_kv_shared_layers = 0
    with no_init_weights(), torch.device("meta"):
        module = AutoModelForCausalLM.from_config(config, dtype=dtype)
    module.model.embed_tokens = None  # the output is all that there is of it
    for attention in (layer.self_attn for layer in module.model.layers):
        attention.is_kv_shared_layer = True
        del attention.k_proj, attention.v_proj, attention.k_norm, attention.v_norm
    return module
