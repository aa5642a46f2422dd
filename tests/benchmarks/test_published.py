"""Published drafters: they propose trees of no more than the width."""

from collections.abc import Sequence

import numpy as np
import pytest

from benchmarks.published import PUBLISHED
from hierchat.drafting.draft_tree import DraftTree
from hierchat.drafting.suffix_index import BREAK
from hierchat.texts.build import Statistics
from tests.drafting.databases import paths_of

QUICK = [name for name in PUBLISHED if name != "arctic-suffix"]
"""Published methods that need not be compiled first."""


def corpus(*texts: Sequence[int]) -> Statistics:
    tokens = [token for text in texts for token in (*text, BREAK)]
    order = sorted((at for at, token in enumerate(tokens) if token != BREAK), key=lambda at: tokens[at:])
    return Statistics("corpus", np.array(tokens, np.int32), np.array(order, np.int32))


def paths(tree: DraftTree) -> list[tuple[int, ...]]:
    """Each node by the tokens on the way to it; the tree must be one."""
    found = paths_of(tree)
    assert len(set(found)) == len(found) == len(tree.sources) == len(tree.probabilities)
    return found


@pytest.mark.parametrize("name", QUICK)
def test_never_more_than_the_width(name: str) -> None:
    random = np.random.default_rng(0)
    text = random.integers(0, 4, (4, 60)).tolist()
    for width in (None, 1, 6):
        drafter = PUBLISHED[name](width, [corpus(text[0])])
        drafter.learn(text[1])
        drafter.begin(text[2])
        drafted = 0
        for token in text[3]:
            drafted += len(paths(tree := drafter.propose(5)))
            assert len(tree) <= 5
            assert len(paths(drafter.propose())) <= (width or 128) - 1
            drafter.observe([token], random.permutation(8)[None, : drafter.top].astype(np.int32))
        assert bool(drafted) == (width != 1)
