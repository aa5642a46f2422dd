"""Generate one reply from prompt tokens, yield its frames, and store it as it grows: a crash loses a second at most."""

import logging
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from math import sqrt
from statistics import fmean, stdev

from hierchat.chat.deleted_texts import forget_deleted
from hierchat.chat.frames import DESERVED_TOKENS, Frame, ReplyPhase
from hierchat.chat.statistics import ReplyStatistics, plan_of
from hierchat.chat.tools import Tool
from hierchat.config import GenerationSettings
from hierchat.drafting.drafter import LEAD
from hierchat.drafting.payoff import Payoff
from hierchat.drafting.proposer import Proposer
from hierchat.drafting.source import Source
from hierchat.engine.engine import GenerationRequest
from hierchat.engine.local import LocalEngine
from hierchat.engine.remote.drafted import DraftedEngine
from hierchat.runtime.history_index import DraftOrigins
from hierchat.runtime.served_model import ServedModel
from hierchat.store import Store, StoreError
from hierchat.store.records import DraftsFrom, FinalState, NewTurn

_log = logging.getLogger(__name__)

PROBE_EVERY = 32
"""Forwards between two timed plain ones, about 2 % of the time, to measure the baseline under the same load."""
PROBES = 3
"""So many of them make a baseline, if they agree."""
SCATTER = 0.1
"""Standard error, as a share of the mean, above which plain forwards disagree and no speed-up is shown."""
FRAME_SECONDS = 0.125
"""Frames reach the page 8 times a second: each takes the browser some 15 ms, of the cores that the model needs."""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Names of user and reply for an engine that keeps replies elsewhere; empty if it may keep nothing."""

    user: str = ""
    reply: str = ""
    learns: bool = True
    """Whether it keeps the reply."""


@dataclass(frozen=True, slots=True)
class ReplyOptions:
    """Options of one reply: its settings, what may draft it, and what is kept of it."""

    user_id: int
    settings: GenerationSettings
    stop: threading.Event
    room: int | None = None
    """Tokens that its prompt leaves free, where that is not `settings.max_new_tokens`."""
    chat: int | None = None
    """The stored chat that it belongs to, if any."""
    before: int | None = None
    """The message that it answers, where that is stored."""
    drafts_from: DraftsFrom = "all"
    """Which texts may draft it."""
    drafts: bool = True
    """Whether anything may draft it."""
    learns: bool = True
    """Whether drafting of later replies learns from it."""
    tools: Mapping[str, Tool] = field(default_factory=dict)
    """The tools that it may call, by the names in its prompt."""
    notices: Sequence[str] = ()
    """Sentences that say why it may call no other tool."""
    documents: Sequence[Source] = ()
    """Databases of passages of its chat's documents."""


@dataclass(slots=True)
class ReplyStream:
    """Generates a reply, continuing initial tokens in `statistics`, which holds all of it at any time."""

    model: ServedModel
    prompt_ids: Sequence[int]
    options: ReplyOptions
    statistics: ReplyStatistics
    drafter: Proposer | None
    notice: str | None = None
    origins: DraftOrigins | None = None
    """Tells where drafts were found; None where we draft nothing."""
    payoff: Payoff | None = None
    """Estimate of what drafting gains, from earlier replies. None: always draft."""
    sent: float | None = None
    """When its question was sent (time.monotonic); None: as it begins to be written."""

    def frames(
        self, *, measure: bool, elsewhere: Elsewhere | None = None, anew: bool = False
    ) -> Generator[Frame, None, None]:
        """Yield the reply's frames while it is written, the last one in phase "done". A drafted reply pads as
        exactness asks. `measure`: time plain forwards on the way, as the baseline. `anew`: read the prompt without
        the cache. `elsewhere`: names by which a server may draft and keep it."""
        engine, statistics, options = self.model.engine, self.statistics, self.options
        if isinstance(engine, DraftedEngine):
            names = elsewhere or Elsewhere()
            drafts = options.drafts_from != "none"
            engine = engine.telling(names.user, names.reply, drafts=drafts, learns=names.learns, anew=anew)
        steps = engine.generate(
            GenerationRequest(
                [*self.prompt_ids, *statistics.tokens],
                options.settings,
                self.drafter,
                options.stop,
                padded=self.drafter is not None,
                begun=len(statistics.tokens),
                user=options.user_id,
                chat=options.chat,
                payoff=self.payoff,
            )
        )
        shown, sent = 0.0, time.monotonic() if self.sent is None else self.sent
        plain: list[float] = []
        baseline = engine if isinstance(engine, LocalEngine) else None
        if statistics.vanilla_ms is not None or not measure:
            baseline = None
        with closing(steps):
            for step in steps:
                statistics.add(step, (time.monotonic() - sent) * 1e3)
                self.notice = " ".join(filter(None, (self.notice, step.notice))) or None
                if step.batch_size > 1:  # the baseline is for one reply at a time
                    baseline = statistics.vanilla_ms = None
                if baseline and step.tokens and not step.finish and statistics.forwards % PROBE_EVERY == 4:
                    plain.append(baseline.measure_vanilla(options.settings))
                    self._compare(plain)
                now = time.monotonic()
                if step.finish is None and now - shown >= FRAME_SECONDS:
                    shown = now
                    yield self.frame("writing" if len(statistics.tokens) > statistics.begun else "reading")
        while (
            baseline
            and len(plain) < PROBES
            and len(statistics.tokens) >= DESERVED_TOKENS
            and not options.stop.is_set()
        ):
            plain.append(baseline.measure_vanilla(options.settings))
            self._compare(plain)
        yield self.frame("done")

    @property
    def prompt_tokens(self) -> int:
        """Return the number of the prompt's tokens; 0 until a server that alone can count them has done so."""
        knows = self.model.prompts.knows_tokens
        return len(self.prompt_ids) if knows else self.statistics.prompt_tokens

    def _compare(self, plain: Sequence[float]) -> None:
        """Set the baseline to the mean milliseconds of plain forwards, once enough of them agree."""
        if len(plain) >= PROBES and stdev(plain) / sqrt(len(plain)) <= SCATTER * fmean(plain):
            self.statistics.vanilla_ms = fmean(plain)

    def frame(self, phase: ReplyPhase = "done") -> Frame:
        statistics = self.statistics
        prompt = self.prompt_tokens
        text = statistics.text
        statistics.note_thought(text)
        return Frame(
            phase=phase,
            text=text,
            figures=statistics.figures(),
            prompt_read=statistics.prompt_read,
            prompt_tokens=prompt + statistics.begun,
            context_tokens=prompt + len(statistics.tokens),
            context_limit=self.model.engine.context_length if prompt else 0,
            finish=statistics.finish if phase == "done" else None,
            notice=self.notice,
        )


WRITE_SECONDS = 0.5


@dataclass(eq=False)
class ReplyRecorder:
    """Stores one reply while it is generated."""

    store: Store
    reply: ReplyStream
    user_id: int
    conversation_id: int
    question: int
    resumed: int | None = None
    """The message of the reply that is continued."""
    system_prompt: str | None = None

    def __post_init__(self) -> None:
        self._written = len(self.reply.statistics.tokens)
        self.message_id = self.resumed
        """Where it is stored, once it has begun."""

    def frames(self, *, measure: bool, anew: bool = False) -> Generator[Frame, None, None]:
        """Yield the reply's frames, each with its message id. However the reader leaves, what was written stands."""
        reply = self.reply
        message_id = self.message_id = self._begin()
        elsewhere = self._tell(message_id)
        written = time.monotonic()
        failed = True
        last: Frame | None = None
        try:
            with closing(reply.frames(measure=measure, elsewhere=elsewhere, anew=anew)) as frames:
                for frame in frames:
                    last = replace(frame, message_id=message_id)
                    if frame.phase == "done":
                        break
                    if time.monotonic() - written >= WRITE_SECONDS:
                        self._append(message_id)
                        written = time.monotonic()
                    yield last
            failed = False
        except GeneratorExit:
            failed = False  # the reader left: that is a stop
            raise
        finally:
            try:
                self._append(message_id)
            except StoreError:  # the reply ends with what was written before
                failed = True
                reply.statistics.cut(self._written)
                raise
            finally:
                self._finish(message_id, failed)
        if last:
            yield last

    def frames_alone(self, *, measure: bool, anew: bool) -> Generator[Frame, None, None]:
        """Yield the frames of a reply that is neither stored nor learned elsewhere."""
        elsewhere = replace(self._tell(None), learns=False)
        return self.reply.frames(measure=measure, elsewhere=elsewhere, anew=anew)

    def _begin(self) -> int:
        if self.resumed is not None:
            self.store.replies.resume(self.user_id, self.resumed)
            return self.resumed
        reply, settings = self.reply, self.reply.options.settings
        turn = NewTurn(
            reply.model.name,
            reply.model.model_key,
            settings.model_dump(mode="json", exclude={"grammar"} if settings.tools else set()),
            settings.seed,
            reply.drafter is not None
            or (isinstance(reply.model.engine, DraftedEngine) and reply.options.drafts_from != "none"),
            self.system_prompt,
            reply.model.activations or None,
        )
        return self.store.replies.begin(
            self.user_id, self.conversation_id, self.question, turn, self.reply.prompt_ids[-LEAD:]
        )

    def _tell(self, message_id: int | None) -> Elsewhere:
        """Return the names of this reply for an engine elsewhere; empty if that may keep nothing, or must delete."""
        engine, user_id = self.reply.model.engine, self.user_id
        if not isinstance(engine, DraftedEngine) or self.reply.options.drafts_from != "all":
            return Elsewhere()
        if not forget_deleted(self.store, engine):
            return Elsewhere()
        if message_id is None:
            return Elsewhere(self.store.outbox.name_of(user_id))
        return Elsewhere(*self.store.outbox.add(engine.place, user_id, message_id))

    def _finish(self, message_id: int, failed: bool) -> None:
        statistics = self.reply.statistics
        state: FinalState = "complete"
        if failed:
            state = "interrupted"
            statistics.finish = "error"
        elif statistics.finish in (None, "stopped"):
            state = "stopped"
            statistics.finish = "stopped"
        statistics.plan = plan_of(self.reply.drafter)
        try:
            self.store.replies.finish(message_id, statistics.text, state, statistics.record())
        except StoreError:  # it will count as interrupted, so it is not shown as whole
            statistics.finish = "error"
            raise

    def _append(self, message_id: int) -> None:
        statistics, origins = self.reply.statistics, self.reply.origins
        new = slice(self._written, len(statistics.tokens))
        if statistics.tokens[new]:
            found = zip(statistics.matches[new], statistics.chances[new], strict=True)
            self.store.replies.append(
                message_id,
                statistics.text,
                statistics.tokens[new],
                statistics.sources[new],
                [origins.of(match, chance) for match, chance in found] if origins else (),
            )
            self._written = len(statistics.tokens)
