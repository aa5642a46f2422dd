"""What the estimate of acceptance learns, and what it forgets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hierchat.drafting.acceptance import MOST, Acceptance
from hierchat.drafting.source import Candidate

NEW = 10_000
"""A token that was never proposed before, so that the source alone counts."""


def chance(acceptance: Acceptance, source: str = "context", token: int = NEW) -> float:
    (choice,) = acceptance.judge([Candidate([token], source, 4)], 0)
    return choice.chance


def lessons(acceptance: Acceptance, count: int, *, right: bool) -> None:
    """Of as many tokens, which a match of four in the context proposed."""
    for token in range(count):
        choices = acceptance.judge([Candidate([token], "context", 4)], 0)
        acceptance.learn(choices, token if right else NEW, first=True)


def test_more_evidence_is_better() -> None:
    acceptance = Acceptance()
    short, long = Candidate([1], "context", 2), Candidate([1], "context", 12)
    other = Candidate([2], "context", 8)

    def first(*candidates: Candidate) -> float:
        return acceptance.judge(candidates, 0)[0].chance

    assert first(short) < first(long)
    assert first(long, other) < first(long)
    assert first(short) < first(short, short, short)
    assert (
        first(Candidate([5, 1], "context", 2))
        < acceptance.judge([Candidate([5, 1], "context", 2)], 1)[0].chance
    )


def test_a_source_that_lies_loses_trust_and_one_that_is_right_gains_it() -> None:
    lied_to, served = Acceptance(), Acceptance()
    before = chance(lied_to)
    lessons(lied_to, 50, right=False)
    lessons(served, 50, right=True)
    assert chance(lied_to) < before / 3
    assert chance(served) > before + (1 - before) / 3


def test_trust_in_one_source_says_nothing_about_another() -> None:
    acceptance = Acceptance()
    before = chance(acceptance, "history")
    lessons(acceptance, 50, right=False)
    assert chance(acceptance, "history") == before


def test_old_lies_are_forgotten() -> None:
    acceptance = Acceptance()
    lessons(acceptance, 1000, right=False)
    assert chance(acceptance) < 0.1
    lessons(acceptance, 100, right=True)
    assert chance(acceptance) > 0.8


def test_a_token_that_fares_badly_is_known() -> None:
    acceptance = Acceptance()
    wrong, right = 1, 2
    for _ in range(20):
        for token in (wrong, right):
            acceptance.learn(acceptance.judge([Candidate([token], "context", 4)], 0), right, first=False)
    assert chance(acceptance, token=wrong) < chance(acceptance) < chance(acceptance, token=right)


@given(
    told=st.lists(
        st.tuples(
            st.lists(
                st.builds(
                    Candidate,
                    st.lists(st.integers(0, 4), max_size=3),
                    st.sampled_from(["context", "history", "new"]),
                    st.integers(1, 32),
                ),
                max_size=8,
            ),
            st.integers(0, 2),
            st.integers(0, 4),
        ),
        max_size=80,
    )
)
def test_siblings_never_sum_above_one_whatever_was_learned(
    told: list[tuple[list[Candidate], int, int]],
) -> None:
    acceptance = Acceptance()
    for candidates, depth, followed in told:
        candidates.sort(key=lambda candidate: candidate.source)
        choices = acceptance.judge(candidates, depth)
        assert sum(choice.chance for choice in choices) <= MOST + 1e-9
        assert all(0.0 < choice.chance <= choice.alone < 1.0 for choice in choices)
        assert len({choice.token for choice in choices}) == len(choices)
        acceptance.learn(choices, followed, first=depth == 0)
