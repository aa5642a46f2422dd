"""A model ready to answer, with all that drafts for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hierchat.corpus.format import Statistics
from hierchat.corpus.seed import SEED_NAME
from hierchat.drafting.proposer import Proposer
from hierchat.engine.engine import Engine
from hierchat.engine.local import LocalEngine
from hierchat.runtime.costs import Costs, keep_costs
from hierchat.runtime.prompt import PromptBuilder

if TYPE_CHECKING:
    from hierchat.runtime.levels import Levels


@dataclass(frozen=True, slots=True)
class Hosted:
    """A model ready to answer."""

    name: str
    model_key: str
    engine: Engine
    prompts: PromptBuilder
    vanilla_ms: float | None
    """Fastest plain decoding, milliseconds per token, measured after loading at a short context; None where the engine
    cannot measure it."""
    note: str = ""
    """Why it does not run on the engine that would be fastest here."""
    statistics: tuple[Statistics, ...] = ()
    """The texts that ship and those of corpora, to draft from."""
    levels: Levels | None = None
    """The draft models below it; None where it has none."""
    machine: str = ""
    """Names the machine and the backend whose costs are kept; empty: they are not."""
    proposers: tuple[Callable[[], Proposer], ...] = ()
    """What drafts beside the databases and draft models: made anew for each reply."""
    rung: str = ""
    """The way of engine/backends.py that computes it."""

    def keep_costs(self, costs: Costs) -> None:
        """What steps cost, for the next start."""
        if self.machine and self.is_local:
            keep_costs(self.local.latency, self.model_key, self.machine, costs)
            if self.levels:
                self.levels.keep(costs)

    def without_own_texts(self) -> Hosted:
        """As others than the owner have it: texts that were added on this machine do not draft, since a draft tells
        what stands in them. Those that ship do."""
        return replace(self, statistics=tuple(one for one in self.statistics if one.name == SEED_NAME))

    @property
    def end_ids(self) -> frozenset[int]:
        """Tokens that end a reply; none where the engine elsewhere knows them."""
        return self.local.end_ids if self.is_local else frozenset()

    @property
    def drafts(self) -> bool:
        """Whether drafts are possible; an engine elsewhere decides for itself."""
        return not self.is_local or self.local.runner.drafts

    @property
    def is_local(self) -> bool:
        """Whether it is computed here, so that we draft; an engine elsewhere drafts for itself."""
        return isinstance(self.engine, LocalEngine)

    @property
    def local(self) -> LocalEngine:
        """The engine on this machine, for what only that can do. Raises NotLocal."""
        if not isinstance(self.engine, LocalEngine):
            raise NotLocal(
                f"{self.name} is computed elsewhere: only a model on this machine can be measured so."
            )
        return self.engine


class NotLocal(ValueError):
    """Something was asked of a model that only the engine on this machine can do."""
