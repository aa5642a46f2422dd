"""What the page shows of a hierarchy: the levels that draft now, and why the others do not."""

from __future__ import annotations

from dataclasses import dataclass

from hierchat.chat.host import Hosted
from hierchat.chat.levels import LeftOut


@dataclass(frozen=True, slots=True)
class LevelView:
    """A level of the plan. `block`: tokens that it writes before the level above looks at them; None for the target."""

    name: str
    block: int | None


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


def plan_view(hosted: Hosted, context: int) -> PlanView | None:
    """The plan behind so many tokens; None where the model has no draft models, not even such as are left out."""
    if hosted.levels is None or not (hosted.levels.targets or hosted.levels.left_out):
        return None
    hierarchy = hosted.levels.hierarchy
    found = hierarchy.found(context)
    plan = found.plan
    blocks: tuple[int | None, ...] = (*plan.blocks, None)
    unused = [level for level in range(hierarchy.target) if level not in plan.levels]
    return PlanView(
        tuple(
            LevelView(hierarchy.names[level], block) for level, block in zip(plan.levels, blocks, strict=True)
        ),
        plan.retrieval,
        found.ms,
        hierarchy.measured_ms(plan),
        (
            *(LeftOut(hierarchy.names[level], hierarchy.without(level, context)) for level in unused),
            *hosted.levels.left_out,
        ),
    )
