"""A tiny target with draft models that are the same model with noise in its weights: they agree often, not always."""

import copy
from collections.abc import Sequence
from functools import cache
from threading import Event
from typing import Any

import torch

from hierchat.config import GenerationSettings
from hierchat.drafting.acceptance import Acceptance
from hierchat.drafting.draft_cost import LatencyCurve
from hierchat.drafting.drafter import Drafter
from hierchat.drafting.source import Source
from hierchat.engine.cpu.runner import CpuRunner
from hierchat.engine.cpu.sequence import CpuSequence
from hierchat.engine.draft_model import CachedDraftModel, DraftedReply
from hierchat.hierarchy.hierarchical_drafter import HierarchicalDrafter
from hierchat.hierarchy.plan import Plan
from hierchat.hierarchy.planner import Hierarchy
from tests.testing.tiny import CONTEXT, block_model, tiny_model

NOISE = (0.02, 0.008, 0.003)
"""In the weights of the draft models, from the lowest up."""


@cache
def draft_target(noise: float) -> Any:
    """The tiny model of the engine's tests, disturbed."""
    model = copy.deepcopy(tiny_model())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(round(1 / noise))
        with torch.no_grad():
            for weight in model.parameters():
                weight += noise * torch.randn_like(weight)
    return CpuRunner(block_model(model), context_length=CONTEXT).open()


class Costs(LatencyCurve):
    """Costs that are said, and never learned: `ms` for a position, a twentieth of it for each further one."""

    def __init__(self, ms: float) -> None:
        super().__init__()
        self._costs = [ms * (1 + 0.05 * width) for width in range(32)]

    def note(self, width: int, context: int, ms: float) -> None:
        pass

    def step_ms(self, context: int) -> Sequence[float]:
        return self._costs


def hierarchy(levels: int, target_ms: float = 20.0, **options: Any) -> Hierarchy:
    """Draft models of 1, 2, ... milliseconds below a target."""
    names = [*(f"draft{level}" for level in range(levels)), "target"]
    latencies = [*(Costs(1.0 + level) for level in range(levels)), Costs(target_ms)]
    return Hierarchy(names, latencies, options.pop("priors", None), **options)


def drafter(
    levels: int,
    settings: GenerationSettings,
    plan: Plan | None = None,
    *,
    known: Hierarchy | None = None,
    retrieval: bool = True,
    history: Sequence[Sequence[int]] = (),
    stop: Event | None = None,
    end_ids: Sequence[int] = (),
    original: CpuSequence | None = None,
) -> HierarchicalDrafter:
    """A hierarchy of the draft models above, with databases or without."""
    known = known or hierarchy(levels, retrieval=retrieval)
    stop = stop or Event()
    reply = DraftedReply(settings, stop, end_ids=end_ids)
    sources = [Source.of(history)] if history else []
    latencies = [Costs(1.0 + level) for level in range(levels)]
    targets = [draft_target(NOISE[level]) for level in range(levels)]
    models = [
        CachedDraftModel(f"draft{level}", one, latencies[level], reply, one.vocabulary, original)
        for level, one in enumerate(targets)
    ]
    retrieval_levels = [Drafter(sources, Acceptance(), latency) for latency in latencies]
    above = Drafter(sources, Acceptance(), Costs(20.0)) if retrieval else None
    stacked = list(zip(models, retrieval_levels, strict=True))
    return HierarchicalDrafter(known, above, stacked, reply, plan)
