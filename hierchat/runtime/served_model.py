"""Hold a model ready to answer, and what was learned from its replies."""

import base64
import json
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from hierchat.drafting.acceptance import Acceptance
from hierchat.drafting.draft_cost import LatencyCurve
from hierchat.drafting.payoff import Payoff, payoff_of_drafting
from hierchat.drafting.proposer import Proposer
from hierchat.drafting.source import Successors
from hierchat.engine.engine import Engine
from hierchat.engine.local import LocalEngine
from hierchat.engine.runner import CachedSequence
from hierchat.hierarchy.planner import Hierarchy
from hierchat.models.progress import ModelError
from hierchat.runtime.prompt import PromptBuilder
from hierchat.store import Store, StoreError
from hierchat.texts.build import Statistics
from hierchat.texts.corpora import SEED_NAME

if TYPE_CHECKING:
    from hierchat.engine.draft_head import DraftHead


@dataclass(frozen=True, slots=True)
class LoadedLevel:
    """Draft model that can be used."""

    name: str
    sequence: CachedSequence
    latency: LatencyCurve
    original: CachedSequence | None = None
    """The target's sequence, where this is a rounded copy and can take over what that has read."""


@dataclass(frozen=True, slots=True)
class Levels:
    """Draft models from the smallest up, and the costs and acceptance learned of them together with the target."""

    models: tuple[LoadedLevel, ...]
    hierarchy: Hierarchy
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Draft models that are not used, and why."""
    users: dict[str, int | None] = field(default_factory=dict)
    """By draft model, whose text its slots hold."""

    @property
    def sequences(self) -> tuple[CachedSequence, ...]:
        return tuple(model.sequence for model in self.models)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """Model ready to answer, with all that drafts for it."""

    name: str
    model_key: str
    engine: Engine
    prompts: PromptBuilder
    note: str = ""
    """Why it does not run on the engine that would be fastest here."""
    statistics: tuple[Statistics, ...] = ()
    """The texts that ship and those of corpora, to draft from."""
    levels: Levels | None = None
    """The draft models below it; None where it has none."""
    proposers: tuple[Callable[[], Proposer], ...] = ()
    """Makers of what else drafts a reply."""
    implementation: str = ""
    """Entry of engine/backends.py that computes it."""
    activations: str = ""
    """What our kernels multiply weights by, int8 or int16; empty where other code computes it."""
    mtp: "DraftHead | None" = None
    """Draft head that the model brings; None if it brings none."""
    parameters: int | None = None
    """Number of weights; None if it is not known, as of a model elsewhere."""
    drafting_ready: threading.Event = field(default_factory=lambda: _set(threading.Event()))
    """Set once what drafts is compiled: before, replies are written without drafts."""

    def without_user_documents(self) -> "ServedModel":
        """Return it without texts that were added on this machine, for users other than the owner."""
        return replace(self, statistics=tuple(one for one in self.statistics if one.name == SEED_NAME))

    def wipe(self, user: int, chats: Collection[int | None] | None = None) -> None:
        """Overwrite what the model, draft models and MTP layer hold of these chats of a user, or of all, but not of
        replies in progress. Does nothing for a remote model."""
        if isinstance(self.engine, LocalEngine):
            self.engine.wipe(user, chats)
            with self.engine.paused():
                for sequence in self.levels.sequences if self.levels else ():
                    sequence.rollback(0)
                    sequence.wipe()
                if self.mtp:
                    self.mtp.wipe()

    @property
    def end_ids(self) -> frozenset[int]:
        """Return the tokens that end a reply; none where the engine elsewhere knows them."""
        return self.local.end_ids if self.is_local else frozenset()

    @property
    def drafts(self) -> bool:
        """Tell whether drafts are possible; an engine elsewhere decides for itself."""
        return not self.is_local or self.local.runner.drafts

    @property
    def is_local(self) -> bool:
        """Tell whether it is computed here, so that we draft; an engine elsewhere drafts for itself."""
        return isinstance(self.engine, LocalEngine)

    @property
    def local(self) -> LocalEngine:
        """Return the engine on this machine, for what only that can do. Raises ModelError where there is none."""
        if not isinstance(self.engine, LocalEngine):
            raise ModelError(
                f"{self.name} is computed elsewhere: only a model on this machine can be measured so."
            )
        return self.engine


SAVE_SECONDS = 30.0
MOST = 16
"""States held at once, some megabytes each; one that goes is written down."""
ACCEPTANCE, SUCCESSORS, LEVELS = "acceptance", "successors", "levels"


@dataclass(slots=True)
class LearnedState:
    """State learned of one user and model. Learners change it while a reply is written."""

    deletions: int = 0
    """Deletions of this user's conversations before it: after one more, the state is dropped."""
    acceptance: Acceptance = field(default_factory=Acceptance)
    successors: Successors = field(default_factory=Successors)
    levels: dict[str, Acceptance] = field(default_factory=dict)
    """Acceptance of the databases below each draft model, by its name."""
    payoff: Payoff = field(default_factory=payoff_of_drafting)
    """Estimate of what drafting gains, from the replies since the program started."""


class Learned:
    """Learned states of one store's users. A deletion drops all learned from that user, and nothing of it is written
    back. Call `save` while no reply is written."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._held: dict[tuple[int, str], LearnedState] = {}
        self._unsaved: set[tuple[int, str]] = set()
        self._saved = time.monotonic()
        self._lock = threading.Lock()

    def held(self, user_id: int, model_key: str) -> LearnedState:
        key = (user_id, model_key)
        with self._lock:
            deletions = self._store.users.deletions(user_id)
            state = self._held.pop(key, None)
            if state is None or state.deletions != deletions:
                state = self._load(key, deletions)
            self._held[key] = state  # the last one used is the last
            self._unsaved.add(key)
            for oldest in list(self._held)[:-MOST]:
                self._write(oldest)
                del self._held[oldest]
        return state

    def forget(self, user_id: int) -> None:
        with self._lock:
            for key in [key for key in self._held if key[0] == user_id]:
                del self._held[key]
                self._unsaved.discard(key)

    @property
    def due(self) -> bool:
        return time.monotonic() - self._saved >= SAVE_SECONDS

    def save(self, *, now: bool = False) -> bool:
        """Save what was learned, at most every SAVE_SECONDS unless `now`; return whether it did."""
        with self._lock:
            if not now and not self.due:
                return False
            for key in list(self._unsaved):
                self._write(key)
            self._saved = time.monotonic()
        return True

    def _load(self, key: tuple[int, str], deletions: int) -> LearnedState:
        state = LearnedState(deletions)
        for kind, (read, _) in _KINDS.items():
            # Damaged, or of another version: learned anew
            with suppress(ValueError, TypeError, AttributeError, StoreError):
                if value := self._store.learned.get(*key, kind):
                    setattr(state, kind, read(value))
        return state

    def _write(self, key: tuple[int, str]) -> None:
        if key not in self._unsaved:
            return
        self._unsaved.discard(key)
        state = self._held[key]
        with suppress(StoreError, MemoryError):
            for kind, (_, write) in _KINDS.items():
                if kind != LEVELS or state.levels:
                    value = write(getattr(state, kind))
                    self._store.learned.keep(*key, kind, value, deletions=state.deletions)


def _set(event: threading.Event) -> threading.Event:
    event.set()
    return event


def _levels_to_bytes(levels: Mapping[str, Acceptance]) -> bytes:
    stored = {name: base64.b64encode(one.to_bytes()).decode() for name, one in levels.items()}
    return json.dumps(stored).encode()


def _levels_from_bytes(data: bytes) -> dict[str, Acceptance]:
    return {name: Acceptance.from_bytes(base64.b64decode(one)) for name, one in json.loads(data).items()}


_KINDS: Mapping[str, tuple[Callable[[bytes], Any], Callable[[Any], bytes]]] = {
    ACCEPTANCE: (Acceptance.from_bytes, Acceptance.to_bytes),
    SUCCESSORS: (Successors.from_bytes, Successors.to_bytes),
    LEVELS: (_levels_from_bytes, _levels_to_bytes),
}
"""What is kept, by the name of the field, with what reads and what writes it."""
