"""The CUDA kernels without a GPU: interpreted against plain torch, and compiled for several devices."""

import itertools

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from hierchat.engine.cuda.row_attention import PAGE, SegmentText, StaticSegment, attend_plainly
from tests.engine.test_packed import compiled, interpret
from tests.testing.tiny import path_to

pytest.importorskip("triton")

PARENTS = [-1, 0, 0, 2, 1, -1]
STARTS, OTHER = (0, 510, 1023), 77
"""Committed positions of the tree, at the ends of pages and of what one program adds; and of the other text."""
SHAPES = [(4, 2, 16), (9, 3, 64), (3, 1, 80)]
"""Heads, key-value heads, numbers of a head."""


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
    texts: list[SegmentText], query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
) -> torch.Tensor:
    """PyTorch's attention of each node over the slots of its path: [rows, heads, d]."""
    found = list[torch.Tensor]()
    for text in texts:
        slots = torch.cat([page * PAGE + torch.arange(PAGE) for page in torch.tensor(text.pages)])
        for node in range(len(text.tokens)):
            path = [text.start + one for one in path_to(node, text.parents)]
            seen = slots[[*range(text.start), *path]]
            asked = query[:, len(found), None]
            found.append(
                scaled_dot_product_attention(asked, keys[:, seen], values[:, seen], enable_gqa=True)[:, 0]
            )
    return torch.stack(found)


def compare(where: str, tolerances: dict[torch.dtype, float], shapes: list[tuple[int, int, int]]) -> None:
    """The kernels and what is said plainly against PyTorch's own in float32; and rows against themselves in a forward
    over their text alone, at another view."""
    from hierchat.engine.cuda.triton_attention import SPLIT, attend

    torch.manual_seed(0)
    for dtype, (heads, kv, width), start in itertools.product(tolerances, shapes, STARTS):
        texts, scale = texts_behind(start), width**-0.5
        slots = PAGE * (1 + sum(len(text.pages) for text in texts))
        keys, values = torch.randn(2, kv, slots, width, device=where).to(dtype)
        query = torch.randn(9, heads, width, device=where).to(dtype).transpose(0, 1)  # as transformers' is
        given = [one.cpu().float() for one in (query, keys, values)]
        expected = of_paths(texts, *given)
        plain = attend_plainly(*given, *filled(9, texts, "cpu"), scale)
        assert (plain[: len(expected)] - expected).abs().max() < 1e-5
        out = attend(query, keys, values, *filled(9, texts, where), PAGE, 3 * SPLIT, scale)
        assert (out.cpu().float() - plain).abs().max() < tolerances[dtype], (dtype, heads, width, start)
        pair = attend(query[:, 4:6], keys, values, *filled(2, texts[:1], where, 4), PAGE, 4 * SPLIT, scale)
        assert torch.equal(pair, out[4:6]), (dtype, heads, width, start)
        pair = attend(query[:, 6:8], keys, values, *filled(2, texts[1:], where), PAGE, SPLIT, scale)
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
    for kernel in (triton_attention._split, triton_attention._join):
        assert compiled(kernel, kinds, sizes, capability)
