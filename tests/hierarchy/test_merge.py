"""The target's tree: a chain, and branches that pay."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hierchat.drafting.draft_tree import NO_MATCH, DraftTree, Match
from hierchat.hierarchy.hierarchical_drafter import merge


def chain(*tokens: int) -> DraftTree:
    return DraftTree(tokens, tuple(range(-1, len(tokens) - 1)), ("model",) * len(tokens))


def tree(*nodes: tuple[int, int, float]) -> DraftTree:
    """(token, parent, probability) each."""
    tokens, parents, chances = zip(*nodes, strict=True) if nodes else ((), (), ())
    return DraftTree(tokens, parents, ("history",) * len(nodes), chances)


def paths(drafts: DraftTree) -> set[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    for token, parent in zip(drafts.tokens, drafts.parents, strict=True):
        found.append(((*found[parent],) if parent >= 0 else ()) + (token,))
    return set(found)


def test_what_both_know_stands_once() -> None:
    merged = merge(chain(1, 2, 3), tree((1, -1, 0.9), (2, 0, 0.8), (9, 1, 0.1)), 0.5, [0.01], 1.0, 10)
    assert merged.tokens[:3] == (1, 2, 3)
    assert paths(merged) == {(1,), (1, 2), (1, 2, 3), (1, 2, 9)}
    assert merged.sources == ("model", "model", "model", "history")


def test_a_branch_must_pay_for_its_row() -> None:
    branch = tree((5, -1, 0.4), (6, 0, 0.3))
    assert paths(merge(chain(1, 2), branch, 0.5, [0.1], 1.0, 10)) == {(1,), (1, 2), (5,), (5, 6)}
    assert paths(merge(chain(1, 2), branch, 0.99, [0.1], 1.0, 10)) == {(1,), (1, 2)}
    assert paths(merge(chain(1, 2), branch, 0.5, [1.2], 1.0, 10)) == {(1,), (1, 2)}


def test_beyond_the_end_of_the_chain() -> None:
    longer = tree((1, -1, 0.9), (2, 0, 0.9), (3, 1, 0.8), (4, 2, 0.7))
    merged = merge(chain(1, 2), longer, 0.9, [0.1], 1.0, 10)
    assert (1, 2, 3, 4) in paths(merged)


def test_no_tree() -> None:
    merged = merge(chain(1, 2), tree(), 0.5, [0.1], 1.0, 10)
    assert (merged.tokens, merged.parents) == ((1, 2), (-1, 0))
    assert merged.probabilities == (0.5, 0.25)


@st.composite
def trees(draw: st.DrawFn) -> DraftTree:
    """Best first: a node's probability is no more than its parent's, siblings' sum no more than it."""
    nodes: list[tuple[int, int, float]] = []
    left = {-1: 1.0}
    for node in range(draw(st.integers(0, 12))):
        parent = draw(st.integers(-1, node - 1))
        chance = left[parent] * draw(st.floats(0.05, 0.95))
        token = draw(st.integers(0, 3))
        if any(p == parent and t == token for t, p, _ in nodes):
            token = 10 + node
        left[parent] -= chance
        left[node] = chance
        nodes.append((token, parent, chance))
    return tree(*nodes)


@given(trees(), st.lists(st.integers(0, 3), min_size=1, max_size=6), st.floats(0.05, 0.99), st.floats(0, 1))
def test_it_is_a_tree(branches: DraftTree, tokens: list[int], accepted: float, cost: float) -> None:
    limit = len(tokens) + 4
    merged = merge(chain(*tokens), branches, accepted, [cost], 1.0, limit)
    assert merged.tokens[: len(tokens)] == tuple(tokens)
    assert len(merged) <= limit
    assert all(-1 <= parent < node for node, parent in enumerate(merged.parents))
    pairs = list(zip(merged.parents, merged.tokens, strict=True))
    assert len(set(pairs)) == len(pairs)  # no two siblings alike
    for node, parent in enumerate(merged.parents):
        above = merged.probabilities[parent] if parent >= 0 else 1.0
        assert merged.probabilities[node] <= above + 1e-9
    assert paths(merged) <= paths(branches) | paths(chain(*tokens))


def test_each_node_tells_what_it_was_found_by() -> None:
    found = [Match(1, length, 0, length) for length in range(3)]
    kept = DraftTree((1, 2), (-1, 0), ("history", "model"), matches=(found[0], NO_MATCH))
    beside = DraftTree((1, 9), (-1, 0), ("history",) * 2, (0.9, 0.5), matches=tuple(found[1:]))
    merged = merge(kept, beside, 0.5, [0.01], 1.0, 10)
    assert merged.tokens == (1, 2, 9)
    assert merged.matches == (found[0], NO_MATCH, found[2])
