"""The engine on this machine: one sequence of the target's runner, and the loop around it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Generator, Iterator, Sequence

from hierchat.config import GenerationSettings
from hierchat.drafting.proposer import Proposer
from hierchat.engine.decoding import Decoding, common_prefix
from hierchat.engine.errors import clear_memory_errors
from hierchat.engine.latency import LatencyCurve
from hierchat.engine.rows import Rows
from hierchat.engine.runner import CachedSequence, Runner
from hierchat.engine.sampling.top import prepare
from hierchat.engine.step import Step
from hierchat.engine.verify import choose_from


class LocalEngine:
    """An engine.Engine with all its abilities; one reply at a time. `decode` turns token ids into text.

    `latency` is what a step costs, refined by every step that might have drafted.
    """

    def __init__(
        self, sequence: CachedSequence, end_ids: Collection[int], decode: Callable[[Sequence[int]], str]
    ) -> None:
        self.sequence = sequence
        self.end_ids = frozenset(end_ids)
        self.decode = decode
        self.latency = LatencyCurve()
        self.user: int | None = None
        """Whose text the slots hold (runtime/hosted.py)."""
        prepare()

    @property
    def runner(self) -> Runner:
        return self.sequence.runner

    @property
    def context_length(self) -> int:
        return self.sequence.context_length

    @property
    def exact(self) -> bool | None:
        return self.sequence.exact

    @property
    def backend(self) -> str:
        return self.runner.backend

    def generate(
        self,
        prompt_ids: Sequence[int],
        settings: GenerationSettings,
        drafter: Proposer | None = None,
        stop: threading.Event | None = None,
        *,
        padded: bool = True,
        begun: int = 0,
    ) -> Generator[Step, None, None]:
        """Steps of one reply; the last one has `finish`. `begun`: the last so many of `prompt_ids` are the reply so
        far, which goes on as it would have by itself; `settings.max_new_tokens` counts them, too.

        Without a drafter this is vanilla decoding, and padded=False its fastest form: the baseline of every speed-up.
        Slots that hold a common prefix with `prompt_ids` are reused. Raises PromptTooLong, sampler.BrokenLogits,
        errors.OutOfMemory.
        """
        with clear_memory_errors():
            reply = self._begin(prompt_ids, settings, drafter, stop, begun)
            yield from reply.read()
            while reply.finish is None:
                _, tokens, parents = reply.draft()
                yield reply.take(self.sequence.forward(tokens, parents, padded=padded))

    def plain(self, prompt_ids: Sequence[int], settings: GenerationSettings) -> Iterator[tuple[Rows, Step]]:
        """Exact plain decoding; with each step the rows that it chose from, valid until the next."""
        reply = self._begin(prompt_ids, settings)
        for _ in reply.read():
            pass
        while reply.finish is None:
            _, tokens, parents = reply.draft()
            rows = self.sequence.forward(tokens, parents)
            yield rows, reply.take(rows)

    def shared(self, prompt_ids: Sequence[int]) -> int:
        """Tokens of a prompt that need not be read, since the slots hold them."""
        return common_prefix(self.sequence.tokens, prompt_ids)

    def forget(self, kept: int = 0) -> None:
        """Keep no more than the first `kept` tokens in the slots."""
        self.sequence.rollback(min(kept, len(self.sequence.tokens)))

    @clear_memory_errors()
    def measure_vanilla(self, settings: GenerationSettings, forwards: int = 3) -> float:
        """Milliseconds of a step of the fastest plain decoding where the slots stand now: median of `forwards`.

        Nothing is committed: the next turn finds the slots as they were.
        """
        sequence = self.sequence
        last = sequence.tokens[-1] if sequence.tokens else 0
        times = []
        for _ in range(forwards + 1):
            began = time.perf_counter()
            rows = sequence.forward((last,), (-1,), padded=False)
            choose_from(rows, 0, len(sequence.tokens) + 1, settings)
            took = (time.perf_counter() - began) * 1e3
            if not rows.recorded:
                times.append(took)
            if len(times) == forwards:
                break
        return sorted(times or [took])[len(times) // 2]

    def logit_gap(self, context: Sequence[int], first: int, second: int) -> float:
        """Difference of two tokens' raw logits after `context`."""
        reply = self._begin(context, GenerationSettings())
        for _ in reply.read():
            pass
        rows = self.sequence.forward((context[-1],), (-1,))
        return abs(float(rows[0][first]) - float(rows[0][second]))

    def _begin(
        self,
        prompt_ids: Sequence[int],
        settings: GenerationSettings,
        drafter: Proposer | None = None,
        stop: threading.Event | None = None,
        begun: int = 0,
    ) -> Decoding:
        return Decoding(
            self.sequence, prompt_ids, settings, self.end_ids, self.decode, drafter, stop, self.latency, begun
        )
