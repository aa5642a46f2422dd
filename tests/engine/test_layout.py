"""Layouts of a few blocks, worked out by hand."""

from __future__ import annotations

import pytest
import torch
from transformers.masking_utils import causal_mask_function, sliding_window_causal_mask_function

from hierchat.engine.torch.segment_attention import CHUNK, ROWS, SegmentLayout, lay_out

X = float("-inf")


def own(layout: SegmentLayout) -> list[list[float]]:
    """What each node sees of the block itself."""
    end = layout.start + layout.nodes
    return layout.mask()[layout.place][:, layout.start : end].tolist()


def test_chain() -> None:
    layout = lay_out(5, [-1, 0, 1])
    assert (layout.start, layout.nodes, layout.view) == (5, 3, CHUNK)
    assert layout.branches is None
    assert not layout.plain
    assert layout.positions.tolist() == [5, 6, 7]
    assert layout.place.tolist() == [0, 1, 2]
    assert layout.rows.tolist() == [0, 1, 2, 0, 0, 0, 0, 0]  # padded by node 0
    assert own(layout) == [[0, X, X], [0, 0, X], [0, 0, 0]]
    assert not layout.mask()[:, :5].any()  # all see what is committed
    assert (layout.mask()[:, 8:] == X).all()  # none sees what lies behind the block


def test_two_branches() -> None:
    """0 - 1 - 3, and 0 - 2."""
    layout = lay_out(2, [-1, 0, 0, 1])
    assert layout.positions.tolist() == [2, 3, 3, 4]
    assert layout.rows.tolist() == [0, 2, 0, 0, 0, 0, 0, 0, 1, 3, 0, 0, 0, 0, 0, 0]  # the leaf 2 comes first
    assert layout.place.tolist() == [0, 8, 1, 9]
    assert own(layout) == [[0, X, X, X], [0, 0, X, X], [0, X, 0, X], [0, 0, X, 0]]
    assert layout.branches is not None
    assert (layout.branches.count, layout.branches.shared) == (2, 0)
    first, second = layout.branches.slots.view(2, -1).tolist()
    assert first[:6] == [0, 1, 2, 4, 3, 5]  # 0 - 2, and then the others
    assert second[:6] == [0, 1, 2, 3, 5, 4]  # 0 - 1 - 3
    assert sorted(first) == sorted(second) == list(range(CHUNK))
    assert layout.branches.columns.tolist() == [first] * ROWS + [second] * ROWS


def test_several_roots() -> None:
    layout = lay_out(0, [-1, -1])
    assert layout.positions.tolist() == [0, 0]
    assert own(layout) == [[0, X], [X, 0]]
    assert layout.branches is not None
    assert layout.branches.slots.view(2, -1)[:, :2].tolist() == [[0, 1], [1, 0]]


def test_tree_behind_a_whole_chunk() -> None:
    """Only positions from the last chunk's beginning on are reordered."""
    layout = lay_out(CHUNK + 1, [-1, 0, 0])
    assert layout.view == 2 * CHUNK
    assert layout.branches is not None
    assert layout.branches.shared == CHUNK
    assert layout.branches.slots.view(2, -1)[:, :4].tolist() == [
        [CHUNK, CHUNK + 1, CHUNK + 2, CHUNK + 3],
        [CHUNK, CHUNK + 1, CHUNK + 3, CHUNK + 2],
    ]
    assert layout.branches.columns[0, :4].tolist() == [0, 1, 2, 3]  # counted from `shared`
    assert layout.branches.columns.shape == (2 * ROWS, CHUNK)


def test_tree_across_the_border_of_a_chunk() -> None:
    layout = lay_out(CHUNK - 1, [-1, 0, 0])
    assert layout.view == 2 * CHUNK
    assert layout.branches is not None
    assert layout.branches.shared == 0
    second = layout.branches.slots.view(2, -1)[1]
    assert second[CHUNK - 2 : CHUNK + 2].tolist() == [CHUNK - 2, CHUNK - 1, CHUNK + 1, CHUNK]


def test_views_of_a_fixed_bucket() -> None:
    """The tail that is reordered then reaches as far."""
    layout = lay_out(CHUNK + 1, [-1, 0, 0], bucket=4 * CHUNK)
    assert layout.view == 4 * CHUNK
    assert layout.mask().shape[1] == 4 * CHUNK
    assert layout.branches is not None
    assert (layout.branches.shared, layout.branches.columns.shape[1]) == (CHUNK, 3 * CHUNK)
    assert sorted(layout.branches.slots.view(2, -1)[0].tolist()) == list(range(CHUNK, 4 * CHUNK))


def test_heads_that_share_keys_repeat_rows() -> None:
    layout = lay_out(3, [-1, 0, 0])
    assert torch.equal(layout.mask(group=2), layout.mask().repeat_interleave(2, dim=0))
    assert layout.branches is not None
    assert torch.equal(layout.columns(2), layout.branches.columns.repeat_interleave(2, dim=0))


def test_a_window_counts_positions_of_the_own_branch() -> None:
    """0 - 1 - 3, and 0 - 2: two positions back, the node's own counted as one."""
    window = sliding_window_causal_mask_function(2)
    layout = lay_out(2, [-1, 0, 0, 1])
    seen = (layout.mask(window)[layout.place] == 0)[:, :6].int().tolist()
    assert seen == [[0, 1, 1, 0, 0, 0], [0, 0, 1, 1, 0, 0], [0, 0, 1, 0, 1, 0], [0, 0, 0, 1, 0, 1]]
    plain = lay_out(9, [-1])
    assert plain.seen(window) == slice(8, 10)
    assert plain.seen(causal_mask_function) == slice(0, 10)


def test_rows_of_a_branch_fill_whole_groups() -> None:
    chain = [-1, *range(ROWS)]
    assert len(lay_out(0, chain[:ROWS]).rows) == ROWS
    assert len(lay_out(0, chain).rows) == 2 * ROWS


def test_dtype() -> None:
    assert lay_out(0, [-1], dtype=torch.bfloat16).mask().dtype is torch.bfloat16


@pytest.mark.parametrize("parents", [[0], [-1, 1], [-1, 2, 0], [-2], [-1, -2]])
def test_parents_must_come_first(parents: list[int]) -> None:
    with pytest.raises(ValueError, match="parents must come first"):
        lay_out(4, parents)
