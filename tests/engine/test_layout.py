"""Layouts of a few blocks, worked out by hand."""

from __future__ import annotations

import pytest
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


def test_a_window_counts_positions_of_the_own_branch() -> None:
    """0 - 1 - 3, and 0 - 2: two positions back, the node's own counted as one."""
    window = sliding_window_causal_mask_function(2)
    layout = lay_out(2, [-1, 0, 0, 1])
    seen = (layout.mask(window)[layout.place] == 0)[:, :6].int().tolist()
    assert seen == [[0, 1, 1, 0, 0, 0], [0, 0, 1, 1, 0, 0], [0, 0, 1, 0, 1, 0], [0, 0, 0, 1, 0, 1]]
    plain = lay_out(9, [-1])
    assert plain.seen(window) == slice(8, 10)
    assert plain.seen(causal_mask_function) == slice(0, 10)


@pytest.mark.parametrize("parents", [[0], [-1, 1], [-1, 2, 0], [-2], [-1, -2]])
def test_parents_must_come_first(parents: list[int]) -> None:
    with pytest.raises(ValueError, match="parents must come first"):
        lay_out(4, parents)
