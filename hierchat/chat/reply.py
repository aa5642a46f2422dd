"""One reply from prompt tokens to frames."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass

from hierchat.chat.frames import Frame, Phase
from hierchat.chat.host import Hosted
from hierchat.chat.statistics import ReplyStatistics
from hierchat.config import GenerationSettings
from hierchat.drafting.proposer import Proposer

PROBE_EVERY = 32
"""Forwards between two plain ones that are timed on the way: about 2 % of the time, and the baseline then saw the same
machine as the reply (a browser that draws, another program)."""
FRAME_SECONDS = 0.08
"""Frames reach the page about 12 times a second."""


@dataclass(slots=True)
class Reply:
    """A reply in the making; `statistics` holds all of it at any time, also after the reader left."""

    hosted: Hosted
    prompt_ids: Sequence[int]
    settings: GenerationSettings
    statistics: ReplyStatistics
    drafter: Proposer | None
    notice: str | None = None

    def frames(self, stop: threading.Event, *, measure: bool) -> Generator[Frame, None, None]:
        """Frames while it is written, the last one in phase "done".

        A drafted reply pads as exactness asks; one without a drafter is plain decoding at its fastest. `measure`:
        time plain forwards on the way, or behind a short reply, as the baseline of its speed-up.
        """
        engine, statistics = self.hosted.engine, self.statistics
        steps = engine.generate(
            self.prompt_ids, self.settings, self.drafter, stop, padded=self.drafter is not None
        )
        shown = 0.0
        plain: list[float] = []
        measure = measure and statistics.baseline != "measured"
        with closing(steps):
            for step in steps:
                statistics.add(step)
                if measure and step.tokens and not step.finish and statistics.forwards % PROBE_EVERY == 4:
                    plain.append(engine.measure_vanilla(self.settings, forwards=1))
                    statistics.set_baseline(sum(plain) / len(plain), "measured")
                now = time.monotonic()
                if step.finish is None and now - shown >= FRAME_SECONDS:
                    shown = now
                    yield self.frame("writing" if statistics.tokens else "reading")
        if measure and not plain and statistics.tokens and not stop.is_set():
            statistics.set_baseline(engine.measure_vanilla(self.settings), "measured")
        yield self.frame("done")

    def frame(self, phase: Phase) -> Frame:
        statistics = self.statistics
        return Frame(
            phase=phase,
            text=statistics.text,
            figures=statistics.figures(),
            prompt_read=statistics.prompt_read,
            prompt_tokens=len(self.prompt_ids),
            context_tokens=len(self.prompt_ids) + len(statistics.tokens),
            context_limit=self.hosted.engine.target.context_length,
            finish=statistics.finish if phase == "done" else None,
            notice=self.notice,
        )


def plain_decode(hosted: Hosted, tokens: Sequence[int]) -> str:
    """Text of a reply: special tokens left out, nothing tidied up."""
    return hosted.prompts.tokenizer.decode(
        tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
    )
