"""The CUDA kernels without a GPU: interpreted against plain torch, and compiled for several devices."""

import itertools
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.nn.attention.flex_attention import flex_attention

from benchmarks import plain_kernels
from hierchat.engine.cuda.kernels import PLAIN
from hierchat.engine.cuda.row_attention import PAGE, SegmentText, StaticSegment
from tests.engine.test_packed import compiled, interpret
from tests.testing.families import tiny_family
from tests.testing.tiny import path_to, random_tokens

pytest.importorskip("triton")

PARENTS = [-1, 0, 0, 2, 1, -1]
STARTS, OTHER = (0, 510, 1023), 77
"""Committed positions of the tree, at the ends of pages and of what one program adds; and of the other text."""
SHAPES = [(4, 2, 16), (9, 3, 64), (2, 1, 272)]
"""Heads, key-value heads, numbers of a head."""


class Rule(NamedTuple):
    """How a layer attends, as triton_attention.attend takes it."""

    scale: float
    window: int = 0
    cap: float = 0.0
    sinks: torch.Tensor | None = None


def texts_behind(start: int) -> list[SegmentText]:
    """A tree behind so many positions and a chain behind others, on pages in any order; page 0 is nobody's."""
    trees = (PARENTS, start), ([-1, 0], OTHER)
    counts = [-(-(begin + len(parents)) // PAGE) for parents, begin in trees]
    pages = (torch.randperm(sum(counts)) + 1).split(counts)
    return [
        SegmentText([1] * len(parents), parents, begin, own.tolist())
        for (parents, begin), own in zip(trees, pages, strict=True)
    ]


def filled(width: int, texts: list[SegmentText], device: str, begin: int = 0) -> tuple[torch.Tensor, ...]:
    segment = StaticSegment(width, torch.device(device), 2, max(len(text.pages) for text in texts))
    segment.fill(texts, begin)
    return segment.positions, segment.starts, segment.paths, segment.texts, segment.tables


def of_paths(
    texts: list[SegmentText], query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, rule: Rule
) -> torch.Tensor:
    """PyTorch's attention of each node over the slots of its path: [rows, heads, d]. A sink is one more key with no
    value; a cap is flex attention's."""
    found = list[torch.Tensor]()
    for text in texts:
        slots = torch.cat([page * PAGE + torch.arange(PAGE) for page in torch.tensor(text.pages)])
        for node in range(len(text.tokens)):
            path = [text.start + one for one in path_to(node, text.parents)]
            seen = slots[[*range(text.start), *path]][-rule.window :]
            asked, sinks = query[:, len(found)][None, :, None], rule.sinks

            def changed(score: Any, batch: Any, head: Any, row: Any, key: Any, sinks: Any = sinks) -> Any:
                score = rule.cap * torch.tanh(score / rule.cap) if rule.cap else score
                return score if sinks is None else torch.where(key == 0, sinks[head], score)

            own_keys, own_values = (one[None, :, seen] for one in (keys, values))
            if sinks is not None:
                own_keys, own_values = (functional.pad(one, (0, 0, 1, 0)) for one in (own_keys, own_values))
            out = flex_attention(asked, own_keys, own_values, changed, scale=rule.scale, enable_gqa=True)
            found.append(out[0, :, 0])
    return torch.stack(found)


def compare(where: str, tolerances: dict[torch.dtype, float], shapes: list[tuple[int, int, int]]) -> None:
    """The kernels and what is said plainly against PyTorch's own in float32; and rows against themselves in a forward
    over their text alone, at another view."""
    from hierchat.engine.cuda.triton_attention import SPLIT, attend

    torch.manual_seed(0)
    turn = itertools.cycle([{}, {"window": 100}, {"cap": 2.0, "window": 700}, {"sinks": True}])
    for dtype, (heads, kv, width), start in itertools.product(tolerances, shapes, STARTS):
        texts, more = texts_behind(start), dict[str, Any](next(turn))
        if "sinks" in more:
            more["sinks"] = torch.randn(heads)
        rule = Rule(width**-0.5, **more)
        on_device = rule._replace(sinks=None if rule.sinks is None else rule.sinks.to(where))
        slots = PAGE * (1 + sum(len(text.pages) for text in texts))
        keys, values = torch.randn(2, kv, slots, width, device=where).to(dtype)
        query = torch.randn(9, heads, width, device=where).to(dtype).transpose(0, 1)  # as transformers' is
        given = [one.cpu().float() for one in (query, keys, values)]
        expected = of_paths(texts, *given, rule)
        plain = plain_kernels.attend(*given, *filled(9, texts, "cpu"), PAGE, 0, *rule)
        assert (plain[: len(expected)] - expected).abs().max() < 1e-5
        out = attend(query, keys, values, *filled(9, texts, where), PAGE, 3 * SPLIT, *on_device)
        assert (out.cpu().float() - plain).abs().max() < tolerances[dtype], (dtype, heads, width, start)
        pair = attend(
            query[:, 4:6], keys, values, *filled(2, texts[:1], where, 4), PAGE, 4 * SPLIT, *on_device
        )
        assert torch.equal(pair, out[4:6]), (dtype, heads, width, start)
        pair = attend(query[:, 6:8], keys, values, *filled(2, texts[1:], where), PAGE, SPLIT, *on_device)
        assert torch.equal(pair, out[6:8]), (dtype, heads, width, start)


def test_the_kernels_compute_what_is_said_plainly() -> None:
    interpret(
        __name__,
        "compare('cpu', {torch.float32: 1e-5}, SHAPES[1:]); compare('cpu', {torch.float16: 4e-3}, SHAPES[:1])",
    )


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("capability", [80, 90])
def test_the_kernels_compile(capability: int, dtype: str) -> None:
    from hierchat.engine.cuda import triton_attention

    sizes = {"GROUP": 3, "WIDTH": 64, "PADDED": 64, "TILE": 16, "SPLIT": 512, "BLOCK": 64, "PAGE": PAGE}
    kinds = {
        "query": dtype,
        "keys": dtype,
        "values": dtype,
        "out": dtype,
        "positions": "i64",
        "starts": "i64",
    }
    kinds |= {
        "paths": "i64",
        "texts": "i64",
        "tables": "i64",
        "sums": "fp32",
        "bests": "fp32",
        "totals": "fp32",
    }
    sizes |= {"CAPPED": True, "SINKS": True}
    kinds["sinks"] = dtype
    for kernel in (triton_attention._split, triton_attention._join):
        assert compiled(kernel, kinds, sizes, capability)


def test_a_card_has_the_kernels_where_the_processor_computes_plainly() -> None:
    from hierchat.engine.cuda import triton_attention, triton_blocks, triton_states
    from hierchat.engine.cuda.kernels import kernel

    kernels = [triton_attention.attend, triton_states.convolve, triton_states.walk]
    kernels += [triton_blocks.grouped, triton_blocks.multiply]
    for own in kernels:
        name = own.__name__
        assert kernel(name, torch.device("cuda")) is own
        assert kernel(name, torch.device("cpu")) is getattr(plain_kernels, name)


def run_whole(kind: str) -> None:
    """A model over interpreted kernels against transformers itself: two texts in one forward, a tree, a commit."""
    from hierchat.engine.cuda import triton_attention
    from hierchat.engine.cuda.cuda_runner import CudaRunner
    from hierchat.engine.runner import Segment

    def attend(query: torch.Tensor, *more: Any) -> torch.Tensor:
        return triton_attention.attend(query.contiguous(), *more)

    PLAIN.clear()
    PLAIN["attend"] = attend
    model, text = tiny_family(kind), random_tokens(29, vocabulary=90)
    with torch.inference_mode():
        expected = model(input_ids=torch.tensor([text]), use_cache=False).logits[0].numpy()
    runner = CudaRunner(model, context_length=100, regime=(16, 16), sequences=2)
    one, other = runner.open(), runner.open()
    for sequence, pieces in ((one, (13, 24)), (other, (5,))):
        for end in pieces:
            sequence.read(text[len(sequence.tokens) : end])
    tree = Segment(one, [text[24], 3, text[25], 7, text[26]], [-1, 0, 0, 2, 2])
    mine, others = runner.forward([tree, Segment(other, text[5:8], [-1, 0, 1])])
    found = [mine[0], mine[2], mine[4], *(others[node] for node in range(3))]
    np.testing.assert_allclose(found, expected[[24, 25, 26, 5, 6, 7]], atol=1e-4)
    last = mine[4].copy()
    one.commit([0, 2])
    rows = one.forward(text[26:29], [-1, 0, 1])
    np.testing.assert_allclose([rows[node] for node in range(3)], expected[26:], atol=1e-4)
    assert np.array_equal(rows[0], last)


@pytest.mark.large
@pytest.mark.parametrize("kind", ["qwen3_5_text", "granitemoehybrid", "lfm3", "gemma3_text"])
def test_a_model_over_the_kernels_gives_what_transformers_gives(kind: str) -> None:
    interpret(__name__, f"run_whole({kind!r})")
