"""Generate on this machine: sequences of the target's runner, and the batch of replies in progress over them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import replace

import numpy as np

from hierchat.config import GenerationSettings
from hierchat.drafting.draft_cost import WIDEST, LatencyCurve
from hierchat.engine.batching import ContinuousBatch, SequencePool
from hierchat.engine.engine import GenerationRequest, Step, clear_memory_errors
from hierchat.engine.generation import Detokenizer, Generation
from hierchat.engine.runner import CachedSequence, Runner
from hierchat.engine.sampling.grammar import GrammarError, Grammars
from hierchat.engine.sampling.sampler import BrokenLogits, top_tokens
from hierchat.engine.verification import Rows, Sampler


class LocalEngine:
    """Generates replies on this machine, up to `places` at a time, and compares plain and speculative decoding.
    `sequence`: the runner's first; `decode`: token ids to text; `grammars`: None refuses settings that name a
    grammar."""

    def __init__(
        self,
        sequence: CachedSequence,
        end_ids: Collection[int],
        decode: Callable[[Sequence[int]], str],
        places: int = 1,
        grammars: Grammars | None = None,
    ) -> None:
        self.runner: Runner = sequence.runner
        self.backend, self.context_length = self.runner.backend, self.runner.context_length
        self.grammars = grammars
        self.end_ids = frozenset(end_ids)
        self.decode = decode
        self.latency = LatencyCurve()
        self._detokenizer = Detokenizer(decode, self.end_ids)
        self.pool = SequencePool(sequence, places)
        self._batch = ContinuousBatch(self.runner, self.latency)
        top_tokens(np.zeros(1, np.float32), 1)  # compiled now: the first reply need not wait for it

    @property
    def sequence(self) -> CachedSequence:
        return self.pool.latest

    @property
    def places(self) -> int:
        return self.pool.most

    @property
    def exact(self) -> bool | None:
        return self.runner.exact

    def generate(self, request: GenerationRequest) -> Generator[Step, None, None]:
        """Yield the steps of one reply. Without a drafter, unpadded, this is the baseline of every speed-up.
        From any thread. Raises PromptTooLong, TooManySequences, sampler.BrokenLogits, OutOfMemory."""
        if not self.runner.drafts:
            request = replace(request, drafter=None)
        with (
            clear_memory_errors(),
            self.pool.sequence(request.prompt_ids, request.user, request.chat) as sequence,
        ):
            reply = self._begin(sequence, request)
            try:
                steps = self._batch.steps(reply, padded=request.padded, spare=request.spare)
                with closing(steps):
                    yield from steps
            except BrokenLogits:
                sequence.rollback(0)  # one number that is none spoils all that is computed from it
                raise
            finally:
                if request.spare:
                    sequence.rollback(0)

    def read_ahead(
        self, prompt_ids: Sequence[int], user: int, chat: int | None, stop: threading.Event
    ) -> bool:
        """Read a prompt but its last token, in short pieces, until `stop`; return whether all is read."""
        request = GenerationRequest(prompt_ids, GenerationSettings(), stop=stop, user=user, chat=chat)
        with clear_memory_errors(), self.pool.sequence(prompt_ids, user, chat) as sequence:
            reply = self._begin(sequence, request)
            with closing(self._batch.steps(reply, spare=True)) as steps:
                for _ in steps:
                    if not reply.left or stop.is_set():
                        break
            return not reply.left

    def plain(
        self, prompt_ids: Sequence[int], settings: GenerationSettings
    ) -> Generator[tuple[Rows, Step], None, None]:
        """Decode one reply plainly and exactly; yield each step with the rows that it chose from, valid until then."""
        with self.pool.sequence(prompt_ids) as sequence:
            reply = self._begin(sequence, GenerationRequest(prompt_ids, settings))
            for _ in reply.read():
                pass
            while reply.finish is None:
                reply.propose()
                segment = reply.segment()
                rows = sequence.forward(segment.tokens, segment.parents)
                yield rows, reply.take(rows)

    def clear(self) -> None:
        self.pool.clear()

    def wipe(self, user: int, chats: Collection[int | None] | None = None) -> None:
        """Overwrite the slots that hold texts of these chats, or all of a user's; replies in progress keep theirs."""
        with self._batch.paused():
            self.pool.wipe(user, chats)

    def paused(self) -> AbstractContextManager[None]:
        """Let no reply go on meanwhile, so that what they learn in can be written down."""
        return self._batch.paused()

    @clear_memory_errors()
    def measure_vanilla(self, settings: GenerationSettings) -> float:
        """Measure a step of the fastest plain decoding of one reply, in ms. Commits nothing."""
        for _ in range(2):
            with self._batch.paused():
                writing = self._batch.writing
                sequence = writing[0].sequence if writing else self.sequence
                last = sequence.tokens[-1] if sequence.tokens else 0
                began = time.perf_counter()
                rows = sequence.forward((last,), (-1,), padded=False)
                Sampler(settings).choose(rows, 0, len(sequence.tokens) + 1)
                took = (time.perf_counter() - began) * 1e3
            if not rows.recorded:
                break
        return took

    def logit_gap(self, context: Sequence[int], first: int, second: int) -> float:
        """Return the difference of two tokens' raw logits after `context`."""
        with closing(self.plain(context, GenerationSettings())) as steps:
            rows, _ = next(steps)
            return abs(float(rows[0][first]) - float(rows[0][second]))

    def _begin(self, sequence: CachedSequence, request: GenerationRequest) -> Generation:
        grammar = None
        if text := request.settings.grammar:
            if self.grammars is None:
                raise GrammarError("This engine was made without grammars.")
            ids = request.prompt_ids
            grammar = self.grammars.begin(text, ids[len(ids) - request.begun :])
        return Generation(sequence, request, self._detokenizer, self.latency, grammar)


PROBES = (1, 8, 2, 4, 16, 32, 3, 6, 12, 24)
"""Widths to measure after loading, the most telling first."""
ROUNDS = 3
SPREAD = 7919
"""Distance of the probes' tokens: a prime."""


def measure(curve: LatencyCurve, sequence: CachedSequence, seconds: float = 0.3) -> None:
    """Measure forwards at the present context, and fill the curve; nothing is committed. The fastest of several
    rounds over all widths counts; at least two rounds, because the first forward over a width may have to prepare
    something."""
    probes = PROBES * ROUNDS if sequence.runner.drafts else (1,) * ROUNDS
    context = len(sequence.tokens)
    # Different ones, as in a text: rows of one token would all be routed to the same experts
    tokens = (np.arange(1, WIDEST + 1) * SPREAD % sequence.vocabulary).tolist()
    fastest: dict[int, float] = {}
    end = time.perf_counter() + seconds
    for number, width in enumerate(probes):
        if number >= 3 and time.perf_counter() > end:
            break
        for _ in range(2):
            began = time.perf_counter()
            sequence.forward(tokens[:width], range(-1, width - 1))[0]  # there when the device is done
            ms = (time.perf_counter() - began) * 1e3
            fastest[width] = min(ms, fastest.get(width, ms))
    for width, ms in fastest.items():
        curve.note(width, context, ms)
