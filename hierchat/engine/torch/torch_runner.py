"""Run models of transformers on torch: their own modules with our attention, slots and padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hierchat.engine.cuda.packed_modules import packed_matrices
from hierchat.engine.runner import CachedSequence, Runner
from hierchat.engine.selftest import SelfTestResult, cache_key, invariant, remembered
from hierchat.engine.torch import segment_attention
from hierchat.engine.torch.segment_attention import CHUNK, lay_out
from hierchat.engine.torch.slots import TorchSlots
from hierchat.engine.verification import ArrayRows, Rows


class KeptStates:
    """Keeps the hidden states of a model's last forward, for proposers that read them."""

    def __init__(self, model: Any) -> None:
        self.read = torch.empty(0)
        """[1, rows, hidden]: input of the model's output layer."""
        model.get_output_embeddings().register_forward_pre_hook(self._keep_read)

    def _keep_read(self, output: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        self.read = inputs[0]


QUANTA = (1, 2, 4, 6, 8, 12, 16, 32)
"""Row quanta to try: FBGEMM on AVX2 needs 6, MKL's float32 4, FBGEMM on AVX-512 none."""
FIRST_SLOTS = 1024
MOST_SEQUENCES = 64
"""Sequences whose slots grow as they need; memory ends it sooner."""
BUCKET = 512
"""Views of the slots on CUDA are multiples of this, since kernels are chosen by shape. On the CPU a chunk will do."""


class TorchRunner(Runner):
    """Runs a causal language model of transformers (models/runnable.py) behind the Runner contract; sequences take
    turns. `packed`: float16-packed linear layers on the CPU (None: if possible). `quantum`: rows to whose multiples
    segments are padded; None lets the self-test find it, and keep it under `key`, which names the weights."""

    def __init__(
        self,
        model: Any,
        *,
        context_length: int | None = None,
        packed: bool | None = None,
        quantum: int | None = None,
        key: str | None = None,
    ) -> None:
        config = model.config.get_text_config(decoder=True)
        self.model = model
        self.device = model.device
        self.vocabulary: int = config.vocab_size
        self.context_length: int = context_length or config.max_position_embeddings
        self._layers: int = config.num_hidden_layers
        on_cpu = self.device.type == "cpu" and model.dtype == torch.float32
        if packed is None:
            packed = on_cpu and can_pack(model)
        if packed:
            pack(model)
        self.backend = "float16-packed" if packed else precision(model)
        model.set_attn_implementation(segment_attention.NAME)
        self._kept = KeptStates(model)
        self.hidden = torch.empty(0)
        """[1, rows, hidden]: hidden states of the last forward."""
        self._threads = torch.get_num_threads()
        self._bucket = CHUNK if self.device.type == "cpu" else BUCKET
        self.most_sequences = MOST_SEQUENCES
        self.quantum = quantum or 1
        if quantum is None:
            proof = remembered(key and cache_key(key, self.backend, gpu(self.device)), self._find_quantum)
            self.quantum, self.exact = proof.quantum, proof.exact

    def open(self) -> TorchSequence:
        room = min(FIRST_SLOTS, self.context_length)
        return TorchSequence(self, TorchSlots(self._layers, room, self._bucket))

    @torch.inference_mode()
    def run(
        self,
        slots: TorchSlots,
        tokens: Sequence[int],
        parents: Sequence[int],
        *,
        padded: bool,
        logits: bool,
    ) -> torch.Tensor:
        """Compute logits [nodes, vocabulary], or for a prompt, without `logits`, hidden states [nodes, hidden]."""
        ids, follows = list(tokens), list(parents)
        while padded and len(ids) % self.quantum:
            follows.append(len(ids) - 1)  # a chain behind the last node, so that no branch is added
            ids.append(ids[-1])
        slots.reserve(slots.length + len(ids))
        layout = lay_out(
            slots.length, follows, bucket=self._bucket, dtype=self.model.dtype, device=self.device
        )
        if not padded and len(ids) == 1:
            layout = replace(layout, plain=True)
        model = self.model if logits else self.model.base_model
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)  # each Python thread has its own number
        found = forward(model, torch.tensor(ids, device=self.device), layout.positions, slots, layout)
        self.hidden = getattr(found, "last_hidden_state", self._kept.read)
        slots.spoilt = not bool(self.hidden.isfinite().all())
        return (found.logits if logits else self.hidden)[0, : len(tokens)]

    @contextmanager
    def _one_thread(self) -> Iterator[None]:
        self._threads, threads = 1, self._threads
        try:
            yield
        finally:
            self._threads = threads

    def _find_quantum(self) -> SelfTestResult:
        """Find the smallest row quantum under which a row's bits do not depend on the segment, if there is one."""
        sequence = self.open()
        for self.quantum in QUANTA:
            if invariant(sequence, quantum=self.quantum, border=self._bucket, one_thread=self._one_thread):
                return SelfTestResult(exact=True, quantum=self.quantum)
        return SelfTestResult(exact=False, quantum=8)


class TorchSequence(CachedSequence):
    """Hold one text of a TorchRunner, with slots of its own."""

    runner: TorchRunner

    def __init__(self, runner: TorchRunner, slots: TorchSlots) -> None:
        super().__init__(runner)
        self.slots = slots
        self._segment: Sequence[int] = ()

    def read(self, tokens: Sequence[int], hidden: bool = False) -> NDArray[np.float32] | None:
        self._catch_up()
        states = self._read(tokens)
        self.tokens.extend(tokens)
        return states.float().numpy(force=True) if hidden else None

    def forward(self, tokens: Sequence[int], parents: Sequence[int], *, padded: bool = True) -> Rows:
        self._catch_up()
        self._segment = tokens
        rows = self.runner.run(self.slots, tokens, parents, padded=padded, logits=True)
        states = self.runner.hidden[0, : len(tokens)].float().numpy(force=True)
        return ArrayRows(rows.float().numpy(force=True), states)

    def commit(self, nodes: Sequence[int]) -> None:
        self.slots.commit(list(nodes))
        self.tokens.extend(self._segment[node] for node in nodes)

    def rollback(self, length: int) -> None:
        self.slots.rollback(0 if self.slots.spoilt else length)  # all that was read with it is spoilt, too
        del self.tokens[length:]

    def wipe(self) -> None:
        self.slots.wipe()

    def _catch_up(self) -> None:
        """Read tokens again that were spoilt."""
        for at in range(self.slots.length, len(self.tokens), CHUNK):
            self._read(self.tokens[at : at + CHUNK])

    def _read(self, tokens: Sequence[int]) -> torch.Tensor:
        states = self.runner.run(self.slots, tokens, range(-1, len(tokens) - 1), padded=True, logits=False)
        self.slots.commit(list(range(len(tokens))))
        return states


def forward(model: Any, ids: torch.Tensor, positions: torch.Tensor, slots: TorchSlots, segment: Any) -> Any:
    """Call a module of transformers for a segment, as its attention and our slots want it."""
    places = {"position_ids": positions[None], "past_key_values": slots, "use_cache": True}
    return model(input_ids=ids[None], segment=segment, **places)


def precision(model: Any) -> str:
    """Name what a transformers model computes in: a dtype, nf4, or the blocks of its file."""
    if any(matrix.name != "PLAIN" for matrix in packed_matrices(model)):
        return "blocks"
    if getattr(model, "is_loaded_in_4bit", False):
        return "nf4"
    if getattr(model, "is_loaded_in_8bit", False):  # a hub's model may be so by itself
        return "int8"
    return str(model.dtype).removeprefix("torch.")


def gpu(device: torch.device) -> str | None:
    """Name a GPU; None for the processor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return None if device.type == "cpu" else device.type


class PackedLinear(nn.Module):
    """Linear layer y = x W^T + b with W in float16 blocks (FBGEMM); x [..., in], y [..., out], sums in float32.
    At least twice as fast as float32 if memory is the bound."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        bias = None if linear.bias is None else linear.bias.detach().float()
        self.packed = torch.ops.quantized.linear_prepack_fp16(linear.weight.detach().float(), bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.quantized.linear_dynamic_fp16(x, self.packed)


def can_pack(model: nn.Module) -> bool:
    """Tell whether FBGEMM is there and no weight leaves float16's range."""
    if "fbgemm" not in torch.backends.quantized.supported_engines:
        return False
    limit = torch.finfo(torch.float16).max
    ranges = [one.weight.detach().aminmax() for one in model.modules() if type(one) is nn.Linear]
    return bool(ranges) and all(-limit < low and high < limit for low, high in ranges)


def pack(model: nn.Module) -> None:
    """Replace every nn.Linear of `model` in place; its float32 weight is freed unless something else holds it."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                setattr(parent, name, PackedLinear(child))
    # Other parameters would keep the whole mapped file in memory.
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
