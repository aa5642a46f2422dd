"""One reply from prompt tokens to frames."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev

from hierchat.chat.frames import DESERVED_TOKENS, Frame, Phase
from hierchat.chat.statistics import ReplyStatistics
from hierchat.config import GenerationSettings
from hierchat.drafting.proposer import Proposer
from hierchat.engine.engine import LearnsElsewhere, MeasuresBaseline
from hierchat.language import _, later
from hierchat.runtime.history_index import DraftOrigins
from hierchat.runtime.served_model import ServedModel
from hierchat.store import DraftsFrom

PROBE_EVERY = 32
"""Forwards between two plain ones that are timed on the way, about 2 % of the time. So the baseline is measured under
the same load as the reply (a browser that draws, another program)."""
PROBES = 3
"""So many of them make a baseline, if they agree."""
SCATTER = 0.1
"""Standard error, as a share of their mean, up to which they agree. Beyond it another program ran on the machine, and
no speed-up is shown."""
NEARLY_FULL = 0.9
"""Share of what a model can remember of a chat beyond which the user is told that turns will soon be left out."""
_NEARLY_FULL = later(
    "This chat nearly fills the context window: {tokens:,} of {limit:,} tokens. Soon its oldest turns will be left out "
    "of what the model sees. They stay in the chat."
)
FRAME_SECONDS = 0.08
"""Frames reach the page about 12 times a second."""


@dataclass(slots=True)
class ReplyStream:
    """A reply in the making; `statistics` holds all of it at any time, also after the reader left.

    Where it holds tokens from the start, these are continued; `settings.max_new_tokens` counts them, too.
    """

    model: ServedModel
    prompt_ids: Sequence[int]
    settings: GenerationSettings
    statistics: ReplyStatistics
    drafter: Proposer | None
    notice: str | None = None
    origins: DraftOrigins | None = None
    """Tells where drafts were found; None where we draft nothing."""
    user: int | None = None
    """Whose it is: what was read for others is not used."""
    drafts_from: DraftsFrom = "all"
    """Which texts may draft it, where the engine has some of its own."""
    named: tuple[str, str] = ("", "")
    """What such an engine calls the user and the reply that it may keep; empty where it may keep nothing."""
    learns: bool = True
    """Whether it keeps the reply, where it is told whose it is."""
    limit: int | None = None
    """Tokens from which on the oldest turns of its chat are left out; None where they already are, or never will."""
    anew: bool = False
    """Whether it reads the prompt as if nothing had been read before: a comparison's side."""
    sent: float | None = None
    """When its question was sent (time.monotonic); None: as it begins to be written."""

    def count_wait(self, sent: float, waited_seconds: float, loading_seconds: float) -> None:
        """Take note of when its question was sent (time.monotonic), and of how long it waited since: for other replies,
        and until the model was there."""
        self.sent = sent
        self.statistics.waited_ms += waited_seconds * 1e3
        self.statistics.loading_ms += loading_seconds * 1e3

    def frames(self, stop: threading.Event, *, measure: bool) -> Generator[Frame, None, None]:
        """Frames while it is written, the last one in phase "done".

        A drafted reply pads as exactness asks; one without a drafter is plain decoding at its fastest. `measure`:
        time plain forwards on the way, as the baseline of its speed-up, and what is missing of them behind it.
        """
        engine, statistics = self.model.engine, self.statistics
        if isinstance(engine, LearnsElsewhere):
            engine = engine.telling(
                *self.named, drafts=self.drafts_from != "none", learns=self.learns, anew=self.anew
            )
        steps = engine.generate(
            [*self.prompt_ids, *statistics.tokens],
            self.settings,
            self.drafter,
            stop,
            padded=self.drafter is not None,
            begun=len(statistics.tokens),
            user=self.user,
        )
        shown, sent = 0.0, time.monotonic() if self.sent is None else self.sent
        plain: list[float] = []
        baseline = engine if isinstance(engine, MeasuresBaseline) else None
        if statistics.baseline == "measured" or not measure:
            baseline = None
        with closing(steps):
            for step in steps:
                statistics.add(step, (time.monotonic() - sent) * 1e3)
                self.notice = " ".join(filter(None, (self.notice, step.notice))) or None
                if baseline and step.tokens and not step.finish and statistics.forwards % PROBE_EVERY == 4:
                    plain.append(baseline.measure_vanilla(self.settings, forwards=1))
                    self._compare(plain)
                now = time.monotonic()
                if step.finish is None and now - shown >= FRAME_SECONDS:
                    shown = now
                    yield self.frame("writing" if len(statistics.tokens) > statistics.begun else "reading")
        while (
            baseline
            and len(plain) < PROBES
            and len(statistics.tokens) >= DESERVED_TOKENS
            and not stop.is_set()
        ):
            plain.append(baseline.measure_vanilla(self.settings, forwards=1))
            self._compare(plain)
        self._say_if_nearly_full()
        yield self.frame("done")

    @property
    def prompt_tokens(self) -> int:
        """Of the prompt; 0 until a server that alone can count them has done so."""
        knows = self.model.prompts.knows_tokens
        return len(self.prompt_ids) if knows else self.statistics.prompt_tokens

    def _say_if_nearly_full(self) -> None:
        tokens = self.prompt_tokens + len(self.statistics.tokens)
        if self.limit and tokens >= NEARLY_FULL * self.limit:
            said = _(_NEARLY_FULL).format(tokens=tokens, limit=self.limit)
            self.notice = " ".join(filter(None, (self.notice, said)))

    def _compare(self, plain: Sequence[float]) -> None:
        """Take plain forwards as the baseline, once there are enough that agree."""
        if len(plain) >= PROBES and stdev(plain) / sqrt(len(plain)) <= SCATTER * fmean(plain):
            self.statistics.set_baseline(fmean(plain), "measured")

    def frame(self, phase: Phase = "done") -> Frame:
        """All of it so far."""
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


def reply_text(served: ServedModel, tokens: Sequence[int], *, opened: bool = False) -> str:
    """The text of a reply's tokens, what was thought between <think> and </think>. `opened`: its prompt ended where
    the model begins to think."""
    return served.prompts.thinking.text(tokens, opened=opened)
