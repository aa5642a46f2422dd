"""Plain decoding of many conversations at once, one row of a forward each.

A further row costs a sixth of the first one, so this is the way to write much. Rows never mix: every conversation gets
the tokens that it would get alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hierchat.config import GenerationSettings
from hierchat.engine.cpu.attention import lay_out
from hierchat.engine.cpu.dot import ROWS
from hierchat.engine.cpu.forward import COUNTERS, forward
from hierchat.engine.cpu.memory import CHUNK, make_key_values, make_work
from hierchat.engine.cpu.phases import COUNTER
from hierchat.engine.cpu.target import MOST_ROWS, BlockTarget
from hierchat.engine.engine import common_prefix
from hierchat.engine.sampling.sampler import Counts, choose

_NO_CYCLES = np.zeros(0, np.int64)


@dataclass(slots=True)
class _Stream:
    """One conversation: the tokens whose keys and values its slots hold, and the one that follows them."""

    tokens: list[int] = field(default_factory=list)
    last: int | None = None
    settings: GenerationSettings = field(default_factory=GenerationSettings)
    counts: Counts = field(default_factory=lambda: Counts(()))


class Batch:
    """`streams` conversations, numbered from 0, of at most `context_length` positions each.

    They use a target's weights and threads, one forward at a time; its own slots stay untouched.
    """

    def __init__(self, target: BlockTarget, streams: int, context_length: int) -> None:
        if not 0 < streams <= MOST_ROWS:
            raise ValueError(f"A batch has 1 to {MOST_ROWS} streams, not {streams}.")
        if not 0 < context_length <= target.context_length:
            raise ValueError(f"The model's context holds {target.context_length} positions.")
        self.streams = streams
        self.context_length = context_length
        self._target = target
        self._chunks = -(-context_length // CHUNK)
        self._slots = make_key_values(target.shape, streams * self._chunks * CHUNK)
        work = make_work(target.shape, MOST_ROWS, target.team.threads)
        attended = MOST_ROWS * target.shape.heads * self._chunks * (target.shape.head_dim + 2)
        self._work = work._replace(attended=np.zeros(attended, np.float32))
        self._identity = np.arange(CHUNK, dtype=np.int32)
        self._streams = [_Stream() for _ in range(streams)]

    def start(self, stream: int, prompt: Sequence[int], settings: GenerationSettings) -> None:
        """A stream takes up another conversation, or the next turn of its own: what some stream has read of the
        prompt already is not read again. Raises ValueError where the prompt leaves no room for a reply."""
        if not 0 < len(prompt) < self.context_length:
            raise ValueError(f"A prompt of {len(prompt)} tokens for a stream of {self.context_length}.")
        self._take_over(stream, prompt[:-1])
        mine = self._streams[stream]
        for begin in range(len(mine.tokens), len(prompt) - 1, MOST_ROWS):
            part = prompt[begin : min(begin + MOST_ROWS, len(prompt) - 1)]
            self._forward([stream], part, logits=False)
            mine.tokens.extend(part)
        mine.last, mine.settings, mine.counts = prompt[-1], settings, Counts(prompt)

    def stop(self, stream: int) -> None:
        """The reply is finished; the stream rests until its next start."""
        self._streams[stream].last = None

    def step(self) -> list[tuple[int, int]]:
        """One more token for every stream that writes: (stream, token). A full stream stops behind its token."""
        writing = [(number, stream) for number, stream in enumerate(self._streams) if stream.last is not None]
        if not writing:
            return []
        tokens = [stream.last for _, stream in writing if stream.last is not None]
        rows = self._forward([number for number, _ in writing], tokens, logits=True)
        written = []
        for row, token, (number, stream) in zip(rows, tokens, writing, strict=True):
            stream.tokens.append(token)
            position = len(stream.tokens)
            chosen = choose(row, position, stream.settings.seed, stream.settings, stream.counts)
            stream.counts.add(chosen)
            stream.last = chosen if position + 1 < self.context_length else None
            written.append((number, chosen))
        return written

    def _take_over(self, stream: int, prompt: Sequence[int]) -> None:
        """Forget what the stream holds beyond its longest common beginning with the prompt; where another stream
        has a longer one, copy that."""
        shared = [common_prefix(other.tokens, prompt) for other in self._streams]
        best = int(np.argmax(shared))
        mine = self._streams[stream]
        if shared[best] > shared[stream]:
            chunks = -(-shared[best] // CHUNK)
            source, goal = best * self._chunks, stream * self._chunks
            for slots in self._slots:
                slots[:, :, goal : goal + chunks] = slots[:, :, source : source + chunks]
        mine.tokens = list(prompt[: shared[best]])

    def _forward(self, streams: Sequence[int], tokens: Sequence[int], *, logits: bool) -> NDArray[np.float32]:
        """One row per stream, or a piece of the prompt of one."""
        target, work, rows = self._target, self._work, len(tokens)
        starts = np.array([len(self._streams[stream].tokens) for stream in streams], np.int64)
        work.firsts[: len(streams)] = np.array(streams, np.int64) * self._chunks
        work.x[:rows] = target.model.embedding.floats(np.asarray(tokens, np.int64))
        width = rows // len(streams)
        parents = np.arange(-1, width - 1)
        for number, start in enumerate(starts):
            block = slice(number * width, (number + 1) * width)
            lay_out(parents, start, work.positions[block], work.order[block])
        padded = -(-rows // ROWS) * ROWS if rows > 1 else 1
        out = np.empty((padded if logits else 0, target.vocabulary), np.float32)
        counters = np.zeros((target.shape.layers * COUNTERS + 2) * COUNTER, np.int64)

        def job(rank: int) -> None:
            forward(
                target.shape,
                target.weights,
                self._slots,
                work,
                self._identity,
                starts,
                rows,
                out,
                counters,
                target.team.threads,
                rank,
                _NO_CYCLES,
            )

        target.team.run(job)
        return out[:rows]
