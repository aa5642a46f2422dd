"""The steps of all replies in progress. As many as there are go through each forward together.

Whoever waits for a step computes the next one for all, if nobody does so already; so a single reply needs no other
thread. A piece of one prompt goes along, short enough for the others not to stall: the weights are read
once for both."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from hierchat.drafting.draft_tree import DraftCost, DraftTree, divided
from hierchat.engine.engine import Step
from hierchat.engine.generation import CHUNK, Decoding, common_prefix
from hierchat.engine.latency import WIDEST, LatencyCurve
from hierchat.engine.runner import CachedSequence, Runner, TooManySequences
from hierchat.engine.verify import choose_from

STALL_MS = 200.0
"""What a step may take with a piece of a prompt while other replies are being written."""
LEAST_PIECE = 8
PROBE_AGE = 32
"""Steps of several replies for which one measurement of a plain step serves."""
AHEAD = 32
"""Steps that may wait for the reader of a reply; then that reply rests."""
GIVE_WAY_MS = 100.0
"""What one piece or one step takes at most of replies that are written in spare time: so long somebody may wait."""


@dataclass(eq=False, slots=True)
class _Member:
    reply: Decoding
    padded: bool
    spare: bool = False
    """Whether it is written in spare time: no forward begins once it is stopped, and each is short."""
    steps: deque[Step] = field(default_factory=deque)
    error: Exception | None = None
    waited_ms: float = 0.0
    """What others took since its last step."""

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Whatever is raised here ends this reply alone."""
        try:
            yield
        except Exception as error:
            self.error = error


class Together:
    """The replies in progress over one runner. `latency`: what a step costs, by all rows in it."""

    def __init__(self, runner: Runner, latency: LatencyCurve) -> None:
        self._runner = runner
        self._latency = latency
        self._cost = DraftCost(latency)
        self._members: list[_Member] = []
        self._changed = threading.Condition()
        self._busy = False
        self._pausing = 0
        self._row_ms = STALL_MS / CHUNK
        self._steps = 0
        self._plain = (0, 0, 0.0)  # of how many replies, at which step, milliseconds

    def steps(
        self, reply: Decoding, *, padded: bool = True, spare: bool = False
    ) -> Generator[Step, None, None]:
        """The steps of a reply, until it has ended. `spare`: it is written in spare time. Raises what its own forwards
        raise."""
        member = _Member(reply, padded, spare)
        member.steps.append(reply.begin())
        with self._changed:
            self._members.append(member)
        try:
            while True:
                step = self._next(member)
                yield step
                if step.finish:
                    return
        finally:
            with self.paused():  # no forward is under way over its sequence
                self._members.remove(member)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """While it lasts no reply goes on."""
        with self._changed:
            self._pausing += 1
            self._changed.wait_for(lambda: not self._busy)
            self._pausing -= 1
            self._busy = True
        try:
            yield
        finally:
            self._free()

    def plain_ms(self) -> float:
        """Milliseconds of a plain step of all replies that are being written, together; nothing is committed. Of
        several, what was measured for one of them serves the others for PROBE_AGE steps. Call it while paused."""
        writing = self.writing
        if self._plain[0] == len(writing) > 1 and self._steps - self._plain[1] < PROBE_AGE:
            return self._plain[2]
        began = time.perf_counter()
        rows = self._runner.forward([reply.root() for reply in writing], padded=False)
        for reply, mine in zip(writing, rows, strict=True):
            choose_from(mine, 0, reply.position + 1, reply.settings)
        took = (time.perf_counter() - began) * 1e3
        self._plain = (len(writing), self._steps, took)
        return took

    @property
    def writing(self) -> list[Decoding]:
        """The replies that are being written."""
        return [one.reply for one in self._members if not one.reply.left and one.reply.finish is None]

    def _next(self, member: _Member) -> Step:
        while True:
            with self._changed:
                while self._busy or self._pausing or member.steps or member.error:
                    if member.steps:
                        return member.steps.popleft()
                    if member.error:
                        raise member.error
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

    def _advance(self) -> None:
        """A piece of one prompt, and a step of all that are read."""
        self._steps += 1
        going = [
            one
            for one in self._members
            if one.reply.finish is None and one.error is None and len(one.steps) < AHEAD
        ]
        for one in going:
            if one.reply.given_up or (one.spare and one.reply.stop.is_set()):
                self._put(one, one.reply.give_up())
        if not all(one.spare for one in going):  # of the lowest rank: they wait for all others
            going = [one for one in going if not one.spare]
        reading = [one for one in going if one.reply.left and one.reply.finish is None]
        writing = [one for one in going if not one.reply.left and one.reply.finish is None]
        # The shortest first: who asks briefly does not wait for a long text.
        reader = min(reading, key=lambda one: one.reply.left, default=None)
        if reader and reader.spare:  # a step with the piece would take too long to give way
            self._read(reader, alone=True)
            return
        if reader and not (writing and self._runner.shares_forward):
            self._read(reader, alone=not writing)
            reader = None
        if reader or (len(writing) > 1 and self._runner.shares_forward):
            self._write(writing, reader)
        else:
            for one in writing:
                self._write_alone(one)

    def _read(self, member: _Member, *, alone: bool) -> None:
        most = CHUNK if alone else self._piece(CHUNK)
        if member.spare:
            most = self._latency.within(GIVE_WAY_MS, member.reply.position)
        began = time.perf_counter()
        with member.failing():
            step = member.reply.read_piece(most)
            self._put(member, step)
            if step.width >= LEAST_PIECE:
                self._row_ms = step.forward_ms / step.width
        self._others_waited(member, (time.perf_counter() - began) * 1e3)

    def _piece(self, most: int) -> int:
        """Tokens of a prompt for which there is time beside a step."""
        return min(max(int((STALL_MS - self._cost.step_ms(0)) / self._row_ms), LEAST_PIECE), most)

    def _write_alone(self, member: _Member) -> None:
        began = time.perf_counter()
        with member.failing():
            reply = member.reply
            reply.propose()
            block = reply.segment()
            rows = reply.sequence.forward(block.tokens, block.parents, padded=member.padded)
            self._put(member, reply.take(rows))
        self._others_waited(member, (time.perf_counter() - began) * 1e3)

    def _write(self, members: Sequence[_Member], reader: _Member | None = None) -> None:
        """A step of all of these in one forward, and a piece of a reader's prompt. The rows of the trees go where they
        bring most."""
        began = time.perf_counter()
        cost, roots = self._cost, len(members)
        cost.look(sum(one.reply.position for one in members) // roots, roots)
        drafted: list[tuple[_Member, DraftTree]] = []
        for one in members:
            with one.failing():
                drafted.append((one, one.reply.propose_beside(cost, max(WIDEST - roots, 0), roots)))
        kept = divided([tree for _, tree in drafted], cost)
        segments = [one.reply.segment(count) for (one, _), count in zip(drafted, kept, strict=True)]
        width = sum(len(one.tokens) for one in segments)
        piece = reader.reply.piece(self._piece(CHUNK - width)) if reader else None
        forward = time.perf_counter()
        try:
            rows = self._runner.forward([*segments, *([piece] if piece else [])])[: len(segments)]
        except Exception as error:
            for one in (*members, *([reader] if reader else [])):
                one.error = error
            return
        verify = time.perf_counter()
        waited = 0.0
        if reader and piece:
            waited = self._note_piece(
                len(piece.tokens), (verify - forward) * 1e3 - cost.step_ms(width - roots)
            )
            with reader.failing():
                self._put(reader, reader.reply.take_piece(len(piece.tokens), (verify - forward) * 1e3))
        steps: list[tuple[_Member, Step]] = []
        for (one, _), mine in zip(drafted, rows, strict=True):
            with one.failing():
                steps.append((one, one.reply.take(mine, alone=False)))
        ended = time.perf_counter()
        cost.note(width, sum(len(step.tokens) for _, step in steps))
        for one, step in steps:
            shared = replace(
                step,
                together=roots,
                draft_ms=(forward - began) * 1e3,
                forward_ms=(verify - forward) * 1e3 - waited,
                verify_ms=(ended - verify) * 1e3,
            )
            one.waited_ms += waited
            self._put(one, shared)
        if reader:
            reader.waited_ms += (ended - verify + forward - began) * 1e3

    def _note_piece(self, tokens: int, ms: float) -> float:
        """A piece made a step so much longer: what the others waited for it."""
        waited = max(ms, 0.0)
        if tokens >= LEAST_PIECE:
            self._row_ms = (self._row_ms + waited / tokens) / 2
        return waited

    def _put(self, member: _Member, step: Step) -> None:
        member.steps.append(replace(step, waited_ms=member.waited_ms) if member.waited_ms else step)
        member.waited_ms = 0.0

    def _others_waited(self, member: _Member, ms: float) -> None:
        for other in self._members:
            if other is not member:
                other.waited_ms += ms


# The sequences of a runner: each belongs to one reply at a time, and keeps its text for the next one.


WORTH_TAKING_OVER = 16
"""Tokens; fewer are read again."""


class Pool:
    """Up to `most` sequences, opened as they are needed; `first` is open already. The one that was used least recently
    gives its text up first. What a user's sequence holds is never used for another user."""

    def __init__(self, first: CachedSequence, most: int = 1) -> None:
        self.most = max(most, 1)
        self.latest = first
        """The one that a reply was given last."""
        self._free = [first]  # the least recently used first
        self._taken: list[CachedSequence] = []
        self._users: dict[int, int | None] = {}
        self._lock = threading.Lock()

    @contextmanager
    def sequence(self, prompt: Sequence[int], user: int | None = None) -> Iterator[CachedSequence]:
        """One for the time of a reply; see `take`."""
        sequence = self.take(prompt, user)
        try:
            yield sequence
        finally:
            self.give(sequence)

    def take(self, prompt: Sequence[int], user: int | None = None) -> CachedSequence:
        """A sequence for a reply to this prompt, which holds as much of it as some sequence of this user's did, and
        nothing else. Raises TooManySequences."""
        with self._lock:
            own = self._own(user)
            shared = {id(one): common_prefix(one.tokens, prompt) for one in own}
            sequence = self._chosen(shared)
            held = shared.get(id(sequence), 0)
            self._free = [one for one in self._free if one is not sequence]
            self._taken.append(sequence)
            self._users[id(sequence)] = user
            self.latest = sequence
            sequence.rollback(held)
            holder = max(own, key=lambda one: shared[id(one)], default=sequence)
            if (most := shared.get(id(holder), 0)) >= held + WORTH_TAKING_OVER:
                sequence.adopt(holder, prompt[held:most])
            return sequence

    def give(self, sequence: CachedSequence) -> None:
        """The reply has ended."""
        with self._lock:
            self._taken = [one for one in self._taken if one is not sequence]
            self._free.append(sequence)

    def shared(self, prompt: Sequence[int], user: int | None = None) -> int:
        """Tokens of a prompt that need not be read for this user."""
        with self._lock:
            return max((common_prefix(one.tokens, prompt) for one in self._own(user)), default=0)

    def forget(self, prompt: Sequence[int], kept: int) -> None:
        """Of this prompt hold no more than its first `kept` tokens; replies in progress keep theirs."""
        with self._lock:
            for sequence in self._free:
                if common_prefix(sequence.tokens, prompt) > kept:
                    sequence.rollback(kept)

    def clear(self) -> None:
        """Hold nothing of any text; replies in progress keep theirs."""
        with self._lock:
            for sequence in self._free:
                sequence.rollback(0)

    def _own(self, user: int | None) -> list[CachedSequence]:
        return [one for one in (*self._free, *self._taken) if self._users.get(id(one)) == user]

    def _chosen(self, shared: Mapping[int, int]) -> CachedSequence:
        """One whose text goes on, or branches off in its second half; else an empty one, or the one used least
        recently. `shared`: what each of the user's own holds of the prompt."""
        mine = [one for one in self._free if id(one) in shared]
        best = max(mine, key=lambda one: shared[id(one)], default=None)
        if best is not None and 2 * shared[id(best)] >= len(best.tokens):
            return best
        if empty := next((one for one in self._free if not one.tokens), None):
            return empty
        if len(self._free) + len(self._taken) < self.most:
            try:
                return self.latest.runner.open()
            except TooManySequences:
                self.most = len(self._free) + len(self._taken)
        if not self._free:
            raise TooManySequences(f"{len(self._taken)} replies are being written; no more fit into memory.")
        return self._free[0]
