"""What is learned while levels run, how the plan follows it, and that it survives a restart."""

import numpy as np
import pytest

from hierchat.hierarchy.plan import Plan
from hierchat.hierarchy.planner import EVERY, Agreement, Hierarchy, RetrievalEstimate, bucket
from tests.hierarchy import stacks


def accepted(known: Hierarchy, level: int, above: int, share: float, times: int = 1200) -> None:
    """Blocks of 4, of whose tokens a share is right."""
    rng = np.random.default_rng(0)
    for _ in range(times):
        right = rng.random(4) < share
        known.agreement(level, above, 0).note(["bonus"] * 4, int(np.argmin(right)) if not right.all() else 4)


def search_again(known: Hierarchy) -> Plan:
    for _ in range(EVERY):
        known.step(1)
    return known.found(0).plan


@pytest.mark.parametrize("share", [0.2, 0.6, 0.95])
def test_agreement_finds_the_share(share: float) -> None:
    one, rng = Agreement(0.5), np.random.default_rng(1)
    for _ in range(1500):
        right = rng.random(6) < share
        one.note(["kept", "bonus"] * 3, int(np.argmin(right)) if not right.all() else 6)
    found = one.acceptance()
    assert found.overall == pytest.approx(share, abs=0.06)
    assert found.kept == pytest.approx(share, abs=0.08)


def test_agreement_tells_kinds_apart() -> None:
    one = Agreement(0.5)
    for number in range(1000):
        one.note(["kept"], 1)
        one.note(["corrected"], number % 2)
    found = one.acceptance()
    assert found.kept > 0.9
    assert found.corrected == pytest.approx(0.5, abs=0.1)
    assert found.corrected < found.overall < found.kept


def test_grounded_needs_some_forwards() -> None:
    one = RetrievalEstimate()
    for number in range(39):
        one.note(number % 3, bonus=False, ms=2.0)
    assert one.retrieval_level() is None
    for number in range(400):
        one.note(number % 3, bonus=number % 2 == 0, ms=3.0)
    found = one.retrieval_level()
    assert found.brings.tokens == pytest.approx(2.0, abs=0.05)
    assert found.ms == pytest.approx(3.0, abs=0.1)
    assert (found.brings.corrected + found.brings.bonus).sum() == pytest.approx(1.0)


def test_a_draft_model_comes_into_the_plan_as_it_agrees_and_goes_again() -> None:
    known = stacks.hierarchy(1, retrieval=False, priors={(0, 1): 0.02})
    assert known.found(0).plan.levels == (1,)
    accepted(known, 0, 1, 0.9)
    assert search_again(known).levels == (0, 1)
    accepted(known, 0, 1, 0.0, times=6000)
    assert search_again(known).levels == (1,)


def test_a_copy_has_its_plan_before_it_is_over() -> None:
    known = stacks.hierarchy(1, retrieval=False, priors={(0, 1): 0.5})
    usual = known.found(0).plan
    accepted(known, 0, 1, 1.0, times=100)
    for _ in range(8):
        known.step(5)
    assert known.found(0).plan.lengths[0] > usual.lengths[0]


def test_the_databases_alone_where_they_know_enough() -> None:
    known = stacks.hierarchy(1, priors={(0, 1): 0.6})
    for _ in range(2000):
        known.saw_tree(8.0, 22.0)
    assert search_again(known) == Plan((1,), (), retrieval=True)


def test_what_the_databases_expect_of_themselves_is_set_right() -> None:
    known = stacks.hierarchy(1)
    for _ in range(2000):
        known.saw_tree(4.0, 20.0)
        known.tree_brought((4.0, 20.0), (2.0, 30.0))
    below = known.stack(0).retrieval_level(1, True)
    assert below.brings.tokens == pytest.approx(2.0, rel=0.02)
    assert below.ms == pytest.approx(30.0, rel=0.02)


def test_a_plan_is_not_given_up_for_a_trifle() -> None:
    known = stacks.hierarchy(2, retrieval=False, priors={(0, 2): 0.7, (1, 2): 0.705, (0, 1): 0.5})
    first = known.found(0)
    accepted(known, 1 - first.plan.levels[0], 2, 0.72, times=50)
    assert search_again(known).levels == first.plan.levels


def test_contexts_are_told_apart() -> None:
    known = stacks.hierarchy(1, retrieval=False, priors={(0, 1): 0.9})
    for _ in range(500):
        known.agreement(0, 1, 5000).note(["bonus"] * 4, 0)
        known.retrieval_estimate(0, 5000).note(0, True, 1.0)
    assert bucket(5000) != bucket(0)
    assert known.found(5000).plan.levels == (1,)
    assert known.found(0).plan.levels == (0, 1)
    assert known.retrieval_estimate(0, 5000).retrieval_level() is not None
    assert known.retrieval_estimate(0, 0).retrieval_level() is None
