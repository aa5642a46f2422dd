"""Draft by the layer for multi-token prediction that a model brings (models/formats/mtp_layer.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from hierchat.engine.draft_head import DraftHead, Floats
from hierchat.engine.runner import Segment
from hierchat.engine.torch.block_linear import PackedLinear, multiplier_of, over_blocks, pack
from hierchat.engine.torch.torch_runner import TorchRunner, TorchSequence
from hierchat.engine.verification import ArrayRows, Rows
from hierchat.language import later
from hierchat.models.formats.mtp_layer import BEFORE_NORM
from hierchat.models.load.load_model import BlockModule
from hierchat.models.progress import BrokenFileError


class LayerRunner(TorchRunner):
    """Run a layer over rows that are given to it in place of tokens' embeddings. Nobody asks for equal bits."""

    @torch.inference_mode()
    def forward(self, segments: Sequence[Segment], *, padded: bool = True) -> list[Rows]:
        found = list[Rows]()
        for one in segments:
            sequence = one.sequence
            assert isinstance(sequence, TorchSequence)
            sequence.segment = one.tokens
            given = None if one.embeddings is None else torch.from_numpy(one.embeddings)
            states = self.run(
                sequence.slots, one.tokens, one.parents, padded=False, logits=False, embeddings=given
            )
            logits = np.empty((len(states), self.vocabulary), np.float32)
            read = states[-one.last :] if one.last else states
            if one.logits:  # of the rows that are read: vocabularies are large
                output = self.model.get_output_embeddings()(read[None])[0]
                logits[-len(read) :] = output.float().numpy(force=True)
            found.append(ArrayRows(logits, states.float().numpy(force=True)))
        return found


class MtpHead(DraftHead):
    """Draft by the layer that a model brings: in blocks, packed, or in floats on a GPU, as the model itself."""

    def __init__(self, layer: Any, runner: Any) -> None:
        """Take what LoadedModel.read_mtp returns, and its model's runner: embedding and output are shared. Raises
        BrokenFileError where the layer computes no numbers."""
        target = runner.model
        if isinstance(layer, BlockModule):
            layer = over_blocks(layer, multiplier_of(target))
        if any(isinstance(part, PackedLinear) for part in target.modules()):
            pack(layer.model.layers)
            layer.eh_proj = PackedLinear(layer.eh_proj)
        layer.set_input_embeddings(target.get_input_embeddings())
        output, self._before_norm = target.get_output_embeddings(), layer.config.model_type in BEFORE_NORM
        if self._before_norm:
            output, layer.model.norm = torch.nn.Sequential(layer.model.norm, output), torch.nn.Identity()
        layer.set_output_embeddings(output)
        self._layer = layer.to(target.device)
        own = LayerRunner(layer, context_length=runner.context_length, packed=False, quantum=1)
        super().__init__(own)
        if not self.warm_up(layer.config.hidden_size):
            raise BrokenFileError(later("it computes no numbers"))
        if self._before_norm:
            runner.keep_layers([target.config.num_hidden_layers])

    @torch.inference_mode()
    def joined(self, tokens: Sequence[int], states: Floats) -> Floats:
        layer = self._layer
        embedded = layer.get_input_embeddings()(torch.tensor([tokens], device=layer.device))
        before = torch.from_numpy(states)[None].to(layer.device, embedded.dtype)
        parts = layer.enorm(embedded), layer.hnorm(before)
        both = torch.cat(parts[::-1] if self._before_norm else parts, dim=-1)
        return np.asarray(layer.eh_proj(both)[0].float().numpy(force=True))
