"""What the page shows of a hierarchy: the levels that draft now, and why the others do not."""

from __future__ import annotations

from dataclasses import dataclass

from hierchat.chat.insights import CONTEXT
from hierchat.drafting.joint import JointDrafter
from hierchat.drafting.proposer import Proposer
from hierchat.hierarchy.drafter import HierarchicalDrafter
from hierchat.runtime.hosted import Hosted
from hierchat.runtime.levels import LeftOut


@dataclass(frozen=True, slots=True)
class LevelView:
    """A level of the plan. `length`: tokens of a draft that it writes; None for the target."""

    name: str
    length: int | None


@dataclass(frozen=True, slots=True)
class PlanView:
    """The plan in force, from the lowest level to the target."""

    levels: tuple[LevelView, ...]
    retrieval: bool
    """Whether the databases draft for the lowest level."""
    expected_ms: float
    """Per token."""
    measured_ms: float | None
    left_out: tuple[LeftOut, ...]


def plan_view(hosted: Hosted) -> PlanView | None:
    """The plan behind CONTEXT tokens; None where the model has no draft models, not even such as are
    left out."""
    if hosted.levels is None or not (hosted.levels.sequences or hosted.levels.left_out):
        return None
    hierarchy, context = hosted.levels.hierarchy, min(CONTEXT, hosted.local.context_length)
    found = hierarchy.found(context)
    plan = found.plan
    lengths: tuple[int | None, ...] = (*plan.lengths, None)
    unused = [level for level in range(hierarchy.target) if level not in plan.levels]
    return PlanView(
        tuple(
            LevelView(hierarchy.names[level], length)
            for level, length in zip(plan.levels, lengths, strict=True)
        ),
        plan.retrieval,
        found.ms,
        hierarchy.measured_ms(plan),
        (
            *(LeftOut(hierarchy.names[level], hierarchy.without(level, context)) for level in unused),
            *hosted.levels.left_out,
        ),
    )


def plan_of(drafter: Proposer | None) -> tuple[tuple[str, int], ...]:
    """The draft models that a reply's drafter followed last, from the lowest up, and the tokens of their drafts."""
    if isinstance(drafter, JointDrafter):
        drafter = drafter.first
    if not isinstance(drafter, HierarchicalDrafter) or drafter.plan is None:
        return ()
    names = drafter.hierarchy.names
    return tuple(
        (names[level], length)
        for level, length in zip(drafter.plan.levels, drafter.plan.lengths, strict=False)
    )
