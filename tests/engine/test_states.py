"""Running states: a row's bits depend on its path alone, and are what transformers' own rules give; in plain torch and
in the CUDA kernels, interpreted and compiled."""

import os
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch.nn import functional
from transformers.models.granitemoehybrid.modeling_granitemoehybrid import mamba2_selective_state_update
from transformers.models.qwen3_5.modeling_qwen3_5 import torch_recurrent_gated_delta_rule

from benchmarks import plain_kernels
from hierchat.engine.cuda.kernels import PLAIN
from hierchat.engine.cuda.row_attention import SegmentText, StaticSegment
from hierchat.engine.cuda.row_states import Steps
from hierchat.engine.torch.running_states import RunningStates
from tests.engine.test_packed import compiled, interpret

assert plain_kernels  # by which the processor computes
KEY_HEADS, HEADS, TAPS = 2, 4, 3
LENGTH = 22


class Text:
    """A text of one layer: all that its tokens give, random, and its states after those that were committed."""

    def __init__(self, where: str, *, delta: bool, size: int, width: int, dtype: torch.dtype) -> None:
        torch.manual_seed(3)
        heads = {"keys": (KEY_HEADS, size), "queries": (KEY_HEADS, size), "values": (HEADS, width)}
        given = {name: torch.randn(LENGTH, *shape).to(where, dtype) for name, shape in heads.items()}
        self.queries, self.delta = given["queries"], delta
        fades, rates = -torch.rand(LENGTH, HEADS, device=where), torch.rand(LENGTH, HEADS, device=where)
        self.steps = Steps(given["keys"], given["values"], fades, rates)
        self.skip = None if delta else torch.rand(HEADS, device=where)
        channels = 20
        self.inputs = torch.randn(LENGTH, channels).to(where, dtype)
        self.weight = torch.randn(channels, TAPS).to(where, dtype)
        self.bias = torch.randn(channels).to(where, dtype)
        self.reading = False
        self.where, self.states, self.length = torch.device(where), RunningStates(2, 2), 0

    def forward(
        self, tokens: Sequence[int], parents: Sequence[int], *, reading: bool = False, padding: int = 0
    ) -> list[torch.Tensor]:
        """What each row of a segment reads of its state, and its convolution: [2] of [rows, ...], beside another
        text's tree."""
        segment = StaticSegment(2 + len(tokens) + padding, self.where, 2)
        other = SegmentText([1, 2], [-1, 0], 0, [0], number=0)
        mine = SegmentText(list(tokens), list(parents), self.length, [0], number=1, reading=reading)
        segment.fill([other, mine])
        self.states.begin(segment)
        rows = [1, 2, *tokens, *[0] * padding]
        steps = Steps(*(one[rows] for one in self.steps))
        read = self.states.step(1, steps, self.queries[rows], self.skip, delta=self.delta)
        mixed = self.states.convolve(1, self.inputs[rows], self.weight, self.bias)
        self.reading = reading
        return [one[2 : 2 + len(tokens)] for one in (read, mixed)]

    def commit(self, nodes: Sequence[int]) -> None:
        self.states.commit(1, list(nodes), reading=self.reading)
        self.length += len(nodes)

    def read(self, tokens: Sequence[int], padding: int = 0) -> list[torch.Tensor]:
        found = self.forward(tokens, range(-1, len(tokens) - 1), reading=True, padding=padding)
        self.commit(range(len(tokens)))
        return found

    def expected(self) -> list[torch.Tensor]:
        """The same of the whole text by transformers and torch, in float32."""
        keys, values, fades, rates = (one.cpu().float() for one in self.steps)
        queries = self.queries.cpu().float()
        given, weight = self.inputs.cpu().float().T[None], self.weight.cpu().float()[:, None]
        mixed = functional.conv1d(
            given, weight, self.bias.cpu().float(), padding=TAPS - 1, groups=len(weight)
        )
        mixed = mixed[0, :, :LENGTH].T
        if self.delta:
            read, _ = torch_recurrent_gated_delta_rule(
                *(one[None] for one in (queries, keys, values)), g=fades[None], beta=rates[None],
                use_qk_l2norm_in_kernel=True,
            )  # fmt: skip
            return [read[0], mixed]
        assert self.skip is not None
        size, width = keys.shape[-1], values.shape[-1]
        state, out = torch.zeros(1, HEADS, width, size), []
        for row in range(LENGTH):
            decay = (fades[row] / rates[row])[:, None, None].expand(-1, width, size)
            step = rates[row][:, None].expand(-1, width)[None]
            skip = self.skip.cpu()[:, None].expand(-1, width)
            out.append(
                mamba2_selective_state_update(
                    state, values[row][None], step, decay, keys[row][None], queries[row][None], skip,
                    dt_softplus=False,
                )
            )  # fmt: skip
        return [torch.cat(out), mixed]


def compare(
    where: str,
    shapes: list[tuple[int, int]],
    tolerances: dict[torch.dtype, float],
    kinds: tuple[bool, ...] = (True, False),
) -> None:
    """A text read at once against transformers; and the same text in pieces, trees and padding, to the bit."""
    if where == "cpu" and "TRITON_INTERPRET" in os.environ:
        PLAIN.clear()
    for delta in kinds:
        for size, width in shapes:
            for dtype, tolerance in tolerances.items():
                _compare(Text(where, delta=delta, size=size, width=width, dtype=dtype), tolerance)


def _compare(text: Text, tolerance: float) -> None:
    whole = text.read(range(LENGTH))
    for found, expected in zip(whole, text.expected(), strict=True):
        assert (found.cpu().float() - expected).abs().max() < tolerance
    text.states.restore(1, None)
    text.states.wipe()
    text.length = 0

    def same(found: list[torch.Tensor], rows: Sequence[int], of: Sequence[int]) -> None:
        for one, right in zip(found, whole, strict=True):
            assert torch.equal(one[list(of)], right[list(rows)]), (text.length, rows)

    same(text.read(range(1)), [0], [0])
    same(text.read(range(1, 8), padding=3), range(1, 8), range(7))
    mark = text.states.mark(1, text.length)
    for padding in (0, 2):
        # Two branches: 8, 9, 10 and 20, 21; and a second child of 9
        found = text.forward([8, 20, 9, 21, 10, 3], [-1, -1, 0, 1, 2, 2], padding=padding)
        same(found, [8, 9, 10], [0, 2, 4])
        text.commit([0, 2])
        same(text.forward([10], [-1]), [10], [0])
        text.commit([0])
        same(text.read(range(11, 14)), range(11, 14), range(3))
        found = text.forward([0, *range(14, 19)], [-1, -1, *range(1, 5)])
        same(found, range(14, 19), range(1, 6))
        text.states.restore(1, mark)
        text.length = mark.length
    same(text.read(range(8, LENGTH)), range(8, LENGTH), range(LENGTH - 8))


def test_rows_have_the_same_bits_however_a_text_was_cut() -> None:
    compare("cpu", [(16, 16), (24, 40)], {torch.float32: 2e-5, torch.bfloat16: 0.3})


def test_the_kernels_compute_the_same() -> None:
    pytest.importorskip("triton")
    interpret(
        __name__,
        "compare('cpu', [(24, 40)], {torch.float32: 2e-5}); compare('cpu', [(16, 16)], {torch.float16: 3e-2})",
    )


KINDS = {
    **dict.fromkeys(("query", "keys", "values", "out", "inputs", "weight", "bias", "given"), "bf16"),
    **dict.fromkeys(("fades", "rates", "skip", "running", "after"), "fp32"),
    **dict.fromkeys(("owners", "nodes", "steps", "reads", "starts", "paths"), "i64"),
}


@pytest.mark.parametrize("capability", [80, 90])
def test_the_kernels_compile(capability: int) -> None:
    pytest.importorskip("triton")
    from hierchat.engine.cuda import triton_states

    kinds: dict[str, Any] = {"SIZE": 128, "PADDED": 128, "WIDTH": 128, "TILE": 16, "NODES": 96}
    for fixed in ({"DELTA": True, "SKIPS": False, **kinds}, {"DELTA": False, "SKIPS": True, **kinds}):
        assert "st.global" in compiled(triton_states._walk, KINDS, fixed, capability)
    fixed = {"SIZE": 4, "BIASED": True, "CHANNELS": 256, "NODES": 96}
    assert "st.global" in compiled(triton_states._convolve, KINDS, fixed, capability)
