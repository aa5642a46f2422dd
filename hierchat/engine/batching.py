"""Batch continuously, without a scheduler thread: the first request that needs a step runs it for the whole batch.
A chunk of one prompt goes along (chunked prefill), short enough for the others not to stall."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from hierchat.drafting.draft_cost import WIDEST, DraftCost, Latency, LatencyCurve
from hierchat.drafting.draft_tree import DraftTree, divided
from hierchat.drafting.proposer import DraftCoroutine, drafted
from hierchat.engine.engine import Step
from hierchat.engine.generation import CHUNK, Generation, common_prefix
from hierchat.engine.runner import CachedSequence, Runner, TooManySequences
from hierchat.engine.verification import Rows

STALL_MS = 200.0
"""Longest step, in ms, with a chunk of a prompt while others write, unless half of it is needed without the chunk."""
CHUNK_MS = 60.0
"""Time for a chunk beside a step, at least: a reply of which fifteen tokens come in a second does not stall."""
LEAST_CHUNK = 8
"""Tokens of a chunk, at least."""
AHEAD = 32
"""Steps that may wait for the reader of a reply; then that reply rests."""
GIVE_WAY_MS = 100.0
"""What one chunk or one step takes at most of replies that are written in spare time: so long somebody may wait."""


class ChunkedPrefill:
    """Decides whose prompt is read next, and how much at a time. `latency`: row costs before a chunk was read."""

    def __init__(self, latency: Latency) -> None:
        self._latency = latency
        self._learned_ms = 0.0

    @property
    def _row_ms(self) -> float:
        step_ms = self._latency.step_ms(0)
        return self._learned_ms or step_ms[-1] / len(step_ms)

    def next_reader(self, left: Sequence[int], waited_ms: Sequence[float]) -> int:
        """Choose the prompt with the least left to read, less what it has waited. `left` [prompts]: unread tokens."""
        rest = [tokens * self._row_ms - ms for tokens, ms in zip(left, waited_ms, strict=True)]
        return rest.index(min(rest))

    def tokens(self, step_ms: float, readers: int, writers: int) -> int:
        """Return how many tokens to read in a step of `step_ms`: readers and writers share the time equally."""
        longest = max(STALL_MS, 2 * step_ms) - step_ms
        ms = min(max(step_ms * readers / writers, CHUNK_MS), longest)
        return min(max(int(ms / self._row_ms), LEAST_CHUNK), CHUNK)

    def note(self, tokens: int, ms: float) -> None:
        """Learn that a chunk of so many tokens took `ms`."""
        if tokens >= LEAST_CHUNK:
            self._learned_ms = (self._row_ms + max(ms / tokens, 1e-3)) / 2


@dataclass(eq=False, slots=True)
class _Running:
    """Hold a reply in the batch, and what its caller waits for."""

    reply: Generation
    padded: bool
    spare: bool
    """Whether it is written in spare time: no forward begins once it is stopped, and each is short."""
    since: float = field(default_factory=time.perf_counter)
    steps: deque[Step] = field(default_factory=deque)
    error: Exception | None = None
    closed: bool = False
    """Whether nobody wants its steps any more."""
    waited_ms: float = 0.0
    """What others took since its last step."""

    @contextmanager
    def failing(self) -> Iterator[None]:
        """End this reply alone, with whatever is raised inside."""
        try:
            yield
        except Exception as error:
            self.error = error

    def drafting(self, cost: DraftCost, most: int, replies: int) -> DraftCoroutine:
        """Draft as Generation.drafting does; what fails ends this reply alone."""
        with self.failing():
            return (yield from self.reply.drafting(cost, most, replies))
        return DraftTree()

    def put(self, step: Step) -> None:
        self.steps.append(replace(step, waited_ms=self.waited_ms) if self.waited_ms else step)
        self.waited_ms = 0.0


class ContinuousBatch:
    """Run the replies in progress over one runner. `latency`: what a step costs, by all rows in it."""

    def __init__(self, runner: Runner, latency: LatencyCurve) -> None:
        self._runner = runner
        self._latency = latency
        self._cost = DraftCost(latency)
        self._prefill = ChunkedPrefill(latency)
        self._running: list[_Running] = []
        self._changed = threading.Condition()
        self._busy = False
        self._pausing = 0
        self._landing: Callable[[], None] | None = None
        """Takes the steps of the forward under way; it computes while callers look at the steps before."""

    def steps(
        self, reply: Generation, *, padded: bool = True, spare: bool = False
    ) -> Generator[Step, None, None]:
        """Yield the steps of a reply until it has ended. Raises what its own forwards raise."""
        request = _Running(reply, padded, spare)
        request.put(reply.begin())
        with self._changed:
            self._running.append(request)
        try:
            while True:
                step = self._next(request)
                yield step
                if step.finish:
                    return
        finally:
            request.closed = True
            with self.paused():  # no forward is under way over its sequence
                self._running.remove(request)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let no reply go on while the block inside runs."""
        with self._changed:
            self._pausing += 1
            self._changed.wait_for(lambda: not self._busy)
            self._pausing -= 1
            self._busy = True
        try:
            self._land()
            yield
        finally:
            self._free()

    @property
    def writing(self) -> list[Generation]:
        """List the replies whose prompts are read, which are being written."""
        return [one.reply for one in self._running if not one.reply.left and one.reply.finish is None]

    def _next(self, request: _Running) -> Step:
        while True:
            with self._changed:
                while self._busy or self._pausing or request.steps or request.error:
                    if request.steps:
                        return request.steps.popleft()
                    if request.error:
                        raise request.error
                    self._changed.wait()
                self._busy = True
            try:
                self._advance()
            finally:
                self._free()

    def _free(self) -> None:
        with self._changed:
            self._busy = False
            self._changed.notify_all()

    def _land(self) -> None:
        """Take the steps of the forward under way, if any."""
        landing, self._landing = self._landing, None
        if landing:
            landing()

    def _advance(self) -> None:
        """Begin the next forward; end the one before, and this one as well if its results are already there."""
        self._land()
        self._begin()
        if not self._runner.answers_later:
            self._land()

    def _begin(self) -> None:
        going = [
            one
            for one in self._running
            if one.reply.finish is None and one.error is None and len(one.steps) < AHEAD
        ]
        for one in going:
            if one.reply.given_up or (one.spare and one.reply.stop.is_set()):
                one.put(one.reply.give_up())
        if not all(one.spare for one in going):  # of the lowest rank: they wait for all others
            going = [one for one in going if not one.spare]
        going = [one for one in going if one.reply.finish is None]
        reading = [one for one in going if one.reply.left]
        writing = [one for one in going if not one.reply.left]
        reader, chunk = None, self._runner.chunk
        if reading:
            now = time.perf_counter()
            waited = [(now - one.since) * 1e3 for one in reading]
            reader = reading[self._prefill.next_reader([one.reply.left for one in reading], waited)]
            if writing:
                chunk = self._prefill.tokens(self._cost.step_ms(0), len(reading), len(writing))
        if reader and reader.spare:  # a step with the chunk would take too long to give way
            self._read(reader, self._latency.within(GIVE_WAY_MS, reader.reply.position))
            return
        shares = self._runner.shares_forward
        if reader and not (writing and shares):
            self._read(reader, chunk)
            reader = None
        if reader or (len(writing) > 1 and shares):
            self._write(writing, reader, chunk)
        else:
            for one in writing:
                self._land()
                with self._alone(one):
                    one.reply.propose()
                    segment = one.reply.segment()
                    rows = one.reply.sequence.forward(segment.tokens, segment.parents, padded=one.padded)
                    self._landing = partial(self._take, one, rows)

    def _take(self, request: _Running, rows: Rows) -> None:
        if not request.closed:
            with self._alone(request):
                request.put(request.reply.take(rows))

    def _read(self, request: _Running, most: int) -> None:
        with self._alone(request):
            step = request.reply.read_chunk(most)
            request.put(step)
            self._prefill.note(step.width, step.forward_ms)

    @contextmanager
    def _alone(self, request: _Running) -> Iterator[None]:
        began = time.perf_counter()
        with request.failing():
            yield
        ms = (time.perf_counter() - began) * 1e3
        for other in self._running:
            if other is not request:
                other.waited_ms += ms

    def _write(self, writing: Sequence[_Running], reader: _Running | None, most: int) -> None:
        """Begin a forward over all these replies, with a chunk of a reader's prompt."""
        began = time.perf_counter()
        cost, roots = self._cost, len(writing)
        cost.look(sum(one.reply.position for one in writing) // roots, roots)
        trees = drafted([one.drafting(cost, max(WIDEST - roots, 0), roots) for one in writing])
        going = [(one, tree) for one, tree in zip(writing, trees, strict=True) if not one.error]
        if not going:  # all have failed: a prompt goes on with the next step
            return
        kept = divided([tree for _, tree in going], cost)
        segments = [one.reply.segment(count) for (one, _), count in zip(going, kept, strict=True)]
        width = sum(len(one.tokens) for one in segments)
        chunk = reader.reply.chunk(min(most, CHUNK - width)) if reader else None
        forward = time.perf_counter()
        try:
            rows = self._runner.forward([*segments, *([chunk] if chunk else [])])
        except Exception as error:
            for one in (*writing, *([reader] if reader else [])):
                one.error = error
            return
        replies, read = [one for one, _ in going], len(chunk.tokens) if chunk else 0
        self._landing = partial(self._take_all, replies, rows, width, reader, read, began, forward)

    def _take_all(
        self,
        writing: Sequence[_Running],
        rows: Sequence[Rows],
        width: int,
        reader: _Running | None,
        read: int,
        began: float,
        forward: float,
    ) -> None:
        """Take one step of all these replies, and what was read for the reader, from a forward over `width` rows of
        replies. `began`, `forward`: when its drafting began, and when it began itself."""
        cost, roots = self._cost, len(writing)
        with writing[0].failing():
            writing[0].reply.wait_for(rows[0])
        verify = time.perf_counter()
        forward_ms, waited = (verify - forward) * 1e3, 0.0
        if reader:
            waited = max(forward_ms - cost.step_ms(width - roots), 0.0)
            if not rows[0].recorded:
                self._prefill.note(read, waited)
            if not reader.closed:
                with reader.failing():
                    reader.put(reader.reply.take_chunk(read, rows[-1], forward_ms))
        steps: list[tuple[_Running, Step]] = []
        for one, mine in zip(writing, rows, strict=False):
            if not one.closed:
                with one.failing():
                    steps.append((one, one.reply.take(mine, alone=False)))
        ended = time.perf_counter()
        cost.note(width, sum(len(step.tokens) for _, step in steps))
        for one, step in steps:
            one.waited_ms += waited
            one.put(
                replace(
                    step,
                    batch_size=roots,
                    draft_ms=(forward - began) * 1e3,
                    forward_ms=forward_ms - waited,
                    verify_ms=(ended - verify) * 1e3,
                )
            )
        if reader:
            reader.waited_ms += (ended - verify + forward - began) * 1e3


WORTH_TAKING_OVER = 16
"""Tokens; fewer are read again."""


class SequencePool:
    """Lends a runner's sequences to one reply at a time, and keeps their texts for the next ones. Opens up to `most`
    sequences as needed, and reuses the least recently used one. A user's never serves another user."""

    def __init__(self, first: CachedSequence, most: int = 1) -> None:
        self.most = max(most, 1)
        self.latest = first
        """The one that a reply was given last."""
        self._free = [first]  # the least recently used first
        self._taken: list[CachedSequence] = []
        self._users: dict[int, int | None] = {}
        self._chats: dict[int, int | None] = {}
        self.restore: Callable[[CachedSequence, Sequence[int], int | None], object] | None = None
        """Puts more of a user's prompt into a sequence, from the disk."""
        self._wiped: set[int] = set()
        """Those that were in use when texts of their user were deleted: they are never written to the disk."""
        self._lock = threading.Lock()

    @contextmanager
    def sequence(
        self, prompt: Sequence[int], user: int | None = None, chat: int | None = None
    ) -> Iterator[CachedSequence]:
        """Lend a sequence for the time of a reply; see `take`."""
        sequence = self.take(prompt, user, chat)
        try:
            yield sequence
        finally:
            self.give(sequence)

    def take(self, prompt: Sequence[int], user: int | None = None, chat: int | None = None) -> CachedSequence:
        """Take the user's sequence with the longest common prefix of this prompt. Raises TooManySequences."""
        with self._lock:
            own = self._own(user)
            shared = {id(one): common_prefix(one.tokens, prompt) for one in own}
            sequence = self._chosen(shared)
            held = shared.get(id(sequence), 0)
            self._free = [one for one in self._free if one is not sequence]
            self._taken.append(sequence)
            self._users[id(sequence)], self._chats[id(sequence)] = user, chat
            self.latest = sequence
            sequence.rollback(held)
            holder = max(own, key=lambda one: shared[id(one)], default=sequence)
            if (most := shared.get(id(holder), 0)) >= held + WORTH_TAKING_OVER:
                sequence.adopt(holder, prompt[held:most])
            self._wiped.discard(id(sequence))
            if self.restore:
                self.restore(sequence, prompt, user)
            return sequence

    @property
    def sequences(self) -> list[CachedSequence]:
        return [*self._free, *self._taken]

    def texts(self) -> list[tuple[CachedSequence, int | None, int | None]]:
        """List the texts that no reply uses, each with its user and chat."""
        with self._lock:
            return [
                (one, self._users.get(id(one)), self._chats.get(id(one)))
                for one in self._free
                if id(one) not in self._wiped
            ]

    def give(self, sequence: CachedSequence) -> None:
        """Give a sequence back once its reply has ended."""
        with self._lock:
            self._taken = [one for one in self._taken if one is not sequence]
            self._free.append(sequence)

    def shared(self, prompt: Sequence[int], user: int | None = None) -> int:
        """Count the tokens of a prompt that need not be read for this user."""
        with self._lock:
            return max((common_prefix(one.tokens, prompt) for one in self._own(user)), default=0)

    def forget(self, prompt: Sequence[int], kept: int) -> None:
        """Keep no more than the first `kept` tokens of this prompt in the slots; replies in progress keep theirs."""
        with self._lock:
            for sequence in self._free:
                if common_prefix(sequence.tokens, prompt) > kept:
                    sequence.rollback(kept)

    def clear(self) -> None:
        """Empty all slots; replies in progress keep theirs."""
        with self._lock:
            for sequence in self._free:
                sequence.rollback(0)

    def wipe(self, user: int, chats: Collection[int | None] | None = None) -> None:
        """Empty and overwrite the slots of these chats of a user, or all. No forward may be in progress."""
        with self._lock:
            for sequence in self._free:
                chat = self._chats.get(id(sequence))
                if self._users.get(id(sequence)) == user and (chats is None or chat in chats):
                    sequence.rollback(0)
            self._wiped |= {id(one) for one in self._taken if self._users.get(id(one)) == user}
            for sequence in self.sequences:
                sequence.wipe()

    def _own(self, user: int | None) -> list[CachedSequence]:
        return [one for one in self.sequences if self._users.get(id(one)) == user]

    def _chosen(self, shared: Mapping[int, int]) -> CachedSequence:
        """Choose a sequence whose text goes on, or branches off in its second half; else an empty one, or the one used
        least recently. `shared`: what each of the user's own holds of the prompt."""
        mine = [one for one in self._free if id(one) in shared]
        best = max(mine, key=lambda one: shared[id(one)], default=None)
        if best is not None and 2 * shared[id(best)] >= len(best.tokens):
            return best
        if empty := next((one for one in self._free if not one.tokens), None):
            return empty
        if len(self.sequences) < self.most:
            try:
                return self.latest.runner.open()
            except TooManySequences:
                self.most = len(self.sequences)
        if not self._free:
            raise TooManySequences(f"{len(self._taken)} replies are being written; no more fit into memory.")
        return self._free[0]
